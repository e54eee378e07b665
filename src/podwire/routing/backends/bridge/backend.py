"""Pod routing over one layer 2 segment that all nodes are stations of, without encapsulation.

The segment (:mod:`podwire.routing.segment`) is a bridge on each node. Its port ``podwire-br-port`` is a macvlan device
on the uplink: the device with the node's addresses, or another card that leads to the same network as that of the other
nodes (``routing.bridge.uplink``) and needs no address of its own. The mode is ``private``, so macvlan devices of other
programs on the same uplink exchange no frames with it (drivers/net/macvlan.c).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podwire.routing.backend import BackendOptions, BackendPlan
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath
from podwire.routing.segment import NodeSegment, check_uplink
from podwire.state.link import Link

PORT = "podwire-br-port"


class BridgeSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The device that leads to the other nodes, empty for the one with the node's addresses."""

    uplink: str = ""


class BridgeOptions(BackendOptions, frozen=True):
    """The section ``routing.bridge``."""

    routes_outside = True

    bridge: BridgeSection = BridgeSection()

    def check(self, source: str) -> None:
        """Checks the name of the uplink.

        Raises: ConfigError naming the field.
        """
        check_uplink(source, "routing.bridge.uplink", self.bridge.uplink)


class BridgeSegment:
    """A bridge on each node, joined by a macvlan device on the uplink."""

    name = "bridge"
    feature = "locked-macvlan-port"
    options = BridgeOptions
    tables = ()
    announced = True
    crosses_routers = False
    udp_ports = ()

    def __init__(self, options: BridgeOptions) -> None:
        self._segment = NodeSegment(self.name, options.bridge.uplink)

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The hardware address in the segment."""
        return self._segment.announce(me)

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The bridge, its port, and the way to each peer."""
        port = Link(name=PORT, kind="macvlan", device=self._segment.lower(me), mode="private")
        return self._segment.plan(me, peers, cluster, port)

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether both nodes have joined the segment."""
        return self._segment.reaches(me, peer)

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route to the segment, and the neighbour entry of the peer."""
        return self._segment.path(peer, address, state)

    def overhead(self, me: LocalNode) -> int:
        """The bytes by which the uplink's MTU is smaller than that of the device with the node's addresses."""
        return self._segment.overhead(me)
