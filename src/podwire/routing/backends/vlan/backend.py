"""Pod routing in a VLAN (IEEE 802.1Q) that all nodes are stations of, without further encapsulation.

The segment (:mod:`podwire.routing.segment`) is a bridge on each node. Its port ``podwire-vlan-up`` is a device of kind
vlan on the uplink, which tags the frames. So switches keep the packets of pods apart from those of the nodes, and may
prioritise or filter them. The tag is not part of the MTU (net/8021q/vlan_dev.c).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podwire.routing.backend import BackendOptions, BackendPlan, check_range
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath
from podwire.routing.segment import NodeSegment, check_uplink
from podwire.state.link import Link
from podwire.state.link_kinds import Vlan

PORT = "podwire-vlan-up"


class VlanSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The number of the VLAN, and the device that leads to the other nodes.

    An empty ``uplink`` is the device with the node's addresses.
    """

    id: int = 1000
    uplink: str = ""


class VlanOptions(BackendOptions, frozen=True):
    """The section ``routing.vlan``."""

    vlan: VlanSection = VlanSection()

    def check(self, source: str) -> None:
        """Checks the range of IEEE 802.1Q, which reserves 0 and 4095, and the name of the uplink.

        Raises: ConfigError naming the field.
        """
        check_range(source, "routing.vlan.id", self.vlan.id, 1, 4094)
        check_uplink(source, "routing.vlan.uplink", self.vlan.uplink)


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

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The hardware address in the VLAN."""
        return self._segment.announce(me)

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The bridge, its port, and the way to each peer."""
        port = Link(name=PORT, kind="vlan", attributes=Vlan(self._id, self._segment.lower(me)))
        return self._segment.plan(me, peers, cluster, port)

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether both nodes have joined the VLAN."""
        return self._segment.reaches(me, peer)

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route to the VLAN, and the neighbour entry of the peer."""
        return self._segment.path(peer, address, state)

    def overhead(self, me: LocalNode) -> int:
        """None, unless the uplink has a smaller MTU than the device with the node's addresses."""
        return self._segment.overhead(me)
