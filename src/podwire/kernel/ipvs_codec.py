"""Messages of IPVS' generic netlink family, as bytes (include/uapi/linux/ip_vs.h). Pure.

A command carries a virtual server (``IPVS_CMD_ATTR_SERVICE``) and, if needed, a real server (``IPVS_CMD_ATTR_DEST``),
both as nested attributes. Family, protocol, address and port identify a server; a command that creates or changes it
also needs scheduler, flags, timeout and mask. Ports and IPv4 masks are in network order, addresses always have 16
bytes.
"""

import struct
from collections.abc import Mapping

from podwire.kernel.attributes import attribute, be16, nested, number, parse, string, text, u32
from podwire.kernel.uapi import AF_INET, AF_INET6
from podwire.state.address import pack_ip, unpack_ip
from podwire.state.ipvs import FLAG_1, FLAG_2, FLAG_3, WHOLE, Destination, Key, Protocol, VirtualServer

IPVS_GENL_NAME = "IPVS"
IPVS_CMD_NEW_SERVICE, IPVS_CMD_SET_SERVICE, IPVS_CMD_DEL_SERVICE, IPVS_CMD_GET_SERVICE = 1, 2, 3, 4
IPVS_CMD_NEW_DEST, IPVS_CMD_SET_DEST, IPVS_CMD_DEL_DEST, IPVS_CMD_GET_DEST = 5, 6, 7, 8
IPVS_CMD_SET_CONFIG, IPVS_CMD_GET_CONFIG, IPVS_CMD_SET_INFO, IPVS_CMD_GET_INFO = 12, 13, 14, 15
_VERSION = 1

_CMD_SERVICE, _CMD_DEST = 1, 2
_CMD_TIMEOUT_TCP, _CMD_TIMEOUT_TCP_FIN, _CMD_TIMEOUT_UDP = 4, 5, 6
_SVC_AF, _SVC_PROTOCOL, _SVC_ADDR, _SVC_PORT, _SVC_FWMARK = 1, 2, 3, 4, 5
_SVC_SCHED_NAME, _SVC_FLAGS, _SVC_TIMEOUT, _SVC_NETMASK = 6, 7, 8, 9
_DEST_ADDR, _DEST_PORT, _DEST_FWD_METHOD, _DEST_WEIGHT, _DEST_U_THRESH, _DEST_L_THRESH = 1, 2, 3, 4, 5, 6
_DEST_ACTIVE_CONNS, _DEST_INACT_CONNS, _DEST_ADDR_FAMILY = 7, 8, 11
_PERSISTENT = 0x01  # IP_VS_SVC_F_PERSISTENT
_ALL_BITS = 0xFFFFFFFF

_PROTOCOLS: dict[Protocol, int] = {"tcp": 6, "udp": 17, "sctp": 132}
_NAMES = {value: name for name, value in _PROTOCOLS.items()}
_FORWARDS = {"masq": 0, "tunnel": 2, "route": 3}
_FORWARD_NAMES = {value: name for name, value in _FORWARDS.items()}
_FORWARD_MASK = 0x7

GENLMSGHDR_SIZE = 4


def _header(command: int) -> bytes:
    return struct.pack("=BBxx", command, _VERSION)


def _u16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=H", value))


def _address(kind: int, text_form: str) -> bytes:
    return attribute(kind, pack_ip(text_form).ljust(16, b"\0"))


def _family(address: str) -> int:
    return AF_INET6 if ":" in address else AF_INET


def _key(key: Key) -> tuple[bytes, ...]:
    return (
        _u16(_SVC_AF, _family(key.address)),
        _u16(_SVC_PROTOCOL, _PROTOCOLS[key.protocol]),
        _address(_SVC_ADDR, key.address),
        be16(_SVC_PORT, key.port),
    )


def encode_server(command: int, server: VirtualServer) -> bytes:
    """Creates (NEW_SERVICE) or changes (SET_SERVICE) a virtual server, without its destinations."""
    flags = server.flags | (_PERSISTENT if server.persistent_s else 0)
    mask = FLAG_1 | FLAG_2 | FLAG_3 | _PERSISTENT
    fields = (
        *_key(server.key),
        text(_SVC_SCHED_NAME, server.scheduler),
        attribute(_SVC_FLAGS, struct.pack("=II", flags, mask)),
        u32(_SVC_TIMEOUT, server.persistent_s),
        attribute(_SVC_NETMASK, _netmask(server)),
    )
    return _header(command) + nested(_CMD_SERVICE, *fields)


def _netmask(server: VirtualServer) -> bytes:
    six = ":" in server.key.address
    bits = server.client_bits or WHOLE[six]
    if six:
        return struct.pack("=I", bits)
    return (_ALL_BITS << (32 - bits) & _ALL_BITS).to_bytes(4, "big")


