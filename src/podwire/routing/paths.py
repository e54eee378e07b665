"""The path of a packet to a peer's pod through the state of one node, followed entry by entry (pure).

:func:`lookup` chooses a route as the kernel does: the longest prefix, then the lowest metric, in the table main. From
there the backend goes on (:class:`PathExplainer`): a tunnel's neighbour and forwarding entry, the peer of a device.
:func:`follow_route` is the beginning that backends share. Policy routing rules of other programs are not followed.
"""

from collections.abc import Collection, Iterator, Sequence
from ipaddress import ip_network
from typing import Protocol, runtime_checkable

import msgspec

from podwire.routing.nodes import Address, LocalNode, Network, Peer
from podwire.state.network import NetworkState
from podwire.state.route import TABLE_MAIN, Fdb, Neighbour, Route
from podwire.state.value import StateValue

_V6_METRIC = 1024
"""The metric of an IPv6 route without one (IP6_RT_PRIO_USER, net/ip6_fib.h)."""
_EVERYTHING = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}


class OuterHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The outer header of a packet in a tunnel.

    ``protocol`` is the tunnel's (``VXLAN``); ``id`` its virtual network identifier and ``port`` the UDP destination
    port, 0 where the protocol has none. ``source`` and ``destination`` are the outer addresses.
    """

    protocol: str
    source: str
    destination: str
    id: int = 0
    port: int = 0
    encrypted: bool = False


class PeerPath(msgspec.Struct, frozen=True, kw_only=True):
    """How a packet to a pod of a peer leaves a node; ``mtu`` in bytes, 0 where it is not known.

    ``missing`` says why no packet arrives: entries that are missing or lead elsewhere; empty: nothing is missing.
    """

    route: Route | None = None
    mtu: int = 0
    tunnel: OuterHeader | None = None
    missing: tuple[str, ...] = ()


class PathState(msgspec.Struct, frozen=True, kw_only=True):
    """The state through which a path is followed: objects of ip(8), and the values of the child processes.

    ``source`` is the source address of the packet; None: it is not known.
    """

    network: NetworkState
    program_values: Sequence[StateValue] = ()
    source: Address | None = None


@runtime_checkable
class PathExplainer(Protocol):
    """A backend that says how a packet to a peer leaves the node."""

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The path to ``address``, a pod of ``peer``, through ``state``, which may be held or planned."""
        ...


def lookup(network: NetworkState, address: Address, table: int = TABLE_MAIN) -> Route | None:
    """The route to an address, in the main table networks of the node's own devices included; None: there is none."""
    best: tuple[int, int] | None = None
    chosen = None
    for prefix, route in _routes(network, address.version, table):
        metric = route.metric or (_V6_METRIC if address.version == 6 else 0)
        rank = prefix.prefixlen, -metric
        if address in prefix and (best is None or rank > best):
            best, chosen = rank, route
    return chosen


def _routes(network: NetworkState, version: int, table: int) -> Iterator[tuple[Network, Route]]:
    for own in network.addresses if table == TABLE_MAIN else ():
        prefix = ip_network(own.cidr, strict=False)
        if prefix.version == version and not own.noprefixroute and prefix.prefixlen < prefix.max_prefixlen:
            yield prefix, Route(dst=str(prefix), link=own.link)
    for route in network.routes:
        if route.table == table:
            prefix = _EVERYTHING[4] if route.dst == "default" else ip_network(route.dst)
            if prefix.version == version:
                yield prefix, route


def is_default(route: Route) -> bool:
    """Whether a route is to all destinations."""
    return route.dst in ("default", "::/0")


def follow_route(
    network: NetworkState,
    peer: Peer,
    address: Address,
    links: Collection[str] = (),
    *,
    any_route: bool = False,
    table: int = TABLE_MAIN,
) -> PeerPath:
    """The beginning of a path: the route in a table, its MTU, and the device.

    The route has to lead to one of ``links`` if there are any. Unless ``any_route``, it has to be narrower than a
    default route.
    """
    route = lookup(network, address, table)
    cidr = next((str(cidr) for cidr in peer.pod_cidrs if address in cidr), str(address))
    if route is None:
        return PeerPath(missing=(f"no route to {cidr}",))
    link = network.link(route.link)
    mtu = route.mtu or (link.mtu if link is not None else 0)
    if route.kind != "unicast":
        return PeerPath(route=route, missing=(f"no route to {cidr}: packets are refused by {shown(route)}",))
    if not any_route and (is_default(route) or (links and route.link not in links)):
        link_text = f" by {' or '.join(links)}" if links else ""
        problem = f"no route to {cidr}{link_text}: packets take {shown(route)}"
        return PeerPath(route=route, mtu=mtu, missing=(problem,))
    if link is None:
        return PeerPath(route=route, mtu=mtu, missing=(f"no device {route.link}",))
    if not link.up:
        return PeerPath(route=route, mtu=mtu, missing=(f"device {route.link} is down",))
    return PeerPath(route=route, mtu=mtu)


def follow_plain_route(network: NetworkState, peer: Peer, address: Address) -> PeerPath:
    """The path without a tunnel, whose next hop has to be the peer itself."""
    path = follow_route(network, peer, address)
    if path.missing or path.route is None or path.route.via in map(str, peer.addresses):
        return path
    problem = f"the next hop of {shown(path.route)} is not {peer.name}"
    return msgspec.structs.replace(path, missing=(problem,))


def shown(route: Route) -> str:
    """A route in the form of ip(8), without the mark of its owner."""
    return str(msgspec.structs.replace(route, proto=0)).removeprefix("route ")


def next_neighbour(network: NetworkState, route: Route) -> Neighbour | None:
    """The neighbour entry of a route's next hop."""
    entries = (entry for entry in network.neighbours if entry.link == route.link and not entry.proxy)
    return next((entry for entry in entries if entry.ip == route.via), None)


def forwarding_entry(network: NetworkState, link: str, mac: str) -> Fdb | None:
    """The forwarding entry of a hardware address on a device."""
    return next((entry for entry in network.fdb if entry.link == link and entry.mac == mac), None)


def leads_to(peer: Peer, destination: str, entry: object) -> tuple[str, ...]:
    """Empty when an outer destination is the peer's, else the problem; ``entry`` is the object that names it."""
    if destination in map(str, peer.addresses):
        return ()
    own = ", ".join(map(str, peer.addresses))
    return (f"{entry} leads to {destination or 'no address'}, and {peer.name} has {own}",)
