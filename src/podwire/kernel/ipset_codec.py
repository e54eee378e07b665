"""Messages of the nfnetlink subsystem ipset: sets and elements to bytes and back. Pure.

Every message begins with the header of nfnetlink and the version of the protocol. Numbers of more than one byte are in
network order, and a flag of the attribute's type says so. An element is a message of its own: the kernel handles a
thousand in a millisecond and reports each refused element. A dump is answered with a message that holds the head of a
set and as many elements as fit, followed by messages with elements alone.

Source: ``include/uapi/linux/netfilter/ipset/ip_set.h``; names keep the kernel's spelling.
"""

import struct
from collections.abc import Iterator, Mapping

import msgspec

from podwire.errors import ProtocolError, Unsupported
from podwire.kernel.attributes import attribute, nested, number, parse, string, text, u8
from podwire.state.address import pack_ip, unpack_ip
from podwire.state.ipset import KINDS, PROTOCOLS, Family, IpSet, IpSetElement

NFNL_SUBSYS_IPSET = 6
IPSET_PROTOCOL_MIN = 6
"""Version 6 has everything that is used here; every kernel since 2.6.39 supports it."""

IPSET_CMD_CREATE, IPSET_CMD_DESTROY, IPSET_CMD_FLUSH, IPSET_CMD_SWAP, IPSET_CMD_LIST = 2, 3, 4, 6, 7
IPSET_CMD_ADD, IPSET_CMD_DEL, IPSET_CMD_TYPE = 9, 10, 13

IPSET_ATTR_PROTOCOL, IPSET_ATTR_SETNAME, IPSET_ATTR_TYPENAME, IPSET_ATTR_REVISION, IPSET_ATTR_FAMILY = 1, 2, 3, 4, 5
IPSET_ATTR_SETNAME2 = IPSET_ATTR_TYPENAME
IPSET_ATTR_FLAGS, IPSET_ATTR_DATA, IPSET_ATTR_ADT = 6, 7, 8

IPSET_ATTR_IP, IPSET_ATTR_CIDR, IPSET_ATTR_PORT, IPSET_ATTR_PORT_TO, IPSET_ATTR_TIMEOUT = 1, 3, 4, 5, 6
IPSET_ATTR_PROTO, IPSET_ATTR_CADT_FLAGS = 7, 8
IPSET_ATTR_HASHSIZE, IPSET_ATTR_MAXELEM, IPSET_ATTR_ELEMENTS = 18, 19, 24
IPSET_ATTR_IP2, IPSET_ATTR_CIDR2, IPSET_ATTR_IFACE, IPSET_ATTR_COMMENT, IPSET_ATTR_SKBMARK = 20, 21, 23, 26, 27
IPSET_ATTR_IPADDR_IPV4, IPSET_ATTR_IPADDR_IPV6 = 1, 2

IPSET_FLAG_LIST_SETNAME, IPSET_FLAG_LIST_HEADER = 1 << 1, 1 << 2
IPSET_FLAG_NOMATCH, IPSET_FLAG_WITH_COMMENT, IPSET_FLAG_WITH_SKBINFO = 1 << 2, 1 << 4, 1 << 6

_NLA_F_NET_BYTEORDER = 0x4000
_FAMILIES: dict[Family, int] = {"inet": 2, "inet6": 10}
_FAMILY_OF: dict[int, Family] = {value: name for name, value in _FAMILIES.items()}
_PROTOCOL_OF = {value: name for name, value in PROTOCOLS.items()}
_ADDRESS = {4: IPSET_ATTR_IPADDR_IPV4, 16: IPSET_ATTR_IPADDR_IPV6}
_HEAD = bytes(4) + u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN)

ERRORS = {
    4097: "the kernel does not support this version of the ipset protocol",
    4098: "the kernel does not have this set type",
    4099: "the maximum number of sets is reached",
    4100: "a rule or another set refers to the set",
    4101: "the other set does not exist",
    4102: "the sets are of different types",
    4103: "the element to add exists, or the element to delete does not exist",
    4104: "the prefix length of a network is wrong",
    4105: "the netmask is wrong",
    4106: "the family is wrong",
    4107: "the set has no timeouts",
    4108: "a rule or another set refers to the set",
    4109: "expected an IPv4 address",
    4110: "expected an IPv6 address",
    4111: "the set has no counters",
    4112: "the set has no comments",
    4352: "the set is full, or the element is outside of its range",
    4353: "the element is empty",
    4354: "the protocol is wrong",
    4355: "the protocol is missing",
}
"""enum ipset_errno; numbers from 4352 on are specific to a set type."""


def _be16(kind: int, value: int) -> bytes:
    return attribute(kind | _NLA_F_NET_BYTEORDER, value.to_bytes(2, "big"))


def _be32(kind: int, value: int) -> bytes:
    return attribute(kind | _NLA_F_NET_BYTEORDER, value.to_bytes(4, "big"))


