"""Pod routing by IP in IP (RFC 2003; IPv6 pods by RFC 4213): the smallest header that crosses routers.

Two devices without a fixed remote end: ``podwire-ipip`` carries IPv4 packets, ``podwire-sit`` IPv6 packets, both inside
IPv4 packets between nodes. The next hop of a route to a peer's pod CIDR is the outer destination (net/ipv4/ipip.c takes
it from the route), so a peer is one route per family and nothing else: no neighbour, no forwarding entry. The gateway
of the IPv6 route is the IPv4-compatible address of the peer, ``::192.0.2.12`` (net/ipv6/sit.c). Encapsulation takes
20 bytes. There is no checksum over the outer packet and no port, so network cards spread the packets of two nodes over
no queues, and clouds often drop these protocols (4 and 41).
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, ip_address
from typing import Any

from msgspec.structs import replace

from podwire.routing.backend import BackendOptions, BackendPlan
from podwire.routing.mtu import device_mtu
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import OuterHeader, PathState, PeerPath, follow_route, leads_to, shown
from podwire.routing.peerstates import PeerStates
from podwire.routing.tables import guard_protocols
from podwire.routing.tunnels import not_receiving, tunnel_addresses, tunnel_sources, tunnel_sysctls
from podwire.state.link import Link
from podwire.state.link_kinds import IpTunnel
from podwire.state.network import NetworkState, merge
from podwire.state.route import Route

DEVICES = {4: ("podwire-ipip", "ipip"), 6: ("podwire-sit", "sit")}
"""The device and its kind by the IP version of the pods."""
GUARD = "podwire-routing-ipip"
_PROTOCOLS = (4, 41)
_OVERHEAD = 20


class IpipOptions(BackendOptions, frozen=True):
    """``ipip`` has no options of its own."""

    routes_outside = True


class IpInIp:
    """A device per family of the pods, to all peers."""

    name = "ipip"
    feature = "ipip"
    options = IpipOptions
    tables = (GUARD,)
    announced = True
    crosses_routers = True
    udp_ports = ()
    outer_version = 4

    def __init__(self, options: IpipOptions) -> None:
        self._peers = PeerStates()

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """No facts: a peer needs the node's address alone."""
        return {}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The devices, a route per peer and family, and the guard of both protocols; nothing on a node without IPv4."""
        outer = me.address(4)
        if outer is None:
            return BackendPlan()
        versions = sorted({cidr.version for cidr in me.pod_cidrs})
        sources = tunnel_sources(me)
        common = NetworkState(
            links=tuple(self._device(me, version, str(outer)) for version in versions),
            addresses=tuple(
                address
                for cidr in me.pod_cidrs
                for address in tunnel_addresses(DEVICES[cidr.version][0], me)
                if (":" in address.cidr) == (cidr.version == 6)
            ),
            sysctls=tuple(sysctl for version in versions for sysctl in tunnel_sysctls(DEVICES[version][0], me)),
        )
        routes = self._peers.merged(peers, sources, lambda peer: _routes(peer, sources))
        return BackendPlan(
            network=merge([common, routes]),
            values=(guard_protocols(GUARD, _PROTOCOLS, me, cluster),),
            tunnels=tuple(DEVICES[version][0] for version in versions),
        )

    def _device(self, me: LocalNode, version: int, local: str) -> Link:
        name, kind = DEVICES[version]
        return Link(
            name=name,
            kind=kind,
            mtu=device_mtu(me, _OVERHEAD),
            alias="podwire/routing ipip",
            attributes=IpTunnel(local=local, ttl=64),
        )

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether both nodes have an IPv4 address, and the peer can receive IP in IP."""
        if me.address(4) is None:
            return f"node {me.name} has no IPv4 address, and ipip has IPv4 between nodes"
        if peer.address(4) is None:
            return f"node {peer.name} has no IPv4 address"
        return not_receiving(peer, self.name)

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route, whose next hop is the outer destination."""
        path = follow_route(state.network, peer, address, (DEVICES[address.version][0],))
        if path.missing or path.route is None or not path.route.via:
            return path
        destination = str(IPv4Address(int(ip_address(path.route.via)) & 0xFFFFFFFF))
        tunnel = OuterHeader(protocol="IP in IP", source=str(me.address(4) or ""), destination=destination)
        return replace(path, tunnel=tunnel, missing=leads_to(peer, destination, shown(path.route)))

    def overhead(self, me: LocalNode) -> int:
        """20 bytes: one IPv4 header."""
        return _OVERHEAD


def _routes(peer: Peer, sources: Mapping[int, str]) -> Iterator[Route]:
    """The routes to a peer's pods of the IP versions that this node's pods have."""
    for cidr in peer.pod_cidrs:
        if cidr.version in sources:
            outer = f"{'::' if cidr.version == 6 else ''}{peer.address(4)}"
            link = DEVICES[cidr.version][0]
            yield Route(dst=str(cidr), via=outer, link=link, onlink=True, src=sources[cidr.version])
