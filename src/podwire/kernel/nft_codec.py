"""nfnetlink framing for nftables: attributes, message headers, batches. Pure.

A batch is BEGIN, messages, END in one buffer; the kernel commits all of it or nothing. Attribute lengths have 16 bits,
so long element lists are divided into several messages of one batch. All integers inside nftables attributes are in
network order, headers in host order.

Source: ``include/uapi/linux/netfilter/nf_tables.h`` and ``nfnetlink.h``; names keep the kernel's spelling.
"""

import struct
from collections.abc import Callable, Iterator

from podwire.kernel import uapi

_HEADER = struct.Struct("=IHHII")
_GENERIC = struct.Struct("!BBH")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("!I")
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")
HEADER_SIZE = _HEADER.size + _GENERIC.size


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute with padding."""
    size = len(payload)
    return _ATTRIBUTE.pack(size + 4, kind) + payload + _PADDING[size & 3]


def nested(kind: int, payload: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | uapi.NLA_F_NESTED, payload)


def text(kind: int, value: str) -> bytes:
    """A zero-terminated string."""
    return attribute(kind, value.encode() + b"\0")


def u32(kind: int, value: int) -> bytes:
    """A 32-bit number in network order."""
    return _ATTRIBUTE.pack(8, kind) + _NUMBER.pack(value & 0xFFFFFFFF)


def u64(kind: int, value: int) -> bytes:
    """A 64-bit number in network order."""
    return attribute(kind, struct.pack("!Q", value))


def expression(name: str, payload: bytes) -> bytes:
    """One list element of an expression list."""
    return nested(uapi.NFTA_LIST_ELEM, text(uapi.NFTA_EXPR_NAME, name) + nested(uapi.NFTA_EXPR_DATA, payload))


def data_value(kind: int, data: bytes) -> bytes:
    """A ``NFTA_DATA_VALUE`` inside its attribute."""
    return nested(kind, attribute(uapi.NFTA_DATA_VALUE, data))


def number(payload: bytes | None, default: int = 0) -> int:
    """The number in an attribute's payload, ``default`` when it is missing."""
    return default if payload is None else int.from_bytes(payload, "big")


def string(payload: bytes | None) -> str:
    """The zero-terminated string in a payload, empty when it is missing."""
    return "" if payload is None else payload.split(b"\0", 1)[0].decode(errors="replace")


def attribute_list(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, payload) of each attribute in order."""
    offset, end = 0, len(data)
    while offset + 4 <= end:
        size, kind = _ATTRIBUTE.unpack_from(data, offset)
        if size < 4:
            return
        yield kind & uapi.NLA_TYPE_MASK, data[offset + 4 : offset + size]
        offset += (size + 3) & ~3


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes by type; of several with one type the last."""
    return dict(attribute_list(data))


def message(kind: int, flags: int, sequence: int, family: int, body: bytes, *, batch: bool = False) -> bytes:
    """One nfnetlink message; ``batch`` marks BEGIN and END, which have the subsystem in another field."""
    subsystem = 0 if batch else uapi.NFNL_SUBSYS_NFTABLES << 8
    resource = uapi.NFNL_SUBSYS_NFTABLES if batch else 0
    head = _HEADER.pack(HEADER_SIZE + len(body), subsystem | kind, flags | uapi.NLM_F_REQUEST, sequence, 0)
    return head + _GENERIC.pack(family, 0, resource) + body


def message_start(kind: int, flags: int, family: int, head: bytes) -> Callable[[int, bytes], bytes]:
    """A function that makes a message of its sequence number and body; all have the same first attributes ``head``."""
    kind, flags = uapi.NFNL_SUBSYS_NFTABLES << 8 | kind, flags | uapi.NLM_F_REQUEST
    head = _GENERIC.pack(family, 0, 0) + head
    size, header = _HEADER.size + len(head), _HEADER.pack

    def start(sequence: int, body: bytes) -> bytes:
        return header(size + len(body), kind, flags, sequence, 0) + head + body

    return start


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(type, flags, sequence, bytes after the netlink header) of each message in a datagram."""
    offset, end = 0, len(data)
    while offset + _HEADER.size <= end:
        size, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if size < _HEADER.size:
            return
        yield kind, flags, sequence, data[offset + _HEADER.size : offset + size]
        offset += (size + 3) & ~3