def _be(attributes: Mapping[int, bytes], kind: int, default: int = 0) -> int:
    data = attributes.get(kind)
    return default if data is None else int.from_bytes(data, "big")


def set_name(name: str) -> bytes:
    """The body of a request about one set."""
    return _HEAD + text(IPSET_ATTR_SETNAME, name)


def set_names(name: str, other: str) -> bytes:
    """The body of a swap."""
    return set_name(name) + text(IPSET_ATTR_SETNAME2, other)


def names_only() -> bytes:
    """The body of a dump of every set's name."""
    return _HEAD + _be32(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_SETNAME)


def heads_only() -> bytes:
    """The body of a dump of every set without its elements."""
    return _HEAD + _be32(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_HEADER)


def type_request(ip_set: IpSet) -> bytes:
    """The body of a request for the revisions of a set type."""
    return _HEAD + text(IPSET_ATTR_TYPENAME, ip_set.kind) + u8(IPSET_ATTR_FAMILY, _family(ip_set))


def read_revision(payload: bytes) -> int:
    """The newest revision in the answer to that request."""
    return number(parse(payload, 4), IPSET_ATTR_REVISION)


def _family(ip_set: IpSet) -> int:
    return 0 if ip_set.kind == "bitmap:port" else _FAMILIES[ip_set.family]


def create(ip_set: IpSet, revision: int) -> bytes:
    """The body that creates a set."""
    if ip_set.kind == "bitmap:port":
        data = _be16(IPSET_ATTR_PORT, ip_set.ports[0]) + _be16(IPSET_ATTR_PORT_TO, ip_set.ports[1])
    else:
        data = _be32(IPSET_ATTR_HASHSIZE, ip_set.hashsize) + _be32(IPSET_ATTR_MAXELEM, ip_set.maxelem)
    if ip_set.timeout_s is not None:
        data += _be32(IPSET_ATTR_TIMEOUT, ip_set.timeout_s)
    flags = (IPSET_FLAG_WITH_COMMENT if ip_set.comment else 0) | (IPSET_FLAG_WITH_SKBINFO if ip_set.marks else 0)
    if flags:
        data += _be32(IPSET_ATTR_CADT_FLAGS, flags)
    kind = text(IPSET_ATTR_TYPENAME, ip_set.kind) + u8(IPSET_ATTR_REVISION, revision)
    return set_name(ip_set.name) + kind + u8(IPSET_ATTR_FAMILY, _family(ip_set)) + nested(IPSET_ATTR_DATA, data)


def element(kind: str, key: str) -> bytes:
    """The attributes of an element's key in canonical form."""
    return b"".join(
        _dimension(dimension, value, second=at == 2)
        for at, (dimension, value) in enumerate(zip(KINDS[kind], key.split(","), strict=True))
    )


def _dimension(dimension: str, value: str, *, second: bool) -> bytes:
    if dimension == "number":
        return _be16(IPSET_ATTR_PORT, int(value))
    if dimension == "port":
        return _port(value)
    if dimension == "device":
        return text(IPSET_ATTR_IFACE, value)
    address, _, length = value.partition("/")
    packed = pack_ip(address)
    encoded = nested(IPSET_ATTR_IP2 if second else IPSET_ATTR_IP, _address(packed))
    if dimension in ("net", "within"):
        encoded += u8(IPSET_ATTR_CIDR2 if second else IPSET_ATTR_CIDR, int(length or len(packed) * 8))
    return encoded


def _address(packed: bytes) -> bytes:
    return attribute(_ADDRESS[len(packed)] | _NLA_F_NET_BYTEORDER, packed)


def _port(value: str) -> bytes:
    protocol, _, port = value.partition(":")
    kind, _, code = port.partition("/")
    number_or_icmp_type = int(kind) << 8 | int(code) if code else int(kind)
    return _be16(IPSET_ATTR_PORT, number_or_icmp_type) + u8(IPSET_ATTR_PROTO, PROTOCOLS.get(protocol) or int(protocol))


def change(ip_set: IpSet, key: str, options: IpSetElement | None) -> bytes:
    """The body that adds an element with its options, or deletes it (None)."""
    data = element(ip_set.kind, key)
    if options is not None:
        if options.timeout_s is not None:
            data += _be32(IPSET_ATTR_TIMEOUT, options.timeout_s)
        if options.nomatch:
            data += _be32(IPSET_ATTR_CADT_FLAGS, IPSET_FLAG_NOMATCH)
        if options.comment:
            data += text(IPSET_ATTR_COMMENT, options.comment)
        if options.mark is not None:
            mark, mask = options.mark
            data += attribute(IPSET_ATTR_SKBMARK | _NLA_F_NET_BYTEORDER, (mark << 32 | mask).to_bytes(8, "big"))
    return set_name(ip_set.name) + nested(IPSET_ATTR_DATA, data)


def read_name(payload: bytes) -> str:
    """The name of a set in an answer to a dump."""
    return string(parse(payload, 4), IPSET_ATTR_SETNAME)


