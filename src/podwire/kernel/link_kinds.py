"""The rtnetlink attributes of kinds of devices, which ``state.link_kinds`` describes. Pure.

A row turns the options of a kind into the payload of IFLA_INFO_DATA and back. A kind without options needs no row.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from podwire.kernel.attributes import attribute, be16, number, u8, u16, u32
from podwire.kernel.uapi import (
    IFF_TAP,
    IFLA_GENEVE_COLLECT_METADATA,
    IFLA_GENEVE_ID,
    IFLA_GENEVE_PORT,
    IFLA_GENEVE_REMOTE,
    IFLA_GENEVE_REMOTE6,
    IFLA_IPTUN_LOCAL,
    IFLA_IPTUN_REMOTE,
    IFLA_IPTUN_TTL,
    IFLA_IPVLAN_MODE,
    IFLA_MACVLAN_MODE,
    IFLA_TUN_TYPE,
    IFLA_VLAN_ID,
    IFLA_VXLAN_ID,
    IFLA_VXLAN_LEARNING,
    IFLA_VXLAN_LINK,
    IFLA_VXLAN_LOCAL,
    IFLA_VXLAN_LOCAL6,
    IFLA_VXLAN_PORT,
    IFLA_VXLAN_TTL,
)
from podwire.state.address import is_v6, pack_ip, unpack_ip
from podwire.state.link import Link
from podwire.state.link_kinds import Geneve, IpTunnel, Vlan, Vxlan

MACVLAN_MODES = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8, "source": 16}
"""MACVLAN_MODE_*, if_link.h."""

IPVLAN_MODES = {"l2": 0, "l3": 1, "l3s": 2}
"""IPVLAN_MODE_*, if_link.h."""

Data = Mapping[int, bytes]
"""The attributes inside IFLA_INFO_DATA."""


class LinkCodec(NamedTuple):
    """The rtnetlink encoding of one kind of device."""

    encode: Callable[[Link, Mapping[str, int]], bytes]
    """The payload of IFLA_INFO_DATA, from interface indexes by name; KeyError for a missing device."""
    decode: Callable[[Data], Mapping[str, Any]]
    """The fields of the link that the attributes contain, without the lower device."""
    lower: int = 0
    """The attribute with the index of the lower device; 0: IFLA_LINK."""
    forwards: bool = False
    """Whether the device has a forwarding table, whose entries are ``fdb`` objects."""
    encode_change: Callable[[Link, Mapping[str, int]], bytes] | None = None
    """As ``encode``, with the adjustable options alone; None for kinds without such options."""


def _encode_vlan(link: Link, _indexes: Mapping[str, int]) -> bytes:
    vlan = link.attributes
    assert isinstance(vlan, Vlan), "the link checks the type of its attributes"
    return u16(IFLA_VLAN_ID, vlan.vid)


def _decode_vlan(data: Data) -> Mapping[str, Any]:
    return {"attributes": Vlan(number(data, IFLA_VLAN_ID))}


def _encode_vxlan(link: Link, indexes: Mapping[str, int]) -> bytes:
    vxlan = link.attributes
    assert isinstance(vxlan, Vxlan), "the link checks the type of its attributes"
    parts = [
        u32(IFLA_VXLAN_ID, vxlan.vni),
        be16(IFLA_VXLAN_PORT, vxlan.port),
        u8(IFLA_VXLAN_LEARNING, int(vxlan.learning)),
    ]
    if vxlan.ttl:
        parts.append(u8(IFLA_VXLAN_TTL, vxlan.ttl))
    return b"".join((*parts, _encode_vxlan_underlay(link, indexes)))


def _encode_vxlan_underlay(link: Link, indexes: Mapping[str, int]) -> bytes:
    """The options that a device can be given later; the kernel refuses the others even when they are the same."""
    vxlan = link.attributes
    assert isinstance(vxlan, Vxlan), "the link checks the type of its attributes"
    parts = []
    if vxlan.local:
        kind = IFLA_VXLAN_LOCAL6 if is_v6(vxlan.local) else IFLA_VXLAN_LOCAL
        parts.append(attribute(kind, pack_ip(vxlan.local)))
    if vxlan.device:
        parts.append(u32(IFLA_VXLAN_LINK, indexes[vxlan.device]))
    return b"".join(parts)


def _decode_vxlan(data: Data) -> Mapping[str, Any]:
    local = data.get(IFLA_VXLAN_LOCAL) or data.get(IFLA_VXLAN_LOCAL6) or b""
    vxlan = Vxlan(
        vni=number(data, IFLA_VXLAN_ID),
        port=int.from_bytes(data.get(IFLA_VXLAN_PORT, b"\0"), "big"),
        local=unpack_ip(local) if any(local) else "",
        learning=bool(number(data, IFLA_VXLAN_LEARNING)),
        ttl=number(data, IFLA_VXLAN_TTL),
    )
    return {"attributes": vxlan}


def _encode_ip_tunnel(link: Link, _indexes: Mapping[str, int]) -> bytes:
    tunnel = link.attributes
    assert isinstance(tunnel, IpTunnel), "the link checks the type of its attributes"
    parts = [u8(IFLA_IPTUN_TTL, tunnel.ttl)]
    if tunnel.local:
        parts.append(attribute(IFLA_IPTUN_LOCAL, pack_ip(tunnel.local)))
    if tunnel.remote:
        parts.append(attribute(IFLA_IPTUN_REMOTE, pack_ip(tunnel.remote)))
    return b"".join(parts)


def _decode_ip_tunnel(data: Data) -> Mapping[str, Any]:
    local, remote = data.get(IFLA_IPTUN_LOCAL, b""), data.get(IFLA_IPTUN_REMOTE, b"")
    tunnel = IpTunnel(
        local=unpack_ip(local) if any(local) else "",
        remote=unpack_ip(remote) if any(remote) else "",
        ttl=number(data, IFLA_IPTUN_TTL),
    )
    return {"attributes": tunnel}


def _encode_geneve(link: Link, _indexes: Mapping[str, int]) -> bytes:
    geneve = link.attributes
    assert isinstance(geneve, Geneve), "the link checks the type of its attributes"
    parts = [be16(IFLA_GENEVE_PORT, geneve.port)]
    if geneve.external:
        return b"".join([*parts, attribute(IFLA_GENEVE_COLLECT_METADATA, b"")])
    parts.append(u32(IFLA_GENEVE_ID, geneve.vni))
    if geneve.remote:
        kind = IFLA_GENEVE_REMOTE6 if is_v6(geneve.remote) else IFLA_GENEVE_REMOTE
        parts.append(attribute(kind, pack_ip(geneve.remote)))
    return b"".join(parts)


def _decode_geneve(data: Data) -> Mapping[str, Any]:
    remote = data.get(IFLA_GENEVE_REMOTE) or data.get(IFLA_GENEVE_REMOTE6) or b""
    geneve = Geneve(
        vni=number(data, IFLA_GENEVE_ID),
        remote=unpack_ip(remote) if any(remote) else "",
        port=int.from_bytes(data.get(IFLA_GENEVE_PORT, b"\0"), "big"),
        external=IFLA_GENEVE_COLLECT_METADATA in data,
    )
    return {"attributes": geneve}


def _mode_codec(key: int, form: str, modes: Mapping[str, int]) -> LinkCodec:
    """The codec of a kind whose only option is a mode: an attribute with this number and struct format."""

    def encode(link: Link, _indexes: Mapping[str, int]) -> bytes:
        if not link.mode:
            return b""
        if link.mode not in modes:
            raise ValueError(f"{link.mode!r} is not a mode of {link.kind}: {', '.join(modes)}")
        return attribute(key, struct.pack(form, modes[link.mode]))

    def decode(data: Data) -> Mapping[str, Any]:
        value = number(data, key)
        return {"mode": next((name for name, known in modes.items() if known == value), str(value))}

    return LinkCodec(encode, decode)


def _decode_tun(data: Data) -> Mapping[str, Any]:
    return {"mode": "tap"} if number(data, IFLA_TUN_TYPE) == IFF_TAP else {}


CODECS: dict[str, LinkCodec] = {
    "vlan": LinkCodec(_encode_vlan, _decode_vlan),
    "vxlan": LinkCodec(
        _encode_vxlan, _decode_vxlan, lower=IFLA_VXLAN_LINK, forwards=True, encode_change=_encode_vxlan_underlay
    ),
    "ipip": LinkCodec(_encode_ip_tunnel, _decode_ip_tunnel),
    "sit": LinkCodec(_encode_ip_tunnel, _decode_ip_tunnel),
    "geneve": LinkCodec(_encode_geneve, _decode_geneve),
    "macvlan": _mode_codec(IFLA_MACVLAN_MODE, "=I", MACVLAN_MODES),
    "ipvlan": _mode_codec(IFLA_IPVLAN_MODE, "=H", IPVLAN_MODES),
    "tun": LinkCodec(lambda _link, _indexes: b"", _decode_tun),
}

NO_OPTIONS = LinkCodec(lambda _link, _indexes: b"", lambda _data: {})
"""The row of every kind that has none in the list."""


def codec_of(kind: str) -> LinkCodec:
    """The row of a kind; ``NO_OPTIONS`` when the list has none."""
    return CODECS.get(kind, NO_OPTIONS)
