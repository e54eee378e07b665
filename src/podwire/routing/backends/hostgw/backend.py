"""Pod routing by plain routes: the next hop of each peer's pod CIDR is the peer's own address.

Without encapsulation the full MTU is usable, but every peer must be on the same subnet: a router in between would not
have routes to the pod CIDRs. Cost: one route per peer and family.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.routing.backend import BackendOptions, BackendPlan
from podwire.routing.direct import DirectRoutes, behind_router, no_address
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath, follow_plain_route


class HostgwOptions(BackendOptions, frozen=True):
    """No options of its own."""

    routes_outside = True


class HostGateway:
    """Routes through the peers themselves."""

    name = "hostgw"
    feature = ""
    options = HostgwOptions
    tables = ()
    announced = False
    crosses_routers = False
    udp_ports = ()

    def __init__(self, options: HostgwOptions) -> None:
        """``hostgw`` has no options."""
        self._routes = DirectRoutes()

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """No facts, since there is no device."""
        return {}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """A route per peer and family."""
        return BackendPlan(network=self._routes.state(me, peers))

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether every pod CIDR of the peer has an address of its family on the same subnet."""
        return no_address(peer) or behind_router(me, peer)

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route through the peer."""
        return follow_plain_route(state.network, peer, address)

    def overhead(self, me: LocalNode) -> int:
        """0: packets between nodes are not encapsulated."""
        return 0