def encode_key(command: int, key: Key) -> bytes:
    """A command that needs only the key of a virtual server: DEL_SERVICE, GET_DEST."""
    return _header(command) + nested(_CMD_SERVICE, *_key(key))


def encode_destination(command: int, key: Key, destination: Destination) -> bytes:
    """Creates, changes or removes a real server."""
    fields = (
        _u16(_DEST_ADDR_FAMILY, _family(destination.address)),
        _address(_DEST_ADDR, destination.address),
        be16(_DEST_PORT, destination.port),
        u32(_DEST_FWD_METHOD, _FORWARDS[destination.forward]),
        u32(_DEST_WEIGHT, destination.weight),
        u32(_DEST_U_THRESH, 0),
        u32(_DEST_L_THRESH, 0),
    )
    return encode_key(command, key) + nested(_CMD_DEST, *fields)


def encode_plain(command: int) -> bytes:
    """A command without arguments: GET_SERVICE (all), GET_CONFIG."""
    return _header(command)


def encode_timeouts(tcp_s: int, tcp_fin_s: int, udp_s: int) -> bytes:
    """SET_CONFIG: seconds until an idle connection is deleted; 0 keeps the kernel's value."""
    pairs = ((_CMD_TIMEOUT_TCP, tcp_s), (_CMD_TIMEOUT_TCP_FIN, tcp_fin_s), (_CMD_TIMEOUT_UDP, udp_s))
    return _header(IPVS_CMD_SET_CONFIG) + b"".join(u32(kind, value) for kind, value in pairs)


def decode_timeouts(payload: bytes) -> tuple[int, int, int]:
    """The answer to GET_CONFIG: seconds for tcp, tcpfin, udp."""
    attributes = parse(payload, GENLMSGHDR_SIZE)
    return (
        number(attributes, _CMD_TIMEOUT_TCP),
        number(attributes, _CMD_TIMEOUT_TCP_FIN),
        number(attributes, _CMD_TIMEOUT_UDP),
    )


def decode_server(payload: bytes) -> VirtualServer | None:
    """A virtual server without its destinations; None for one selected by a mark or of another protocol."""
    attributes = parse(parse(payload, GENLMSGHDR_SIZE).get(_CMD_SERVICE, b""))
    protocol = _NAMES.get(number(attributes, _SVC_PROTOCOL))
    if _SVC_FWMARK in attributes or protocol is None:
        return None
    address = _decode_address(attributes, _SVC_ADDR, number(attributes, _SVC_AF))
    (flags,) = struct.unpack_from("=I", attributes.get(_SVC_FLAGS, bytes(4)))
    return VirtualServer(
        key=Key(protocol, address, _decode_port(attributes, _SVC_PORT)),
        scheduler=string(attributes, _SVC_SCHED_NAME),
        flags=flags & (FLAG_1 | FLAG_2 | FLAG_3),
        persistent_s=number(attributes, _SVC_TIMEOUT) if flags & _PERSISTENT else 0,
        client_bits=_decode_bits(attributes, ":" in address),
    )


def _decode_bits(attributes: Mapping[int, bytes], six: bool) -> int:
    """The prefix length by which clients are grouped; 0 stands for the whole address."""
    data = attributes.get(_SVC_NETMASK, b"\xff" * 4)
    bits = struct.unpack("=I", data)[0] if six else int.from_bytes(data, "big").bit_count()
    return 0 if bits == WHOLE[six] else int(bits)


def decode_destination(payload: bytes, key: Key) -> tuple[Destination, int]:
    """A real server of a virtual server, and the number of its connections, active and inactive."""
    attributes = parse(parse(payload, GENLMSGHDR_SIZE).get(_CMD_DEST, b""))
    family = number(attributes, _DEST_ADDR_FAMILY, _family(key.address))
    destination = Destination(
        address=_decode_address(attributes, _DEST_ADDR, family),
        port=_decode_port(attributes, _DEST_PORT),
        weight=number(attributes, _DEST_WEIGHT),
        forward=_FORWARD_NAMES.get(number(attributes, _DEST_FWD_METHOD) & _FORWARD_MASK, "local"),
    )
    return destination, number(attributes, _DEST_ACTIVE_CONNS) + number(attributes, _DEST_INACT_CONNS)


def _decode_address(attributes: Mapping[int, bytes], kind: int, family: int) -> str:
    data = attributes.get(kind, bytes(16))
    return unpack_ip(data[:16] if family == AF_INET6 else data[:4])


def _decode_port(attributes: Mapping[int, bytes], kind: int) -> int:
    return int.from_bytes(attributes.get(kind, b"\0\0"), "big")
