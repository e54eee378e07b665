"""Plans the desired network state of the fabric's namespaces (pure).

One switch namespace has a bridge per segment; every node's ``eth0`` is a veth whose other end is a port of its
segment's bridge. With more than one segment a router namespace joins them (``router`` has its
BGP). The host is a station on segment 0::

    host (pw0-host .1) ──┐
    node-1 (eth0 .11) ───┤ segment-0 ── router (.254) ── segment-1 ├── node-2 (eth0 .11)
    node-3 (eth0 .12) ───┘

Hardware addresses follow from cluster, segment and number, so a node that is made again is the same station.
Above :data:`PINNED_NODES` nodes the neighbours are permanent: the kernel's neighbour table is one for all
namespaces (``gc_thresh3``, 1,024 entries) and a mesh of dynamic entries would overflow it near 32 nodes.
Cost: a bridge port, two links and a namespace per node; n² permanent neighbours when pinned (4 us each).
"""

from collections.abc import Mapping
from ipaddress import ip_network

import msgspec

from podwire.local.topology import HOST_NUMBER, HOST_PORT, ROUTER_NUMBER, FabricNode, Segment, Topology
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import Address, Neighbour, Route, Sysctl

PROTOCOL = 114
"""Route protocol number of all routes that the fabric owns in its own namespaces."""
FIRST_HOST_PROTOCOL = 128
"""Several clusters share the host: each marks its routes with this number plus the cluster's index."""
PINNED_NODES = 16
SWITCH = "switch"
ROUTER = "router"
AS_NUMBER = 64999
"""The router's autonomous system number, of those for private use (RFC 6996)."""
BALANCED = ip_network("198.18.0.0/15")
"""The networks of pools whose addresses the router takes: those for tests between networks (RFC 2544)."""
MTU = 1500
"""The MTU of a link for which nothing else is wanted, bytes."""


class Fabric(msgspec.Struct, frozen=True):
    """The desired state of each namespace, the nodes' by name; ``router`` is None with one segment."""

    host: NetworkState
    switch: NetworkState
    router: NetworkState | None
    nodes: dict[str, NetworkState]


def plan(topology: Topology, count: int, mtus: Mapping[str, int] | None = None) -> Fabric:
    """The fabric of a cluster with ``count`` nodes; ``mtus`` of the links of nodes and segments, by their names."""
    fabric_nodes, own_mtus = topology.nodes(count), mtus or {}
    return Fabric(
        host=_host(topology, fabric_nodes),
        switch=_switch(topology, fabric_nodes, own_mtus),
        router=_router(topology, own_mtus) if topology.segment_count > 1 else None,
        nodes={node.name: _node(topology, node, fabric_nodes, own_mtus) for node in fabric_nodes},
    )


def _mac(topology: Topology, segment: Segment, number: int) -> str:
    return f"02:89:{topology.index:02x}:{segment.number:02x}:00:{number:02x}"


def _station_number(node: FabricNode) -> int:
    return int(node.address) & 0xFF


def owner(topology: Topology, *, on_host: bool) -> OwnerMark:
    """The mark of this cluster's fabric, on the host or in a namespace."""
    protocol = FIRST_HOST_PROTOCOL + topology.index if on_host else PROTOCOL
    return OwnerMark(route_protocol=protocol, alias_prefix=alias_prefix(topology))


def alias_prefix(topology: Topology) -> str:
    """The owner mark of this cluster's fabric links."""
    return f"podwire/fabric/{topology.name}"


def _alias(topology: Topology, role: str) -> str:
    return f"{alias_prefix(topology)} {role}"


def _host(topology: Topology, fabric_nodes: tuple[FabricNode, ...]) -> NetworkState:
    first = topology.segment(0)
    link = Link(
        name=topology.host_link,
        kind="veth",
        peer=HOST_PORT,
        peer_netns=str(topology.netns(SWITCH)),
        mac=_mac(topology, first, HOST_NUMBER),
        alias=_alias(topology, "host"),
    )
    further_segments = topology.segments[1:]
    return NetworkState(
        links=(link,),
        addresses=(
            Address(link=link.name, cidr=f"{topology.host_address}/24"),
            Address(link=link.name, cidr=f"{topology.host_address6}/64"),
        ),
        routes=tuple(
            route
            for segment in further_segments
            for route in (
                Route(dst=str(segment.network), via=str(first.router), link=link.name),
                Route(dst=str(segment.network6), via=str(first.router6), link=link.name),
            )
        ),
        neighbours=_neighbours(topology, link.name, first, fabric_nodes, HOST_NUMBER),
    )


