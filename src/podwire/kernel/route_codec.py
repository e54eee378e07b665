"""Addresses, routes, neighbours and forwarding entries as rtnetlink messages and back. Pure.

Sources: rtnetlink(7); include/uapi/linux/{rtnetlink,if_addr,neighbour}.h; net/ipv4/fib_frontend.c and
net/ipv6/route.c for defaults. Encoders raise KeyError with the name of a device that is not in ``indexes``. Decoders
return None for objects that the kernel makes itself: local and kernel routes, multicast, learned neighbours. Cost: 2-4
us to encode a value, 4-8 us to decode one; :mod:`podwire.kernel.route_lists` and
:mod:`podwire.kernel.neighbour_lists` decode many.

``proto`` is also written to neighbours (NDA_PROTOCOL, kernel 4.20) and addresses (IFA_PROTO, 5.18), so that every
object carries its owner's mark. Forwarding entries have no field for it.
"""

import struct
from collections.abc import Collection, Mapping
from typing import Any

from podwire.kernel.attributes import attribute, nested, number, parse, u8, u32
from podwire.kernel.uapi import (
    AF_BRIDGE,
    AF_INET,
    AF_INET6,
    AF_UNSPEC,
    IFA_ADDRESS,
    IFA_BROADCAST,
    IFA_CACHEINFO,
    IFA_F_DEPRECATED,
    IFA_F_NODAD,
    IFA_F_NOPREFIXROUTE,
    IFA_FLAGS,
    IFA_LOCAL,
    IFA_PROTO,
    IFA_TARGET_NETNSID,
    LWTUNNEL_ENCAP_IP,
    LWTUNNEL_ENCAP_IP6,
    LWTUNNEL_IP_DST,
    LWTUNNEL_IP_ID,
    LWTUNNEL_IP_TTL,
    NDA_DST,
    NDA_LLADDR,
    NDA_MASTER,
    NDA_PROTOCOL,
    NTF_MASTER,
    NTF_PROXY,
    NTF_SELF,
    NUD_NOARP,
    NUD_PERMANENT,
    NUD_REACHABLE,
    RT_SCOPE_HOST,
    RT_SCOPE_LINK,
    RT_SCOPE_UNIVERSE,
    RT_TABLE_COMPAT,
    RT_TABLE_LOCAL,
    RT_TABLE_MAIN,
    RTA_DST,
    RTA_ENCAP,
    RTA_ENCAP_TYPE,
    RTA_GATEWAY,
    RTA_METRICS,
    RTA_MULTIPATH,
    RTA_OIF,
    RTA_PREFSRC,
    RTA_PRIORITY,
    RTA_TABLE,
    RTA_VIA,
    RTAX_MTU,
    RTM_F_CLONED,
    RTN_BLACKHOLE,
    RTN_BROADCAST,
    RTN_LOCAL,
    RTN_PROHIBIT,
    RTN_THROW,
    RTN_UNICAST,
    RTN_UNREACHABLE,
    RTNH_F_ONLINK,
    RTPROT_KERNEL,
)
from podwire.state.address import address_bytes, is_v6, pack_ip, pack_mac, unpack_ip, unpack_mac
from podwire.state.route import Address, Fdb, Neighbour, Route, usual_scope

IFADDRMSG = struct.Struct("=BBBBI")
"""Family, prefix length, flags, scope, index."""

RTMSG = struct.Struct("=BBBBBBBBI")
"""Family, dst length, src length, tos, table, protocol, scope, type, flags."""

_PLAIN_ROUTE = struct.Struct("=HH4sHH4sHHI")
"""RTA_DST, RTA_GATEWAY and RTA_OIF of an IPv4 route."""

_PLAIN_FDB = struct.Struct("=HH6sxxHH4s")
"""NDA_LLADDR and NDA_DST of a forwarding entry with an IPv4 destination."""

_PLAIN_NEIGHBOUR = struct.Struct("=HH4sHH6sxxHHBxxx")
"""NDA_DST, NDA_LLADDR and NDA_PROTOCOL of an IPv4 neighbour."""

NDMSG = struct.Struct("=BxxxiHBB")
"""Family, index, state, flags, type."""

