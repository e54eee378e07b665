"""WireGuard devices of the kernel as messages of generic netlink, and back. Pure.

``GET_DEVICE`` is a dump: the peers of a large device come in several messages, and one that continues a peer repeats
its key. ``SET_DEVICE`` changes what it names: a peer keeps its other settings, and a network that is given to a peer is
taken from the peer that had it. Lists are attributes whose elements all have the type 0.
Sources: include/uapi/linux/wireguard.h, drivers/net/wireguard/netlink.c.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from sys import byteorder
from typing import Any, NamedTuple

from podwire.kernel.attributes import attribute, nested, number, parse, spans, text, u8, u16, u32
from podwire.kernel.uapi import AF_INET, AF_INET6
from podwire.kernel.wireguard_codec import base64_key, peer_changes
from podwire.state.address import pack_ip, unpack_ip
from podwire.state.ipvs import endpoint_text
from podwire.state.udptunnel import endpoint_address
from podwire.state.wireguard import WireGuard, WireGuardPeer, key_bytes

GENL_NAME = "wireguard"
GENLMSGHDR = struct.Struct("=BBxx")
"""Command and version."""
_VERSION = 1
_GET_DEVICE, _SET_DEVICE = 0, 1
_DEVICE_IFNAME, _DEVICE_PRIVATE_KEY, _DEVICE_LISTEN_PORT, _DEVICE_PEERS = 2, 3, 6, 8
_PEER_PUBLIC_KEY, _PEER_FLAGS, _PEER_ENDPOINT, _PEER_KEEPALIVE, _PEER_HANDSHAKE, _PEER_ALLOWED = 1, 3, 4, 5, 6, 9
_REMOVE_ME, _REPLACE_ALLOWED = 1, 2
_ALLOWED_FAMILY, _ALLOWED_ADDRESS, _ALLOWED_LENGTH = 1, 2, 3
_SOCKADDR = {AF_INET: struct.Struct("=H2s4s8x"), AF_INET6: struct.Struct("=H2s4x16s4x")}
"""By family: family, port in network order, address (linux/in.h, linux/in6.h)."""
_MESSAGE_BYTES = 1 << 15
"""The peers of a message; an attribute has 64 KiB at most."""


class DeviceReading(NamedTuple):
    """A device as the kernel shows it; ``sessions`` are the public keys of the peers that have shaken hands."""

    private_key: bytes
    port: int
    peers: tuple[WireGuardPeer, ...]
    sessions: frozenset[str]


def encode_get(device: str) -> bytes:
    """The dump of a device."""
    return GENLMSGHDR.pack(_GET_DEVICE, _VERSION) + text(_DEVICE_IFNAME, device)


def decode(payloads: Iterable[bytes]) -> DeviceReading:
    """The device in the messages of a dump.

    Raises: ProtocolError for attributes of another form.
    """
    private, port = b"", 0
    peers: dict[str, dict[str, Any]] = {}
    for payload in payloads:
        fields = parse(payload, GENLMSGHDR.size)
        key = fields.get(_DEVICE_PRIVATE_KEY, b"")
        private, port = (key if any(key) else private), number(fields, _DEVICE_LISTEN_PORT, port)
        for element in _elements(fields.get(_DEVICE_PEERS, b"")):
            _decode_peer(parse(element), peers)
    sessions = frozenset(key for key, peer in peers.items() if peer["handshake"])
    return DeviceReading(private, port, tuple(_peer(key, peer) for key, peer in peers.items()), sessions)


def _decode_peer(fields: Mapping[int, bytes], peers: dict[str, dict[str, Any]]) -> None:
    key = base64_key(fields[_PEER_PUBLIC_KEY])
    peer = peers.setdefault(key, {"endpoint": "", "keepalive_s": 0, "networks": [], "handshake": False})
    if endpoint := fields.get(_PEER_ENDPOINT):
        peer["endpoint"] = _decode_endpoint(endpoint)
    peer["keepalive_s"] = number(fields, _PEER_KEEPALIVE, peer["keepalive_s"])
    peer["handshake"] = peer["handshake"] or any(fields.get(_PEER_HANDSHAKE, b""))
    for element in _elements(fields.get(_PEER_ALLOWED, b"")):
        allowed = parse(element)
        peer["networks"].append(f"{unpack_ip(allowed[_ALLOWED_ADDRESS])}/{number(allowed, _ALLOWED_LENGTH)}")


def _peer(key: str, fields: Mapping[str, Any]) -> WireGuardPeer:
    return WireGuardPeer(key, fields["endpoint"], fields["keepalive_s"], tuple(fields["networks"]))


def _elements(data: bytes) -> Iterator[bytes]:
    return (data[at : at + size] for _, at, size in spans(data))


def _decode_endpoint(data: bytes) -> str:
    family = int.from_bytes(data[:2], byteorder)
    _, port, address = _SOCKADDR[family].unpack(data)
    return endpoint_text(unpack_ip(address), int.from_bytes(port, "big"))


def encode_set(present: WireGuard, desired: WireGuard, private_key: bytes) -> list[bytes]:
    """The messages that make a device as desired, in their order; none when it is so.

    Peers are added before others are removed, so that a network that changes its peer always has one.
    """
    device = []
    if present.public_key != desired.public_key:
        device.append(attribute(_DEVICE_PRIVATE_KEY, private_key))
    if present.port != desired.port:
        device.append(u16(_DEVICE_LISTEN_PORT, desired.port))
    bodies: list[list[bytes]] = [device] if device else []
    waiting: list[bytes] = []
    size = 0
    for peer in _encode_peers(present, desired):
        if waiting and size + len(peer) > _MESSAGE_BYTES:
            bodies.append([nested(_DEVICE_PEERS, *waiting)])
            waiting, size = [], 0
        waiting.append(peer)
        size += len(peer)
    if waiting:
        bodies.append([nested(_DEVICE_PEERS, *waiting)])
    head = GENLMSGHDR.pack(_SET_DEVICE, _VERSION) + text(_DEVICE_IFNAME, desired.device)
    return [head + b"".join(body) for body in bodies]


def _encode_peers(present: WireGuard, desired: WireGuard) -> Iterator[bytes]:
    for key, peer, known in peer_changes(present, desired):
        fields = [attribute(_PEER_PUBLIC_KEY, key_bytes(key))]
        if peer is None:
            yield nested(0, *fields, u32(_PEER_FLAGS, _REMOVE_ME))
            continue
        if set(known.allowed_ips) - set(peer.allowed_ips):
            fields.append(u32(_PEER_FLAGS, _REPLACE_ALLOWED))
        if peer.endpoint and peer.endpoint != known.endpoint:
            fields.append(attribute(_PEER_ENDPOINT, _encode_endpoint(peer.endpoint)))
        if peer.keepalive_s != known.keepalive_s:
            fields.append(u16(_PEER_KEEPALIVE, peer.keepalive_s))
        yield nested(0, *fields, nested(_PEER_ALLOWED, *map(_encode_allowed, peer.allowed_ips)))


def _encode_endpoint(endpoint: str) -> bytes:
    host, port = endpoint_address(endpoint)
    address = pack_ip(host)
    family = AF_INET6 if len(address) == 16 else AF_INET
    return _SOCKADDR[family].pack(family, port.to_bytes(2, "big"), address)


def _encode_allowed(text_form: str) -> bytes:
    network = ip_network(text_form)
    family = AF_INET6 if network.version == 6 else AF_INET
    address = attribute(_ALLOWED_ADDRESS, network.network_address.packed)
    return nested(0, u16(_ALLOWED_FAMILY, family), address, u8(_ALLOWED_LENGTH, network.prefixlen))