def read_size(payload: bytes) -> tuple[str, int]:
    """The name of a set in an answer to a dump of heads, and the number of its elements."""
    attributes = parse(payload, 4)
    return string(attributes, IPSET_ATTR_SETNAME), _be(parse(attributes.get(IPSET_ATTR_DATA, b"")), IPSET_ATTR_ELEMENTS)


def read_set(payloads: list[bytes]) -> IpSet:
    """The set in the answers to a dump of one set.

    Raises: Unsupported for a type that podwire does not know; ProtocolError.
    """
    ip_set: IpSet | None = None
    elements: dict[str, IpSetElement] = {}
    for payload in payloads:
        top = parse(payload, 4)
        if IPSET_ATTR_TYPENAME in top:
            ip_set = _read_head(top)
        if ip_set is None:
            raise ProtocolError("remote", "the answer to the ipset dump does not begin with the head of a set")
        for element_data in _list_payloads(top.get(IPSET_ATTR_ADT, b"")):
            attributes = parse(element_data)
            elements[_read_key(ip_set.kind, attributes)] = _read_options(attributes)
    if ip_set is None:
        raise ProtocolError("remote", "the answer to the ipset dump holds no set")
    return msgspec.structs.replace(ip_set, elements=elements)


def _read_head(top: Mapping[int, bytes]) -> IpSet:
    kind, name = string(top, IPSET_ATTR_TYPENAME), string(top, IPSET_ATTR_SETNAME)
    if kind not in KINDS:
        raise Unsupported(f"set {name} of type {kind}", detail="podwire cannot read sets of this type")
    data = parse(top.get(IPSET_ATTR_DATA, b""))
    return IpSet(
        name=name,
        kind=kind,
        family=_FAMILY_OF.get(number(top, IPSET_ATTR_FAMILY), "inet"),
        hashsize=_be(data, IPSET_ATTR_HASHSIZE, 1024),
        maxelem=_be(data, IPSET_ATTR_MAXELEM, 65536),
        timeout_s=_be(data, IPSET_ATTR_TIMEOUT) if IPSET_ATTR_TIMEOUT in data else None,
        comment=bool(_be(data, IPSET_ATTR_CADT_FLAGS) & IPSET_FLAG_WITH_COMMENT),
        marks=bool(_be(data, IPSET_ATTR_CADT_FLAGS) & IPSET_FLAG_WITH_SKBINFO),
        ports=(_be(data, IPSET_ATTR_PORT), _be(data, IPSET_ATTR_PORT_TO, 65535)),
    )


def _list_payloads(data: bytes) -> Iterator[bytes]:
    """The payloads of a list of attributes."""
    offset = 0
    while offset + 4 <= len(data):
        (size,) = struct.unpack_from("=H", data, offset)
        if size < 4 or offset + size > len(data):
            raise ProtocolError("remote", f"an element of {size} bytes with {len(data) - offset} left")
        yield data[offset + 4 : offset + size]
        offset += size + 3 & ~3


def _read_key(kind: str, attributes: Mapping[int, bytes]) -> str:
    return ",".join(_read_dimension(dimension, attributes, second=at == 2) for at, dimension in enumerate(KINDS[kind]))


def _read_dimension(dimension: str, attributes: Mapping[int, bytes], *, second: bool) -> str:
    if dimension == "number":
        return str(_be(attributes, IPSET_ATTR_PORT))
    if dimension == "port":
        protocol, port = number(attributes, IPSET_ATTR_PROTO), _be(attributes, IPSET_ATTR_PORT)
        name = _PROTOCOL_OF.get(protocol, str(protocol))
        return f"{name}:{port >> 8}/{port & 0xFF}" if name.startswith("icmp") else f"{name}:{port}"
    if dimension == "device":
        return string(attributes, IPSET_ATTR_IFACE)
    packed = next(iter(parse(attributes.get(IPSET_ATTR_IP2 if second else IPSET_ATTR_IP, b"")).values()), b"")
    if len(packed) not in _ADDRESS:
        raise ProtocolError("remote", f"an address of {len(packed)} bytes in an element of a set")
    full_length = len(packed) * 8
    length = full_length
    if dimension in ("net", "within"):
        length = number(attributes, IPSET_ATTR_CIDR2 if second else IPSET_ATTR_CIDR, full_length)
    return unpack_ip(packed) if length == full_length else f"{unpack_ip(packed)}/{length}"


def _read_options(attributes: Mapping[int, bytes]) -> IpSetElement:
    return IpSetElement(
        timeout_s=_be(attributes, IPSET_ATTR_TIMEOUT) if IPSET_ATTR_TIMEOUT in attributes else None,
        comment=string(attributes, IPSET_ATTR_COMMENT),
        nomatch=bool(_be(attributes, IPSET_ATTR_CADT_FLAGS) & IPSET_FLAG_NOMATCH),
        mark=_read_mark(attributes.get(IPSET_ATTR_SKBMARK)),
    )


def _read_mark(data: bytes | None) -> tuple[int, int] | None:
    if data is None:
        return None
    return int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
