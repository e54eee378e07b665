"""Finds the device that carries the node's own addresses, by the addresses and never by name or order."""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_interface, ip_network

from podwire.routing.nodes import Address, Device, Network, PathRoute, Underlay
from podwire.state.network import NetworkState
from podwire.state.route import TABLE_MAIN

DEFAULT_MTU = 1500
OWN_PROTOCOLS = frozenset((112, 113, 114))
"""The route protocols of podwire: routes to pods say nothing about the paths between nodes."""
_BIRD, _BIRD_METRIC = 12, 2113
QUIET_PROTOCOLS = OWN_PROTOCOLS | {_BIRD}
"""The protocols of routes whose changes do not change the paths between nodes."""
_V6_METRIC, _V6_CONNECTED_METRIC = 1024, 256  # IP6_RT_PRIO_USER and IP6_RT_PRIO_ADDRCONF of net/ip6_fib.h


def find(state: NetworkState, addresses: Sequence[Address]) -> Underlay | None:
    """The device with the first of the addresses that any device has, or None.

    Its MTU is the device's, or that of its default route if that is smaller.
    """
    for node_address in addresses:
        for address in state.addresses:
            if ip_interface(address.cidr).ip == node_address:
                return _describe(state, address.link)
    return None


def _describe(state: NetworkState, name: str) -> Underlay:
    link = state.link(name)
    sizes = [link.mtu if link is not None and link.mtu else DEFAULT_MTU]
    sizes += [route.mtu for route in state.routes if route.link == name and route.mtu and _is_default(route.dst)]
    own = (ip_interface(a.cidr) for a in state.addresses if a.link == name)
    devices = {x.name: Device(x.mtu or DEFAULT_MTU, x.master, x.mac, x.kind, x.lower) for x in state.links}
    paths = tuple(_paths(state, devices, min(sizes)))
    return Underlay(name, min(sizes), tuple(a for a in own if not a.is_link_local), devices, paths)


def _paths(state: NetworkState, devices: Mapping[str, Device], full: int) -> tuple[PathRoute, ...]:
    """The routes that lead to nodes, the preferred ones first; none when no path is narrower than ``full`` bytes."""
    ranked = sorted(_candidates(state, devices), key=lambda entry: (-entry[0].prefixlen, entry[1]))
    if all(mtu >= full for _, _, mtu in ranked):
        return ()
    return tuple(PathRoute(network, mtu) for network, _, mtu in ranked)


def _candidates(state: NetworkState, devices: Mapping[str, Device]) -> Iterator[tuple[Network, int, int]]:
    """Network, metric and MTU of each route of another program, and of each network of a device.

    Link-local networks are left out: each device has one, and no node has its address there.
    """
    for own in state.addresses:
        network = ip_network(own.cidr, strict=False)
        if network.is_link_local:
            continue
        if not own.noprefixroute and network.prefixlen < network.max_prefixlen and own.link in devices:
            yield network, _V6_CONNECTED_METRIC if network.version == 6 else 0, devices[own.link].mtu
    for route in state.routes:
        learned = route.proto == _BIRD and route.metric == _BIRD_METRIC
        if route.table != TABLE_MAIN or route.kind != "unicast" or route.proto in OWN_PROTOCOLS or learned:
            continue
        network = ip_network("0.0.0.0/0" if route.dst == "default" else route.dst)
        if route.link in devices and not network.is_link_local:
            metric = route.metric or (_V6_METRIC if network.version == 6 else 0)
            yield network, metric, route.mtu or devices[route.link].mtu


def _is_default(dst: str) -> bool:
    return dst in ("default", "::/0", "0.0.0.0/0")
