"""Pod routing in a VLAN (IEEE 802.1Q) that all nodes are stations of, without further encapsulation.

The segment (:mod:`podwire.routing.segment`) is a bridge on each node. Its port ``podwire-vlan-up`` is a device of kind
vlan on the uplink, which tags the frames. So switches keep the packets of pods apart from those of the nodes, and may
prioritise or filter them. The tag is not part of the MTU (net/8021q/vlan_dev.c).

Pods may be in several networks, each of which has a VLAN (:mod:`podwire.routing.backends.vlan.trunk`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from podwire.routing.backend import BackendPlan
from podwire.routing.backends.vlan.options import VlanOptions
from podwire.routing.backends.vlan.trunk import Trunk
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath
from podwire.routing.segment import NodeSegment
from podwire.state.link import Link
from podwire.state.link_kinds import Vlan

PORT = "podwire-vlan-up"


class VlanSegment:
    """A bridge on each node, joined by a device of kind vlan on the uplink."""

    name = "vlan"
    feature = "locked-vlan-port"
    options = VlanOptions
    tables = ()
    announced = True
    crosses_routers = False
    udp_ports = ()

    def __init__(self, options: VlanOptions) -> None:
        self._id = options.vlan.id
        self._segment = NodeSegment(self.name, options.vlan.uplink)
        self._trunk = Trunk(options.pod_networks, self._segment)

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The hardware address in the VLAN."""
        return self._segment.announce(me)

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """For each network the bridge, its port, and the way to each peer; nothing while the uplink cannot be used."""
        port = Link(name=PORT, kind="vlan", attributes=Vlan(self._id, self._segment.lower(me)))
        plan = self._segment.plan(me, peers, cluster, port)
        return self._trunk.plan(me, peers, cluster, plan) if plan.tunnels else plan

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether both nodes have joined the VLAN."""
        return self._segment.reaches(me, peer)

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route to the VLAN, and the neighbour entry of the peer."""
        for network, member in self._trunk.at(peer, address):
            return network.segment.path(member, address, state)
        return self._segment.path(peer, address, state)

    def overhead(self, me: LocalNode) -> int:
        """The bytes by which the uplink's MTU is smaller than that of the device with the node's addresses."""
        return self._segment.overhead(me)
