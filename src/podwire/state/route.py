"""Addresses, routes, neighbours, forwarding entries, policy rules and sysctls as values.

Every value has a ``key`` that identifies the object in the kernel. Two values with one key and different fields are the
same object before and after a change, which is replaced in place and never deleted and added again. ``proto`` is the
owner mark (rtnetlink protocol number; for addresses IFA_PROTO, kernel 5.18): 0 stands for the mark of the owner that
applies the value.
"""

from typing import Any

from msgspec.structs import astuple, fields, force_setattr

from podwire.state import grammar
from podwire.state.address import interface_text, ip_text, is_v6, mac_text, network_text
from podwire.state.grammar import Grammar, Option
from podwire.state.value import Value, canonical

TABLE_MAIN = 254
"""RT_TABLE_MAIN, linux/rtnetlink.h."""

ZERO_MAC = "00:00:00:00:00:00"
"""The vxlan entry for frames to unknown destinations; it may have several ``dst``."""

_ALL_BITS = 0xFFFFFFFF

_V6_METRIC = 1024
"""The metric that the kernel gives an IPv6 route without one (IP6_RT_PRIO_USER, net/ip6_fib.h)."""


class Address(Value, frozen=True):
    """An address on a device: ``cidr`` with its prefix length.

    ``nodad`` skips duplicate address detection (IPv6; detection makes the address unusable for a second);
    ``noprefixroute`` keeps the kernel from adding the route to the prefix; ``deprecated``: no new connection of the
    machine itself begins at the address (a preferred lifetime of 0); ``scope`` is empty (global), ``link`` or
    ``host``, and compared only for IPv4.
    """

    link: str
    cidr: str
    nodad: bool = True
    noprefixroute: bool = False
    deprecated: bool = False
    scope: str = ""
    proto: int = 0

    def __post_init__(self) -> None:
        canonical(self, "cidr", interface_text(self.cidr))
        if is_v6(self.cidr):
            canonical(self, "scope", "")
        else:
            canonical(self, "nodad", True)

    def __str__(self) -> str:
        return _line(ADDRESS, self)

    @property
    def key(self) -> tuple[Any, ...]:
        """The device and the address."""
        return (self.link, self.cidr)


class Route(Value, frozen=True):
    """A route to ``dst`` (a prefix, or ``default``; IPv6's default may be written ``::/0``).

    ``via`` is the next hop, empty for a destination on the link; ``onlink``: the next hop is on the link even without a
    route to it. ``src`` is the preferred source; ``mtu`` in bytes, 0 for the device's; ``kind`` is unicast, local,
    blackhole, unreachable, prohibit, throw or broadcast; ``scope`` is empty for the default of ip(8), else ``global``,
    ``link`` or ``host`` (IPv4).

    ``encap`` is empty, ``ip`` or ``ip6``: a device that takes its outer header from the route (geneve with
    ``external``) sends to ``tunnel_dst`` with the virtual network ``tunnel_id`` and the time to live ``tunnel_ttl``
    (IPv6: ``tunnel_hop_limit``).
    """

    dst: str
    via: str = ""
    link: str = ""
    onlink: bool = False
    src: str = ""
    mtu: int = 0
    proto: int = 0
    metric: int = 0
    table: int = TABLE_MAIN
    scope: str = ""
    kind: str = "unicast"
    encap: str = ""
    tunnel_id: int = 0
    tunnel_dst: str = ""
    tunnel_ttl: int = 0
    tunnel_hop_limit: int = 0

    def __post_init__(self) -> None:
        dst, via, src, tunnel_dst = self.dst, self.via, self.src, self.tunnel_dst
        if tunnel_dst:
            canonical(self, "tunnel_dst", ip_text(tunnel_dst))
        if self.encap != (("ip6" if is_v6(tunnel_dst) else "ip") if tunnel_dst else ""):
            raise ValueError(f"encap {self.encap or '(none)'} with the destination {tunnel_dst or '(none)'}")
        if via and (text := ip_text(via)) != via:
            force_setattr(self, "via", text)
        if src and (text := ip_text(src)) != src:
            force_setattr(self, "src", text)
        if (text := _destination(dst, via or src)) != dst:
            force_setattr(self, "dst", text)
        if is_v6(self.dst):
            canonical(self, "scope", "")
            if self.metric == _V6_METRIC:
                canonical(self, "metric", 0)
        elif self.scope and self.scope == usual_scope(self):
            force_setattr(self, "scope", "")

    def __str__(self) -> str:
        return _line(ROUTE, self)

    @property
    def key(self) -> tuple[Any, ...]:
        """Family and destination, table, metric."""
        return (is_v6(self.dst), self.dst, self.table, self.metric)


def usual_scope(route: Route) -> str:
    """The scope that ip(8) gives an IPv4 route without one."""
    if route.kind == "local":
        return "host"
    if route.kind == "broadcast" or (route.kind == "unicast" and not route.via):
        return "link"
    return "global"


def _destination(dst: str, hint: str) -> str:
    if dst == "default":
        return "::/0" if is_v6(hint) else "default"
    text = network_text(dst)
    return "default" if text == "0.0.0.0/0" else text