SCOPES = {"global": RT_SCOPE_UNIVERSE, "link": RT_SCOPE_LINK, "host": RT_SCOPE_HOST}
_SCOPE_NAMES = {number: name for name, number in SCOPES.items()}
KINDS = {
    "unicast": RTN_UNICAST,
    "local": RTN_LOCAL,
    "broadcast": RTN_BROADCAST,
    "blackhole": RTN_BLACKHOLE,
    "unreachable": RTN_UNREACHABLE,
    "prohibit": RTN_PROHIBIT,
    "throw": RTN_THROW,
}
_KIND_NAMES = {number: name for name, number in KINDS.items()}
_NO_DEVICE = ("blackhole", "unreachable", "prohibit", "throw")
_OWN_PROTOCOLS = range(112, 120)
"""The owner marks of podwire's routes."""


def family_of(text_form: str) -> int:
    """AF_INET or AF_INET6."""
    return AF_INET6 if is_v6(text_form) else AF_INET


def split_prefix(cidr: str) -> tuple[bytes, int]:
    """The packed address and the length of a prefix."""
    address, _, length = cidr.partition("/")
    return address_bytes(address), int(length)


# Addresses


_LIFETIMES, _FOREVER = struct.Struct("=IIII"), 0xFFFFFFFF  # struct ifa_cacheinfo, INFINITY_LIFE_TIME: linux/if_addr.h


def encode_address(address: Address, indexes: Mapping[str, int]) -> bytes:
    """RTM_NEWADDR or RTM_DELADDR. IPv4 gets its subnet's broadcast address as from ip(8) with ``brd +``."""
    packed, length = split_prefix(address.cidr)
    family = family_of(address.cidr)
    flags = IFA_F_NOPREFIXROUTE if address.noprefixroute else 0
    if family == AF_INET6 and address.nodad:
        flags |= IFA_F_NODAD
    scope = SCOPES[address.scope or "global"]
    parts = [
        IFADDRMSG.pack(family, length, flags & 0xFF, scope, indexes[address.link]),
        attribute(IFA_LOCAL, packed),
        attribute(IFA_ADDRESS, packed),
    ]
    if flags:
        parts.append(u32(IFA_FLAGS, flags))
    if family == AF_INET and length < 31:
        ones = (1 << (32 - length)) - 1
        parts.append(attribute(IFA_BROADCAST, (int.from_bytes(packed, "big") | ones).to_bytes(4, "big")))
    if address.deprecated:
        parts.append(attribute(IFA_CACHEINFO, _LIFETIMES.pack(0, _FOREVER, 0, 0)))
    if address.proto:
        parts.append(u8(IFA_PROTO, address.proto))
    return b"".join(parts)


def encode_address_dump() -> bytes:
    """RTM_GETADDR for all."""
    return IFADDRMSG.pack(AF_UNSPEC, 0, 0, 0, 0)


def encode_address_dump_elsewhere(place: int) -> bytes:
    """RTM_GETADDR for all addresses of the namespace with this number (Linux 5.0); needs NETLINK_GET_STRICT_CHK."""
    return IFADDRMSG.pack(AF_UNSPEC, 0, 0, 0, 0) + u32(IFA_TARGET_NETNSID, place)


def decode_address(payload: bytes, names: Mapping[int, str]) -> Address | None:
    """The address in an RTM_NEWADDR payload; None when its device is not in ``names``."""
    family, length, flags, scope, index = IFADDRMSG.unpack_from(payload)
    attributes = parse(payload, IFADDRMSG.size)
    packed = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
    if index not in names or packed is None:
        return None
    flags = number(attributes, IFA_FLAGS, flags)
    return Address(
        link=names[index],
        cidr=f"{unpack_ip(packed)}/{length}",
        nodad=family == AF_INET or bool(flags & IFA_F_NODAD),
        noprefixroute=bool(flags & IFA_F_NOPREFIXROUTE),
        deprecated=bool(flags & IFA_F_DEPRECATED),
        scope="" if scope == RT_SCOPE_UNIVERSE else _SCOPE_NAMES.get(scope, str(scope)),
        proto=number(attributes, IFA_PROTO),
    )


# Routes