def _switch(topology: Topology, fabric_nodes: tuple[FabricNode, ...], mtus: Mapping[str, int]) -> NetworkState:
    bridges = tuple(
        Link(name=segment.bridge, kind="bridge", alias=_alias(topology, segment.bridge))
        for segment in topology.segments
    )
    ports = [Link(name=HOST_PORT, master=topology.segment(0).bridge, alias=_alias(topology, "port"))]
    ports += [
        Link(
            name=node.port,
            mtu=mtus.get(node.name, MTU),
            master=node.segment.bridge,
            alias=_alias(topology, f"port of {node.name}"),
        )
        for node in fabric_nodes
    ]
    if topology.segment_count > 1:
        ports += [
            Link(
                name=f"router-{s.number}",
                mtu=mtus.get(s.station, MTU),
                master=s.bridge,
                alias=_alias(topology, "port of router"),
            )
            for s in topology.segments
        ]
    return NetworkState(
        links=(*bridges, *ports),
        sysctls=(Sysctl(path="net/ipv6/conf/all/disable_ipv6", value="1"),),
    )


def _router(topology: Topology, mtus: Mapping[str, int]) -> NetworkState:
    links = tuple(
        Link(
            name=f"eth{s.number}",
            kind="veth",
            mtu=mtus.get(s.station, MTU),
            peer=f"router-{s.number}",
            peer_netns=str(topology.netns(SWITCH)),
            mac=_mac(topology, s, ROUTER_NUMBER),
            alias=_alias(topology, "router"),
        )
        for s in topology.segments
    )
    addresses = [Address(link=f"eth{s.number}", cidr=f"{s.router}/24") for s in topology.segments]
    addresses += [Address(link=f"eth{s.number}", cidr=f"{s.router6}/64") for s in topology.segments]
    return NetworkState(
        links=(Link(name="lo"), *links),
        addresses=tuple(addresses),
        routes=(
            Route(dst="default", via=str(topology.host_address), link="eth0", proto=PROTOCOL),
            Route(dst="::/0", via=str(topology.host_address6), link="eth0", proto=PROTOCOL),
        ),
        sysctls=(
            Sysctl(path="net/ipv4/ip_forward", value="1"),
            Sysctl(path="net/ipv6/conf/all/forwarding", value="1"),
        ),
    )


def _node(
    topology: Topology, node: FabricNode, fabric_nodes: tuple[FabricNode, ...], mtus: Mapping[str, int]
) -> NetworkState:
    routed = topology.segment_count > 1
    gateway = node.segment.router if routed else topology.host_address
    gateway6 = node.segment.router6 if routed else topology.host_address6
    return NetworkState(
        links=(
            Link(name="lo"),
            Link(
                name="eth0",
                kind="veth",
                mtu=mtus.get(node.name, MTU),
                peer=node.port,
                peer_netns=str(topology.netns(SWITCH)),
                mac=_mac(topology, node.segment, _station_number(node)),
                alias=_alias(topology, node.name),
            ),
        ),
        addresses=(
            Address(link="eth0", cidr=f"{node.address}/24"),
            Address(link="eth0", cidr=f"{node.address6}/64"),
        ),
        routes=(
            Route(dst="default", via=str(gateway), link="eth0", proto=PROTOCOL),
            Route(dst="::/0", via=str(gateway6), link="eth0", proto=PROTOCOL),
        ),
        neighbours=_neighbours(topology, "eth0", node.segment, fabric_nodes, _station_number(node)),
    )


def _neighbours(
    topology: Topology, link: str, segment: Segment, fabric_nodes: tuple[FabricNode, ...], me: int
) -> tuple[Neighbour, ...]:
    if len(fabric_nodes) <= PINNED_NODES:
        return ()
    stations = [_station_number(p) for p in fabric_nodes if p.segment == segment]
    if topology.segment_count > 1:
        stations.append(ROUTER_NUMBER)
    if segment.number == 0:
        stations.append(HOST_NUMBER)
    return tuple(
        Neighbour(link=link, ip=str(address), mac=_mac(topology, segment, number))
        for number in stations
        if number != me
        for address in (segment.network[number], segment.network6[number])
    )
