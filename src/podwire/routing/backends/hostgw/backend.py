"""Pod routing by plain routes: the next hop of each peer's pod CIDR is the peer's own address.

Without encapsulation the full MTU is usable, but every peer must be on the same subnet: a router in between would not
have routes to the pod CIDRs. Cost: one route per peer and family.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.routing.backend import BackendOptions, BackendPlan
from podwire.routing.nodes import ClusterView, LocalNode, Peer
from podwire.state.network import NetworkState
from podwire.state.route import Route


class HostGateway:
    """Routes through the peers themselves."""

    name = "hostgw"
    feature = ""
    options = BackendOptions
    tables = ()
    announced = False
    crosses_routers = False
    udp_ports = ()

    def __init__(self, options: BackendOptions) -> None:
        """``hostgw`` has no options."""

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """Nothing, since there is no device."""
        return {}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """A route per peer and family."""
        routes = []
        for peer in peers:
            for cidr in peer.pod_cidrs:
                gateway, source = peer.address(cidr.version), me.address(cidr.version)
                if gateway is not None and me.underlay.reaches(gateway):
                    routes.append(
                        Route(dst=str(cidr), via=str(gateway), link=me.underlay.link, src=str(source) if source else "")
                    )
        return BackendPlan(network=NetworkState(routes=tuple(routes)))

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether every pod CIDR of the peer has an address of its family on the same subnet."""
        for cidr in peer.pod_cidrs:
            gateway = peer.address(cidr.version)
            if gateway is None:
                return f"node {peer.name} has no IPv{cidr.version} address for its pod CIDR {cidr}"
            if not me.underlay.reaches(gateway):
                return f"node {peer.name} ({gateway}) is not on a subnet of {me.underlay.link}"
        return ""

    def overhead(self, me: LocalNode) -> int:
        """None."""
        return 0