def encode_route(route: Route, indexes: Mapping[str, int]) -> bytes:
    """RTM_NEWROUTE or RTM_DELROUTE."""
    dst, via, link, table = route.dst, route.via, route.link, route.table
    packed, length = (b"\0\0\0\0", 0) if dst == "default" else split_prefix(dst)
    family = AF_INET6 if len(packed) == 16 else AF_INET
    scope = SCOPES[route.scope or usual_scope(route)] if family == AF_INET else RT_SCOPE_UNIVERSE
    flags = RTNH_F_ONLINK if route.onlink else 0
    kind = KINDS[route.kind]
    if via and link and length and family == AF_INET and not (route.mtu or route.metric or table > 255 or route.encap):
        head = RTMSG.pack(family, length, 0, 0, table, route.proto, scope, kind, flags)
        return head + _encode_plain(packed, pack_ip(via), indexes[link], route.src)
    short = table if table < 256 else RT_TABLE_COMPAT
    parts = [RTMSG.pack(family, length, 0, 0, short, route.proto, scope, kind, flags)]
    if length:
        parts.append(attribute(RTA_DST, packed))
    if via:
        parts.append(_encode_via(family, via))
    if link and route.kind not in _NO_DEVICE:
        parts.append(u32(RTA_OIF, indexes[link]))
    if route.src:
        parts.append(attribute(RTA_PREFSRC, pack_ip(route.src)))
    if route.mtu:
        parts.append(nested(RTA_METRICS, u32(RTAX_MTU, route.mtu)))
    if route.metric:
        parts.append(u32(RTA_PRIORITY, route.metric))
    if table > 255:
        parts.append(u32(RTA_TABLE, table))
    if route.encap:
        parts.append(_encode_encap(route))
    return b"".join(parts)


def _encode_plain(dst: bytes, gateway: bytes, index: int, src: str) -> bytes:
    """The attributes of an IPv4 route that has no others than these, as nearly all have: three calls instead of eight.

    The next hop may be of IPv6.
    """
    source = attribute(RTA_PREFSRC, pack_ip(src)) if src else b""
    if len(gateway) == 4:
        return _PLAIN_ROUTE.pack(8, RTA_DST, dst, 8, RTA_GATEWAY, gateway, 8, RTA_OIF, index) + source
    via = attribute(RTA_VIA, struct.pack("=H", AF_INET6) + gateway)
    return attribute(RTA_DST, dst) + via + u32(RTA_OIF, index) + source


def _encode_encap(route: Route) -> bytes:
    """The outer header that the route gives its packets (include/uapi/linux/lwtunnel.h)."""
    kind = LWTUNNEL_ENCAP_IP6 if route.encap == "ip6" else LWTUNNEL_ENCAP_IP
    parts = (
        attribute(LWTUNNEL_IP_ID, route.tunnel_id.to_bytes(8, "big")),
        attribute(LWTUNNEL_IP_DST, pack_ip(route.tunnel_dst)),
        u8(LWTUNNEL_IP_TTL, route.tunnel_hop_limit if route.encap == "ip6" else route.tunnel_ttl),
    )
    return nested(RTA_ENCAP, *parts) + attribute(RTA_ENCAP_TYPE, struct.pack("=H", kind))


def _decode_encap(attributes: Mapping[int, bytes]) -> dict[str, Any]:
    """The fields of a route that give its packets an outer header."""
    kind = number(attributes, RTA_ENCAP_TYPE)
    if kind not in (LWTUNNEL_ENCAP_IP, LWTUNNEL_ENCAP_IP6):
        return {}
    outer = parse(attributes.get(RTA_ENCAP, b""))
    v6 = kind == LWTUNNEL_ENCAP_IP6
    return {
        "encap": "ip6" if v6 else "ip",
        "tunnel_id": int.from_bytes(outer.get(LWTUNNEL_IP_ID, b""), "big"),
        "tunnel_dst": unpack_ip(outer[LWTUNNEL_IP_DST]),
        "tunnel_hop_limit" if v6 else "tunnel_ttl": number(outer, LWTUNNEL_IP_TTL),
    }


def _encode_via(family: int, via: str) -> bytes:
    packed = pack_ip(via)
    if len(packed) == (16 if family == AF_INET6 else 4):
        return attribute(RTA_GATEWAY, packed)
    return attribute(RTA_VIA, struct.pack("=H", family_of(via)) + packed)


