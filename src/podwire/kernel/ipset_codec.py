"""Messages of the nfnetlink subsystem ipset (pure): sets and elements to bytes and back.

Every message begins with the header of nfnetlink and says the protocol's version. Numbers of more than a byte are in
network order and say so in their attribute's type. An element is a message: the kernel works a thousand off in a
millisecond, and each that it refuses is told by itself. A dump answers with a message that holds the head of a set and
as many elements as have room, then with more that hold elements alone.

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
"""All that is used here is in version 6, which every kernel since 2.6.39 speaks."""

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
    4097: "the kernel does not speak this version of the protocol",
    4098: "the kernel has no such type of set",
    4099: "there are as many sets as there can be",
    4100: "a rule or another set refers to it",
    4101: "the other set is not there",
    4102: "the sets are of different types",
    4103: "the element is there already, or is not there",
    4104: "the length of a network is wrong",
    4105: "the netmask is wrong",
    4106: "the family is wrong",
    4107: "the set has no timeouts",
    4108: "a rule or another set refers to it",
    4109: "an IPv4 address is expected",
    4110: "an IPv6 address is expected",
    4111: "the set has no counters",
    4112: "the set has no comments",
    4352: "the set is full, or the element lies outside of its range",
    4353: "the element is empty",
    4354: "the protocol is wrong",
    4355: "the protocol is missing",
}
"""enum ipset_errno; those from 4352 on are of one type of sets."""


def _be16(kind: int, value: int) -> bytes:
    return attribute(kind | _NLA_F_NET_BYTEORDER, value.to_bytes(2, "big"))


def _be32(kind: int, value: int) -> bytes:
    return attribute(kind | _NLA_F_NET_BYTEORDER, value.to_bytes(4, "big"))


def _be(found: Mapping[int, bytes], kind: int, default: int = 0) -> int:
    data = found.get(kind)
    return default if data is None else int.from_bytes(data, "big")


def named(name: str) -> bytes:
    """The body of a request about one set."""
    return _HEAD + text(IPSET_ATTR_SETNAME, name)


def pair(name: str, other: str) -> bytes:
    """The body of a swap."""
    return named(name) + text(IPSET_ATTR_SETNAME2, other)


def names_only() -> bytes:
    """The body of a dump of every set's name."""
    return _HEAD + _be32(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_SETNAME)


def heads_only() -> bytes:
    """The body of a dump of every set without its elements."""
    return _HEAD + _be32(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_HEADER)


def type_question(want: IpSet) -> bytes:
    """The body of the question for the revisions of a type that the kernel has."""
    return _HEAD + text(IPSET_ATTR_TYPENAME, want.kind) + u8(IPSET_ATTR_FAMILY, _family(want))


def read_revision(payload: bytes) -> int:
    """The newest revision, of the answer to that question."""
    return number(parse(payload, 4), IPSET_ATTR_REVISION)


def _family(want: IpSet) -> int:
    return 0 if want.kind == "bitmap:port" else _FAMILIES[want.family]


def create(want: IpSet, revision: int) -> bytes:
    """The body that makes a set."""
    if want.kind == "bitmap:port":
        data = _be16(IPSET_ATTR_PORT, want.ports[0]) + _be16(IPSET_ATTR_PORT_TO, want.ports[1])
    else:
        data = _be32(IPSET_ATTR_HASHSIZE, want.hashsize) + _be32(IPSET_ATTR_MAXELEM, want.maxelem)
    if want.timeout_s is not None:
        data += _be32(IPSET_ATTR_TIMEOUT, want.timeout_s)
    flags = (IPSET_FLAG_WITH_COMMENT if want.comment else 0) | (IPSET_FLAG_WITH_SKBINFO if want.marks else 0)
    if flags:
        data += _be32(IPSET_ATTR_CADT_FLAGS, flags)
    kind = text(IPSET_ATTR_TYPENAME, want.kind) + u8(IPSET_ATTR_REVISION, revision)
    return named(want.name) + kind + u8(IPSET_ATTR_FAMILY, _family(want)) + nested(IPSET_ATTR_DATA, data)


def element(kind: str, key: str) -> bytes:
    """The attributes of an element's key in canonical form."""
    return b"".join(
        _part(part, word, second=at == 2)
        for at, (part, word) in enumerate(zip(KINDS[kind], key.split(","), strict=True))
    )


def _part(part: str, word: str, *, second: bool) -> bytes:
    if part == "number":
        return _be16(IPSET_ATTR_PORT, int(word))
    if part == "port":
        return _port(word)
    if part == "device":
        return text(IPSET_ATTR_IFACE, word)
    address, _, length = word.partition("/")
    packed = pack_ip(address)
    found = nested(IPSET_ATTR_IP2 if second else IPSET_ATTR_IP, _address(packed))
    if part in ("net", "within"):
        found += u8(IPSET_ATTR_CIDR2 if second else IPSET_ATTR_CIDR, int(length or len(packed) * 8))
    return found


