"""No pod routing: the network between the nodes, or another program, knows where each node's pods are.

For networks whose routers have the pod CIDRs already (a cloud's route tables, routers that an operator configures), and
for clusters in which another program writes the routes. Pods still get addresses, the full MTU of the underlay, and
masquerade where it is configured. Cost: nothing per peer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.routing.backend import BackendOptions, BackendPlan
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath, follow_route


class NoRouting:
    """Leaves packets between nodes to the routes that the node has."""

    name = "none"
    feature = ""
    options = BackendOptions
    tables = ()
    announced = True
    """So that peers take this backend only for nodes that are configured with it, never in place of another one."""
    crosses_routers = True
    udp_ports = ()

    def __init__(self, options: BackendOptions) -> None:
        """``none`` has no options."""

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """No facts: peers need none to send to this node."""
        return {}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """An empty plan: this backend writes no state."""
        return BackendPlan()

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Always: this backend does not know what carries the packets."""
        return ""

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route that the node has, a default route too: the network behind it is not known here."""
        return follow_route(state.network, peer, address, any_route=True)

    def overhead(self, me: LocalNode) -> int:
        """0: the node encapsulates no packets."""
        return 0