def encode_route_dump(family: int, *, proto: int = 0) -> bytes:
    """RTM_GETROUTE for a family's routes in all tables, of one protocol or (0) of all.

    The kernel filters only with NETLINK_GET_STRICT_CHK; otherwise it sends all routes.
    """
    return RTMSG.pack(family, 0, 0, 0, 0, proto, 0, 0, 0)


def encode_lookup(address: str) -> bytes:
    """RTM_GETROUTE for the route to an address."""
    packed = pack_ip(address)
    family = AF_INET6 if len(packed) == 16 else AF_INET
    head = RTMSG.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
    return head + attribute(RTA_DST, packed)


def is_local(payload: bytes) -> bool:
    """Whether the route in an RTM_NEWROUTE payload delivers to this machine."""
    return bool(RTMSG.unpack_from(payload)[7] == RTN_LOCAL)


def is_path(payload: bytes, passed_over: Collection[int]) -> bool:
    """Whether the route in an RTM_NEWROUTE payload is in the main table, and its protocol none of ``passed_over``."""
    return payload[4] == RT_TABLE_MAIN and payload[5] not in passed_over


def decode_route(payload: bytes, names: Mapping[int, str]) -> Route | None:
    """The route in an RTM_NEWROUTE payload.

    None for clones, multicast, routes that the kernel adds for addresses, and the local table, except for routes there
    that have an owner mark of podwire. Of a multipath route only the first next hop is kept, since podwire makes
    no multipath routes.
    """
    family, length, _src, _tos, table, proto, scope, kind, flags = RTMSG.unpack_from(payload)
    attributes = parse(payload, RTMSG.size)
    table = number(attributes, RTA_TABLE, table)
    if flags & RTM_F_CLONED or proto == RTPROT_KERNEL or kind not in _KIND_NAMES:
        return None
    if table == RT_TABLE_LOCAL and proto not in _OWN_PROTOCOLS:
        return None
    if family not in (AF_INET, AF_INET6):
        return None
    attributes = _first_hop(attributes)
    packed = attributes.get(RTA_DST, bytes(16 if family == AF_INET6 else 4))
    name = _KIND_NAMES[kind]
    metrics = parse(attributes.get(RTA_METRICS, b""))
    return Route(
        dst=f"{unpack_ip(packed)}/{length}",
        via=_decode_via(attributes),
        link="" if name in _NO_DEVICE else names.get(number(attributes, RTA_OIF), ""),
        onlink=bool(flags & RTNH_F_ONLINK),
        src=unpack_ip(attributes[RTA_PREFSRC]) if RTA_PREFSRC in attributes else "",
        mtu=number(metrics, RTAX_MTU),
        proto=proto,
        metric=number(attributes, RTA_PRIORITY),
        table=table,
        scope=_SCOPE_NAMES.get(scope, "") if family == AF_INET else "",
        kind=name,
        **(_decode_encap(attributes) if RTA_ENCAP_TYPE in attributes else {}),
    )


def destination(family: int, length: int, attributes: Mapping[int, bytes]) -> str:
    """The prefix of a route, as in :class:`Route`; empty for another family."""
    if family not in (AF_INET, AF_INET6):
        return ""
    packed = attributes.get(RTA_DST, bytes(16 if family == AF_INET6 else 4))
    return "default" if family == AF_INET and not length else f"{unpack_ip(packed)}/{length}"


def _first_hop(attributes: dict[int, bytes]) -> dict[int, bytes]:
    hops = attributes.get(RTA_MULTIPATH)
    if not hops or len(hops) < 8:
        return attributes
    size, _flags, _weight, index = struct.unpack_from("=HBBi", hops)
    return {**attributes, RTA_OIF: struct.pack("=i", index), **parse(hops[:size], 8)}


def _decode_via(attributes: Mapping[int, bytes]) -> str:
    if RTA_GATEWAY in attributes:
        return unpack_ip(attributes[RTA_GATEWAY])
    return unpack_ip(attributes[RTA_VIA][2:]) if RTA_VIA in attributes else ""


# Neighbours and forwarding entries


