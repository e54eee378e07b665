"""The options of an EDNS record as pairs of code and data. Pure. Source: RFC 6891 section 6.1.2."""

import struct
from collections.abc import Iterable

NSID, CLIENT_SUBNET, COOKIE = 3, 8, 10
_HEAD = struct.Struct("!HH")


def split_options(data: bytes) -> tuple[tuple[int, bytes], ...]:
    """Code and data of each option, in order; an option that is cut ends the list."""
    options, offset = [], 0
    while offset + _HEAD.size <= len(data):
        code, length = _HEAD.unpack_from(data, offset)
        offset += _HEAD.size
        if offset + length > len(data):
            break
        options.append((code, data[offset : offset + length]))
        offset += length
    return tuple(options)


def join_options(options: Iterable[tuple[int, bytes]]) -> bytes:
    """The wire form of options."""
    return b"".join([_HEAD.pack(code, len(data)) + data for code, data in options])