def _address(packed: bytes) -> bytes:
    return attribute(_ADDRESS[len(packed)] | _NLA_F_NET_BYTEORDER, packed)


def _port(word: str) -> bytes:
    protocol, _, port = word.partition(":")
    kind, _, code = port.partition("/")
    value = int(kind) << 8 | int(code) if code else int(kind)
    return _be16(IPSET_ATTR_PORT, value) + u8(IPSET_ATTR_PROTO, PROTOCOLS.get(protocol) or int(protocol))


def change(want: IpSet, key: str, options: IpSetElement | None) -> bytes:
    """The body that adds an element with its options, or (None) takes it away."""
    data = element(want.kind, key)
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
    return named(want.name) + nested(IPSET_ATTR_DATA, data)


def read_name(payload: bytes) -> str:
    """The name in an answer of a dump."""
    return string(parse(payload, 4), IPSET_ATTR_SETNAME)


def read_size(payload: bytes) -> tuple[str, int]:
    """The name in an answer of a dump of heads, and the number of elements."""
    found = parse(payload, 4)
    return string(found, IPSET_ATTR_SETNAME), _be(parse(found.get(IPSET_ATTR_DATA, b"")), IPSET_ATTR_ELEMENTS)


def read_set(payloads: list[bytes]) -> IpSet:
    """The set that the answers of a dump of one set tell.

    Raises: Unsupported for a type that is not known here; ProtocolError.
    """
    found: IpSet | None = None
    elements: dict[str, IpSetElement] = {}
    for payload in payloads:
        top = parse(payload, 4)
        if IPSET_ATTR_TYPENAME in top:
            found = _read_head(top)
        if found is None:
            raise ProtocolError("remote", "the answer to the ipset dump does not begin with the head of a set")
        for each in _listed(top.get(IPSET_ATTR_ADT, b"")):
            attributes = parse(each)
            elements[_read_key(found.kind, attributes)] = _read_options(attributes)
    if found is None:
        raise ProtocolError("remote", "the answer to the ipset dump holds no set")
    return msgspec.structs.replace(found, elements=elements)


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


def _listed(data: bytes) -> Iterator[bytes]:
    """The payloads of a list of attributes."""
    offset = 0
    while offset + 4 <= len(data):
        (size,) = struct.unpack_from("=H", data, offset)
        if size < 4 or offset + size > len(data):
            raise ProtocolError("remote", f"an element of {size} bytes with {len(data) - offset} left")
        yield data[offset + 4 : offset + size]
        offset += size + 3 & ~3


def _read_key(kind: str, found: Mapping[int, bytes]) -> str:
    return ",".join(_read_part(part, found, second=at == 2) for at, part in enumerate(KINDS[kind]))


def _read_part(part: str, found: Mapping[int, bytes], *, second: bool) -> str:
    if part == "number":
        return str(_be(found, IPSET_ATTR_PORT))
    if part == "port":
        protocol, port = number(found, IPSET_ATTR_PROTO), _be(found, IPSET_ATTR_PORT)
        name = _PROTOCOL_OF.get(protocol, str(protocol))
        return f"{name}:{port >> 8}/{port & 0xFF}" if name.startswith("icmp") else f"{name}:{port}"
    if part == "device":
        return string(found, IPSET_ATTR_IFACE)
    packed = next(iter(parse(found.get(IPSET_ATTR_IP2 if second else IPSET_ATTR_IP, b"")).values()), b"")
    if len(packed) not in _ADDRESS:
        raise ProtocolError("remote", f"an address of {len(packed)} bytes in an element of a set")
    whole = len(packed) * 8
    length = (
        number(found, IPSET_ATTR_CIDR2 if second else IPSET_ATTR_CIDR, whole) if part in ("net", "within") else whole
    )
    return unpack_ip(packed) if length == whole else f"{unpack_ip(packed)}/{length}"


def _read_options(found: Mapping[int, bytes]) -> IpSetElement:
    return IpSetElement(
        timeout_s=_be(found, IPSET_ATTR_TIMEOUT) if IPSET_ATTR_TIMEOUT in found else None,
        comment=string(found, IPSET_ATTR_COMMENT),
        nomatch=bool(_be(found, IPSET_ATTR_CADT_FLAGS) & IPSET_FLAG_NOMATCH),
        mark=_read_mark(found.get(IPSET_ATTR_SKBMARK)),
    )


def _read_mark(data: bytes | None) -> tuple[int, int] | None:
    if data is None:
        return None
    return int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
