"""Pod routing by Geneve (RFC 8926): one device, and the outer header of each peer in the route to it.

The device has no remote end and no virtual network of its own (``external``): a route with ``encap`` carries both
(lightweight tunnels, net/ipv4/ip_tunnel_core.c). Per peer and family: a ``route`` to its pod CIDR with the peer's node
address in ``encap``, ``onlink`` through the peer's own pod-CIDR address, and a permanent ``neighbour`` with the
hardware address of the peer's device. There is no forwarding table. As with ``vxlan``, the hardware address follows
from the node's name, an IPv6 gateway gets a route of its own first, and both pod families use the family of the node's
first address. Encapsulation takes 50 bytes over IPv4 and 70 over IPv6 (inner Ethernet 14, Geneve 8 without options,
UDP 8, IP 20 or 40).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from podwire.routing.backend import BackendOptions, BackendPlan, check_range
from podwire.routing.mtu import device_mtu
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import OuterHeader, PathState, PeerPath, follow_route, leads_to, next_neighbour, shown
from podwire.routing.peerstates import PeerStates
from podwire.routing.tables import INGRESS, guard_udp_port
from podwire.routing.tunnels import (
    announced_mac,
    gateways,
    no_outer_address,
    not_receiving,
    tunnel_addresses,
    tunnel_mac,
    tunnel_sources,
    tunnel_sysctls,
)
from podwire.state.link import Link
from podwire.state.link_kinds import Geneve
from podwire.state.network import NetworkState, Object, merge
from podwire.state.route import Route

DEVICE = "podwire-geneve"
GUARD = "podwire-routing-geneve"
_OVERHEAD = {4: 50, 6: 70}
_TTL = 64


class GeneveSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The virtual network identifier and the UDP port, the same on all nodes."""

    vni: int = 4096
    port: int = 6081


class GeneveOptions(BackendOptions, frozen=True):
    """The section ``routing.geneve``."""

    routes_outside = True

    geneve: GeneveSection = GeneveSection()

    def check(self, source: str) -> None:
        """Checks the ranges of RFC 8926 and of UDP.

        Raises: ConfigError naming the field.
        """
        check_range(source, "routing.geneve.vni", self.geneve.vni, 1, (1 << 24) - 1)
        check_range(source, "routing.geneve.port", self.geneve.port, 1, 65535)


class GeneveTunnel:
    """A Geneve device to all peers."""

    name = "geneve"
    feature = "geneve"
    features = (INGRESS,)
    options = GeneveOptions
    tables = (GUARD,)
    announced = True
    crosses_routers = True

    def __init__(self, options: GeneveOptions) -> None:
        self._options = options.geneve
        self._peers = PeerStates()

    @property
    def udp_ports(self) -> tuple[int, ...]:
        """The port of Geneve."""
        return (self._options.port,)

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The device's hardware address."""
        return {"geneve": {"mac": tunnel_mac(me.name)}}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The device, its addresses, the way to each peer, and the guard of the port.

        Geneve carries no credentials, so the guard accepts it only from nodes.
        """
        common = NetworkState(
            links=(self._device(me),),
            addresses=tunnel_addresses(DEVICE, me),
            sysctls=tunnel_sysctls(DEVICE, me),
        )
        basis = (me.addresses[0].version, tunnel_sources(me))
        network = merge([common, self._peers.merged(peers, basis, lambda peer: self._way(me, peer))])
        guard = guard_udp_port(GUARD, self._options.port, me, cluster)
        return BackendPlan(network=network, values=(guard,), tunnels=(DEVICE,))

    def _way(self, me: LocalNode, peer: Peer) -> Iterator[Object]:
        if (address := peer.address(me.addresses[0].version)) is not None:
            mac = announced_mac(peer.facts.details.get("geneve") if peer.facts else None, peer)
            for cidr, gateway in gateways(DEVICE, peer, mac):
                yield gateway
                yield from self._routes(me, str(cidr), gateway.ip, address)

    def _routes(self, me: LocalNode, cidr: str, gateway: str, node: Address) -> list[Route]:
        outer: dict[str, Any] = {
            "link": DEVICE,
            "encap": "ip6" if node.version == 6 else "ip",
            "tunnel_id": self._options.vni,
            "tunnel_dst": str(node),
            "tunnel_hop_limit" if node.version == 6 else "tunnel_ttl": _TTL,
        }
        version = 6 if ":" in cidr else 4
        way = Route(dst=cidr, via=gateway, onlink=True, src=tunnel_sources(me).get(version, ""), **outer)
        return [way] if version == 4 else [Route(dst=f"{gateway}/128", **outer), way]

    def _device(self, me: LocalNode) -> Link:
        return Link(
            name=DEVICE,
            kind="geneve",
            mtu=device_mtu(me, self.overhead(me)),
            mac=tunnel_mac(me.name),
            alias="podwire/routing geneve",
            attributes=Geneve(port=self._options.port, external=True),
        )

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether the peer has an address of the tunnel's outer family and can receive Geneve."""
        return no_outer_address(me, peer) or not_receiving(peer, self.name)

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route with the outer header, and the neighbour entry of its next hop."""
        path = follow_route(state.network, peer, address, (DEVICE,))
        if path.missing or path.route is None:
            return path
        route = path.route
        if next_neighbour(state.network, route) is None:
            return replace(path, missing=(f"no neighbour entry for {route.via} on {DEVICE}",))
        link = state.network.link(DEVICE)
        tunnel = OuterHeader(
            protocol="Geneve",
            id=route.tunnel_id,
            port=link.attributes.port if link is not None and isinstance(link.attributes, Geneve) else 0,
            source=str(me.addresses[0]),
            destination=route.tunnel_dst,
        )
        return replace(path, tunnel=tunnel, missing=leads_to(peer, route.tunnel_dst, shown(route)))

    def overhead(self, me: LocalNode) -> int:
        """50 bytes over IPv4, 70 over IPv6."""
        return _OVERHEAD[me.addresses[0].version]
