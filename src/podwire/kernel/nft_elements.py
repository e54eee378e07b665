"""Elements of nftables sets as attributes of netlink messages. Pure.

Elements are most of a large load: an element with parts of fixed lengths is joined from constant headers and its bytes,
about a microsecond each. Sources: ``include/uapi/linux/netfilter/nf_tables.h``; userdata types from
``include/libnftnl/udata.h``.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from podwire.kernel import uapi
from podwire.kernel.nft_codec import attribute, nested, u32, u64
from podwire.kernel.nft_linearize import verdict_value
from podwire.state.nft import Element, Set
from podwire.state.nft_rules import Verdict
from podwire.state.nft_types import length

_CHUNK = 60_000
"""Bytes of elements in one message, below the 65,535 that an attribute can hold."""
ELEM_COMMENT = 0


def userdata(kind: int, payload: bytes) -> bytes:
    """One userdata record."""
    return bytes((kind, len(payload))) + payload


def comment_data(comment: str, kind: int = 0) -> bytes:
    """A comment record, empty without a comment; cut to the kernel's limit of 128 bytes including the final zero."""
    return userdata(kind, comment.encode()[:127] + b"\0") if comment else b""


def records(data: bytes | None) -> dict[int, bytes]:
    """Userdata records by type."""
    records_by_kind: dict[int, bytes] = {}
    offset = 0
    while data and offset + 2 <= len(data):
        kind, size = data[offset], data[offset + 1]
        records_by_kind[kind] = data[offset + 2 : offset + 2 + size]
        offset += 2 + size
    return records_by_kind


def element_lists(declared: Set, elements: Mapping[bytes, Element], *, keys_only: bool = False) -> Iterator[bytes]:
    """Element attributes in groups that fit into one message each."""
    encode = element_encoder(declared)
    return chunks(encode(key, element, keys_only) for key, element in elements.items())


def element_encoder(declared: Set) -> Callable[[bytes, Element, bool], bytes]:
    """Encodes an element of a set with a key; True: only the key."""
    data_size = 0 if declared.verdicts or not declared.data else length(declared.data)
    encoder = _interval_encoder if is_tree(declared) else _element_encoder
    return encoder(declared.key_length, data_size)


def chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Joins encoded elements as long as they fit into one message."""
    together: list[bytes] = []
    size = 0
    for part in parts:
        size += len(part)
        if size > _CHUNK:
            yield b"".join(together)
            together, size = [], len(part)
        together.append(part)
    if together:
        yield b"".join(together)


def is_tree(declared: Set) -> bool:
    """Whether the kernel keeps this set as a tree of single-field intervals."""
    return "interval" in declared.flags and len(declared.key) == 1


class _element_encoder:  # noqa: N801
    """Encodes the elements of sets with precomputed headers, by the sizes of key and data in bytes."""

    def __init__(self, key_size: int, data_size: int) -> None:
        self.key_head, self.key_tail = _value_frame(uapi.NFTA_SET_ELEM_KEY, key_size)
        self.data_head, self.data_tail = _value_frame(uapi.NFTA_SET_ELEM_DATA, data_size) if data_size else (b"", b"")
        self.verdicts: dict[Verdict, bytes] = {}

    def __call__(self, key: bytes, element: Element, keys_only: bool) -> bytes:
        body = self.key_head + key + self.key_tail
        if element.end:
            body += nested(uapi.NFTA_SET_ELEM_KEY_END, attribute(uapi.NFTA_DATA_VALUE, element.end))
        if element.data and not keys_only and not (element.timeout_s or element.comment):
            body += self.data_head + element.data + self.data_tail
        elif not keys_only:
            body += self.value(element)
        return _ELEMENT_HEAD.pack(len(body) + 4, _NESTED_ELEMENT) + body

    def value(self, element: Element) -> bytes:
        """The attributes of an element behind its key."""
        verdict, body = element.verdict, b""
        if verdict is not None:
            data = self.verdicts.get(verdict)
            if data is None:
                data = self.verdicts[verdict] = verdict_value(uapi.NFTA_SET_ELEM_DATA, verdict)
            body = data
        elif element.data:
            body = self.data_head + element.data + self.data_tail
        if element.timeout_s:
            body += u64(uapi.NFTA_SET_ELEM_TIMEOUT, element.timeout_s * 1000)
        if element.comment:
            body += attribute(uapi.NFTA_SET_ELEM_USERDATA, comment_data(element.comment))
        return body


_ELEMENT_HEAD = struct.Struct("=HH")
_NESTED_ELEMENT = uapi.NFTA_LIST_ELEM | uapi.NLA_F_NESTED


@lru_cache(maxsize=1 << 6)
def _value_frame(kind: int, size: int) -> tuple[bytes, bytes]:
    padding = -size & 3
    head = struct.pack("=HHHH", 8 + size + padding, kind | uapi.NLA_F_NESTED, 4 + size, uapi.NFTA_DATA_VALUE)
    return head, b"\0" * padding


class _interval_encoder:  # noqa: N801
    """Encodes an interval as its start and, with a flag, the value behind its end."""

    def __init__(self, key_size: int, data_size: int) -> None:
        self.plain = plain = _element_encoder(key_size, data_size)
        self.highest = (1 << 8 * key_size) - 1
        flags = u32(uapi.NFTA_SET_ELEM_FLAGS, uapi.NFT_SET_ELEM_INTERVAL_END)
        size = 4 + len(plain.key_head) + key_size + len(plain.key_tail) + len(flags)
        self.end_head = _ELEMENT_HEAD.pack(size, _NESTED_ELEMENT) + plain.key_head
        self.end_tail = plain.key_tail + flags

    def __call__(self, key: bytes, element: Element, keys_only: bool) -> bytes:
        plain = self.plain
        body = plain.key_head + key + plain.key_tail + (b"" if keys_only else plain.value(element))
        start = _ELEMENT_HEAD.pack(len(body) + 4, _NESTED_ELEMENT) + body
        last = int.from_bytes(element.end or key, "big")
        if last == self.highest:
            return start
        return start + self.end_head + (last + 1).to_bytes(len(key), "big") + self.end_tail