def encode_neighbour(neighbour: Neighbour, indexes: Mapping[str, int]) -> bytes:
    """RTM_NEWNEIGH or RTM_DELNEIGH."""
    packed = pack_ip(neighbour.ip)
    family = AF_INET6 if len(packed) == 16 else AF_INET
    state = NUD_PERMANENT if neighbour.permanent else NUD_REACHABLE
    flags = NTF_PROXY if neighbour.proxy else 0
    head = NDMSG.pack(family, indexes[neighbour.link], state, flags, 0)
    if family == AF_INET and neighbour.mac and neighbour.proto:
        mac = pack_mac(neighbour.mac)
        return head + _PLAIN_NEIGHBOUR.pack(8, NDA_DST, packed, 10, NDA_LLADDR, mac, 5, NDA_PROTOCOL, neighbour.proto)
    parts = [head, attribute(NDA_DST, packed)]
    if neighbour.mac:
        parts.append(attribute(NDA_LLADDR, pack_mac(neighbour.mac)))
    if neighbour.proto:
        parts.append(u8(NDA_PROTOCOL, neighbour.proto))
    return b"".join(parts)


def encode_neighbour_dump(*, proxy: bool = False) -> bytes:
    """RTM_GETNEIGH for both families' neighbours, or for their proxy entries."""
    return NDMSG.pack(AF_UNSPEC, 0, 0, NTF_PROXY if proxy else 0, 0)


def decode_neighbour(payload: bytes, names: Mapping[int, str]) -> Neighbour | None:
    """The neighbour in an RTM_NEWNEIGH payload; None for learned ones and those that the kernel makes itself."""
    family, index, state, flags, _kind = NDMSG.unpack_from(payload)
    proxy = bool(flags & NTF_PROXY)
    if family not in (AF_INET, AF_INET6) or index not in names or not (proxy or state & NUD_PERMANENT):
        return None
    attributes = parse(payload, NDMSG.size)
    if NDA_DST not in attributes:
        return None
    return Neighbour(
        link=names[index],
        ip=unpack_ip(attributes[NDA_DST]),
        mac="" if proxy else _mac(attributes),
        proxy=proxy,
        proto=number(attributes, NDA_PROTOCOL),
    )


def encode_fdb(fdb: Fdb, indexes: Mapping[str, int]) -> bytes:
    """RTM_NEWNEIGH or RTM_DELNEIGH of family AF_BRIDGE.

    The entry does not age. In the table of a bridge it is static (NUD_NOARP): a permanent one would be an address of
    the bridge itself.
    """
    state, table = (NUD_NOARP, NTF_MASTER) if fdb.bridge else (NUD_PERMANENT | NUD_NOARP, NTF_SELF)
    head = NDMSG.pack(AF_BRIDGE, indexes[fdb.link], state, table, 0)
    packed, mac = pack_ip(fdb.dst) if fdb.dst else b"", pack_mac(fdb.mac)
    if len(packed) == 4:
        return head + _PLAIN_FDB.pack(10, NDA_LLADDR, mac, 8, NDA_DST, packed)
    return head + attribute(NDA_LLADDR, mac) + (attribute(NDA_DST, packed) if packed else b"")


def encode_fdb_dump(index: int) -> bytes:
    """RTM_GETNEIGH (AF_BRIDGE) for one device's entries."""
    return NDMSG.pack(AF_BRIDGE, index, 0, 0, 0)


def decode_fdb(payload: bytes, names: Mapping[int, str]) -> Fdb | None:
    """The entry in an RTM_NEWNEIGH payload of family AF_BRIDGE; None for learned entries and a bridge's own ones."""
    family, index, state, flags, _kind = NDMSG.unpack_from(payload)
    attributes = parse(payload, NDMSG.size)
    bridge = NDA_MASTER in attributes or bool(flags & NTF_MASTER)
    static = state == NUD_NOARP if bridge else bool(state & NUD_PERMANENT)
    if family != AF_BRIDGE or index not in names or not static:
        return None
    dst = unpack_ip(attributes[NDA_DST]) if NDA_DST in attributes else ""
    return Fdb(link=names[index], mac=_mac(attributes), dst=dst, bridge=bridge)


def _mac(attributes: Mapping[int, bytes]) -> str:
    """The Ethernet address; tunnels have addresses of other lengths, which are left out."""
    data = attributes.get(NDA_LLADDR, b"")
    return unpack_mac(data) if len(data) == 6 else ""