class Neighbour(Value, frozen=True):
    """The hardware address of an IP address on a device; permanent, without ageing and resolution."""

    link: str
    ip: str
    mac: str = ""
    permanent: bool = True
    proxy: bool = False
    proto: int = 0

    def __post_init__(self) -> None:
        if (text := ip_text(self.ip)) != self.ip:
            force_setattr(self, "ip", text)
        if (text := mac_text(self.mac)) != self.mac:
            force_setattr(self, "mac", text)

    def __str__(self) -> str:
        return _line(NEIGHBOUR, self)

    @property
    def key(self) -> tuple[Any, ...]:
        """Device, address, and whether it is a proxy entry."""
        return (self.link, self.ip, self.proxy)


class Fdb(Value, frozen=True):
    """The destination of frames to ``mac``: for a vxlan device the outer address ``dst``; else the bridge port.

    ``bridge``: the entry is in the table of the bridge that has ``link`` as a port, instead of in the device's own.
    """

    link: str
    mac: str
    dst: str = ""
    bridge: bool = False

    def __post_init__(self) -> None:
        if (text := mac_text(self.mac)) != self.mac:
            force_setattr(self, "mac", text)
        if self.dst and (text := ip_text(self.dst)) != self.dst:
            force_setattr(self, "dst", text)

    def __str__(self) -> str:
        return _line(FDB, self)

    @property
    def key(self) -> tuple[Any, ...]:
        """Device, hardware address and table; for the all-zero address also ``dst``."""
        return (self.link, self.mac, self.dst if self.mac == ZERO_MAC else "", self.bridge)


class FibRule(Value, frozen=True):
    """A policy routing rule; ``kind`` is lookup (in ``table``), blackhole, unreachable or prohibit.

    ``v6`` is needed when neither ``src`` nor ``dst`` shows the family. ``mask`` 0 stands for all bits. ``ipproto`` is a
    protocol as ip(8) prints it (``tcp``, or a number); ``sport`` and ``dport`` are a port or a range, ``80-90``.
    """

    priority: int
    src: str = ""
    dst: str = ""
    iif: str = ""
    oif: str = ""
    ipproto: str = ""
    sport: str = ""
    dport: str = ""
    mark: int = 0
    mask: int = 0
    table: int = 0
    kind: str = "lookup"
    v6: bool = False
    proto: int = 0

    def __post_init__(self) -> None:
        for field in ("src", "dst"):
            text = getattr(self, field)
            if text:
                canonical(self, field, network_text(text))
                if is_v6(text):
                    canonical(self, "v6", True)
        if self.mask == _ALL_BITS:
            canonical(self, "mask", 0)

    def __str__(self) -> str:
        return _line(RULE, self)

    @property
    def key(self) -> tuple[Any, ...]:
        """All fields: a rule that differs in one field is another rule."""
        return astuple(self)


class Sysctl(Value, frozen=True):
    """A kernel parameter: ``path`` below /proc/sys with slashes (device names may contain dots)."""

    path: str
    value: str

    def __str__(self) -> str:
        return f"sysctl {self.path} = {grammar.quote(self.value)}"

    @property
    def key(self) -> tuple[Any, ...]:
        """The path."""
        return (self.path,)


_PROTO = Option("proto", "proto", "number")
_DEV = Option("dev", "link")

ADDRESS = Grammar(
    "address",
    "cidr",
    (
        _DEV,
        Option("scope", "scope"),
        Option("dad", "nodad", "noflag"),
        Option("noprefixroute", "noprefixroute", "flag"),
        Option("deprecated", "deprecated", "flag"),
        _PROTO,
    ),
)
ROUTE = Grammar(
    "route",
    "dst",
    (
        Option("type", "kind"),
        Option("encap", "encap"),
        Option("id", "tunnel_id", "number"),
        Option("dst", "tunnel_dst"),
        Option("ttl", "tunnel_ttl", "number"),
        Option("hoplimit", "tunnel_hop_limit", "number"),
        Option("via", "via"),
        _DEV,
        Option("onlink", "onlink", "flag"),
        Option("src", "src"),
        Option("mtu", "mtu", "number"),
        Option("metric", "metric", "number"),
        Option("table", "table", "number"),
        Option("scope", "scope"),
        _PROTO,
    ),
)
NEIGHBOUR = Grammar(
    "neighbour",
    "ip",
    (
        Option("lladdr", "mac"),
        _DEV,
        Option("proxy", "proxy", "flag"),
        Option("dynamic", "permanent", "noflag"),
        _PROTO,
    ),
)
FDB = Grammar("fdb", "mac", (_DEV, Option("dst", "dst"), Option("master", "bridge", "flag")))
RULE = Grammar(
    "rule",
    "priority",
    (
        Option("-6", "v6", "flag"),
        Option("from", "src"),
        Option("to", "dst"),
        Option("iif", "iif"),
        Option("oif", "oif"),
        Option("ipproto", "ipproto"),
        Option("sport", "sport"),
        Option("dport", "dport"),
        Option("fwmark", "mark", "hex"),
        Option("mask", "mask", "hex"),
        Option("type", "kind"),
        Option("table", "table", "number"),
        _PROTO,
    ),
)


def _line(form: Grammar, value: Value) -> str:
    return " ".join([form.noun, *grammar.render(form, value, _DEFAULTS[form.noun])])


def _defaults(*types: tuple[Grammar, type[Value]]) -> dict[str, dict[str, Any]]:
    return {form.noun: {f.name: f.default for f in fields(struct)} for form, struct in types}


_DEFAULTS = _defaults((ADDRESS, Address), (ROUTE, Route), (NEIGHBOUR, Neighbour), (FDB, Fdb), (RULE, FibRule))
