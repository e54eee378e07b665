"""nftables data types: names, kernel numbers, and values between text and register bytes.

A value in a set, map or comparison is bytes as the kernel keeps them in registers: network order for addresses, ports
and protocols, host order for marks and slots, each field of a concatenation padded to four bytes. Sets keep those bytes
(a dump compares without decoding) and convert them to text on demand. ``slot`` is nft's ``integer`` as ``numgen``
yields it: nft 1.0.6 has no name for it in a ``type`` line, so a set with a slot is declared by ``typeof`` with the
example fields below.

Sources: ``include/datatype.h`` of nftables (numbers), ``include/uapi/linux/netfilter/nf_tables.h``.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

import msgspec

from podwire.errors import ConfigError

HOST_ORDER = sys.byteorder


class DataType(msgspec.Struct, frozen=True):
    """One nftables type: its number, its size in bytes, and its conversion from and to text."""

    name: str
    number: int
    size: int
    parse: Callable[[str], bytes]
    render: Callable[[bytes], str]
    example: str = ""
    """A field of this type, for ``typeof`` declarations."""
    host_order: bool = False
    flags: bool = False
    """Whether values are bit sets, matched with ``&``."""


def _number(size: int, order: str, base: int = 10) -> tuple[Callable[[str], bytes], Callable[[bytes], str]]:
    width = size * 2

    def parse(text: str) -> bytes:
        return int(text, 0).to_bytes(size, order)  # type: ignore[arg-type]

    def render(data: bytes) -> str:
        number = int.from_bytes(data[:size], order)  # type: ignore[arg-type]
        return f"0x{number:0{width}x}" if base == 16 else str(number)

    return parse, render


def _symbol(size: int, order: str, names: dict[str, int]) -> tuple[Callable[[str], bytes], Callable[[bytes], str]]:
    spelled = {number: name for name, number in reversed(names.items())}

    def parse(text: str) -> bytes:
        number = names[text] if text in names else _integer(text)
        return number.to_bytes(size, order)  # type: ignore[arg-type]

    def render(data: bytes) -> str:
        number = int.from_bytes(data[:size], order)  # type: ignore[arg-type]
        return spelled.get(number, str(number))

    return parse, render


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ConfigError("nft", "", f"cannot parse {text!r} as a number or a name of its type") from None


def _bits(size: int, order: str, names: dict[str, int]) -> tuple[Callable[[str], bytes], Callable[[bytes], str]]:
    def parse(text: str) -> bytes:
        number = 0
        for part in text.split(","):
            number |= names[part.strip()] if part.strip() in names else _integer(part)
        return number.to_bytes(size, order)  # type: ignore[arg-type]

    def render(data: bytes) -> str:
        number = int.from_bytes(data[:size], order)  # type: ignore[arg-type]
        names_of_bits = [name for name, bit in names.items() if number & bit]
        covered = sum(names[name] for name in names_of_bits)
        return ",".join(names_of_bits) if names_of_bits and covered == number else f"0x{number:x}"

    return parse, render


@lru_cache(maxsize=4096)
def _ipv4(text: str) -> bytes:
    parts = text.split(".")
    if len(parts) != 4:
        raise ValueError(f"{text!r} is not an IPv4 address")
    return bytes(map(int, parts))


@lru_cache(maxsize=4096)
def _ipv6(text: str) -> bytes:
    return IPv6Address(text).packed


def _ifname(text: str) -> bytes:
    name = text.strip('"').encode()
    if len(name) > 15:
        raise ConfigError("nft", "", f"interface name {text!r} is longer than 15 bytes")
    return name.ljust(16, b"\0")


PROTOCOLS = {
    "icmp": 1,
    "igmp": 2,
    "tcp": 6,
    "udp": 17,
    "dccp": 33,
    "gre": 47,
    "esp": 50,
    "ah": 51,
    "ipv6-icmp": 58,
    "comp": 108,
    "udplite": 136,
    "sctp": 132,
}
_ADDRESS_TYPES = {
    "unspec": 0,
    "unicast": 1,
    "local": 2,
    "broadcast": 3,
    "anycast": 4,
    "multicast": 5,
    "blackhole": 6,
    "unreachable": 7,
    "prohibit": 8,
}
_CT_STATES = {"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}
_CT_STATUSES = {"expected": 1, "seen-reply": 2, "assured": 4, "confirmed": 8, "snat": 16, "dnat": 32, "dying": 512}
_TCP_FLAGS = {"fin": 1, "syn": 2, "rst": 4, "psh": 8, "ack": 16, "urg": 32, "ecn": 64, "cwr": 128}
ETHERTYPES = {"ip": 0x0800, "arp": 0x0806, "ip6": 0x86DD}
_ICMP = {
    "echo-reply": 0,
    "destination-unreachable": 3,
    "redirect": 5,
    "echo-request": 8,
    "time-exceeded": 11,
    "parameter-problem": 12,
}
_ICMPV6 = {
    "destination-unreachable": 1,
    "packet-too-big": 2,
    "time-exceeded": 3,
    "parameter-problem": 4,
    "echo-request": 128,
    "echo-reply": 129,
    "nd-router-solicit": 133,
    "nd-router-advert": 134,
    "nd-neighbor-solicit": 135,
    "nd-neighbor-advert": 136,
    "nd-redirect": 137,
}

TYPES: dict[str, DataType] = {
    kind.name: kind
    for kind in (
        DataType("nfproto", 2, 1, *_symbol(1, "big", {"ipv4": 2, "ipv6": 10}), example="meta nfproto"),
        DataType("slot", 4, 4, *_number(4, HOST_ORDER), example="numgen random mod 2", host_order=True),
        DataType("ipv4_addr", 7, 4, _ipv4, lambda data: str(IPv4Address(data[:4])), example="ip daddr"),
        DataType("ipv6_addr", 8, 16, _ipv6, lambda data: str(IPv6Address(data[:16])), example="ip6 daddr"),
        DataType(
            "ether_addr",
            9,
            6,
            lambda text: bytes.fromhex(text.replace(":", "")),
            lambda data: data[:6].hex(":"),
            example="ether saddr",
        ),
        DataType("ether_type", 10, 2, *_symbol(2, "big", ETHERTYPES), example="meta protocol"),
        DataType("inet_proto", 12, 1, *_symbol(1, "big", PROTOCOLS), example="meta l4proto"),
        DataType("inet_service", 13, 2, *_number(2, "big"), example="th dport"),
        DataType("icmp_type", 14, 1, *_symbol(1, "big", _ICMP), example="icmp type"),
        DataType("tcp_flag", 15, 1, *_bits(1, "big", _TCP_FLAGS), example="tcp flags", flags=True),
        DataType("mark", 19, 4, *_number(4, HOST_ORDER, 16), example="meta mark", host_order=True),
        DataType("uid", 24, 4, *_number(4, HOST_ORDER), example="meta skuid", host_order=True),
        DataType("ct_state", 26, 4, *_bits(4, HOST_ORDER, _CT_STATES), host_order=True, flags=True, example="ct state"),
        DataType("ct_dir", 27, 1, *_symbol(1, "big", {"original": 0, "reply": 1}), example="ct direction"),
        DataType(
            "ct_status", 28, 4, *_bits(4, HOST_ORDER, _CT_STATUSES), host_order=True, flags=True, example="ct status"
        ),
        DataType("icmpv6_type", 29, 1, *_symbol(1, "big", _ICMPV6), example="icmpv6 type"),
        DataType(
            "fib_addrtype", 38, 4, *_symbol(4, HOST_ORDER, _ADDRESS_TYPES), host_order=True, example="fib daddr type"
        ),
        DataType("boolean", 39, 1, *_number(1, "big"), example="socket transparent"),
        DataType("ifname", 41, 16, _ifname, lambda data: '"' + data.rstrip(b"\0").decode() + '"', example="iifname"),
    )
}
BY_NUMBER: dict[int, DataType] = {kind.number: kind for kind in TYPES.values()}


def data_type(name: str) -> DataType:
    """The type of that name.

    Raises: ConfigError when there is none.
    """
    known_type = TYPES.get(name)
    if known_type is None:
        raise ConfigError("nft", "", f"unknown data type {name!r}")
    return known_type


def width(size: int) -> int:
    """The padded size of a field inside a concatenation."""
    return (size + 3) & ~3


def length(types: tuple[str, ...]) -> int:
    """The bytes of a key or value: padded fields, or the size of a single field."""
    if len(types) == 1:
        return data_type(types[0]).size
    return sum(width(data_type(name).size) for name in types)


def pack(types: tuple[str, ...], parts: tuple[str, ...]) -> bytes:
    """The bytes of a key or value from one text per field.

    Raises: ConfigError when the number of texts differs or a text is not a value of its type.
    """
    if len(types) != len(parts):
        raise ConfigError("nft", "", f"expected {' . '.join(types)}, got {' . '.join(parts)}")
    try:
        if len(types) == 1:
            return data_type(types[0]).parse(parts[0])
        fields = [(data_type(name), text) for name, text in zip(types, parts, strict=True)]
        return b"".join(kind.parse(text).ljust(width(kind.size), b"\0") for kind, text in fields)
    except (ValueError, OverflowError) as failure:
        raise ConfigError("nft", "", f"cannot read {' . '.join(parts)} as {' . '.join(types)}") from failure


def unpack(types: tuple[str, ...], data: bytes) -> tuple[str, ...]:
    """One text for each field; the reverse of :func:`pack`."""
    parts: list[str] = []
    offset = 0
    for name in types:
        kind = data_type(name)
        parts.append(kind.render(data[offset : offset + kind.size]))
        offset += width(kind.size)
    return tuple(parts)


def type_number(types: tuple[str, ...]) -> int:
    """The kernel's number of a concatenation: six bits per field, the first one highest."""
    number = 0
    for name in types:
        number = number << 6 | data_type(name).number
    return number


def types_of_number(number: int) -> tuple[str, ...]:
    """The reverse of :func:`type_number`; empty when a field's number is unknown."""
    names: list[str] = []
    while number:
        kind = BY_NUMBER.get(number & 63)
        if kind is None:
            return ()
        names.insert(0, kind.name)
        number >>= 6
    return tuple(names)
