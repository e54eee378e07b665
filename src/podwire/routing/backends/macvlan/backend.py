"""Pod routing by second interfaces of pods: macvlan devices on the uplink, in the mode ``bridge``.

Each pod has its addresses on two interfaces: the veth to its node, as with every backend, and a leg (``lan0``), which
is a station of the nodes' network. The kernel does not let a macvlan device talk to its own lower device
(drivers/net/macvlan.c), and the node must see packets to Services. So only packets to pods of other nodes take the leg;
those to Services, to cluster DNS, to nodes, to pods of the same node and out of the cluster take the veth. A pod
answers ARP and neighbour discovery on its leg itself.

A node announces that its pods have legs after all of them have one. Pods send by the leg only to nodes that announce
legs; to others, and for packets of the nodes, there are plain routes as in ``hostgw``. So nodes join one by one.

A connection must not use the leg in one direction and a translating node in the other: packets of this node's pods to a
Service come back by the leg, untranslated, unless the endpoint sees the node as their source. Therefore the table
``podwire-macvlan`` masquerades connections that the node translates between its own pods and pods with legs elsewhere.

No NetworkPolicy sees packets of legs. A node that enforces policies gives its pods no legs, nor does one whose Services
are translated by IPVS, which does not mark its connections as translated.

Cost: a device per pod, and per peer and family a route in the node and a route in each pod. No bytes in the packet.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podwire.cluster.podleg import PodLeg
from podwire.routing.backend import BackendOptions, BackendPlan
from podwire.routing.direct import DirectRoutes, behind_router, no_address
from podwire.routing.legs import ANNOUNCEMENT, leg_path, leg_table, legged_networks
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath
from podwire.routing.segment import NodeSegment, check_uplink

TABLE = "podwire-macvlan"


class MacvlanSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The lower device of the legs, empty for the one with the node's addresses."""

    uplink: str = ""


class MacvlanOptions(BackendOptions, frozen=True):
    """The section ``routing.macvlan``."""

    macvlan: MacvlanSection = MacvlanSection()

    def check(self, source: str) -> None:
        """Checks the name of the uplink.

        Raises: ConfigError naming the field.
        """
        check_uplink(source, "routing.macvlan.uplink", self.macvlan.uplink)


class MacvlanLegs:
    """Legs of pods in the network of the nodes, and plain routes."""

    name = "macvlan"
    feature = "macvlan"
    options = MacvlanOptions
    tables = (TABLE,)
    announced = True
    crosses_routers = False
    udp_ports = ()

    def __init__(self, options: MacvlanOptions) -> None:
        self._segment = NodeSegment(self.name, options.macvlan.uplink)
        self._routes = DirectRoutes()

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """That the pods of this node have legs; nothing when they have none."""
        return {} if self._refusal(me) else {self.name: ANNOUNCEMENT}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """A route per peer and family, and the leg of pods; without a leg, why not."""
        network = self._routes.state(me, peers)
        if reason := self._refusal(me):
            return BackendPlan(network=network, degraded=f"pods have no macvlan legs, and their nodes route: {reason}")
        networks = tuple(map(str, legged_networks(peers, self.name)))
        leg = PodLeg(self._segment.lower(me), self._segment.mtu(me), networks)
        table = leg_table(TABLE, me.pod_cidrs, legged_networks(cluster.peers, self.name))
        return BackendPlan(network=network, values=(table,), leg=leg)

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether every pod CIDR of the peer has an address of its family on the same subnet."""
        return no_address(peer) or behind_router(me, peer)

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The leg between pods with legs, else the plain route."""
        return leg_path(me, peer, address, state, (self.name, self._segment.lower(me)))

    def overhead(self, me: LocalNode) -> int:
        """0: packets between nodes are not encapsulated."""
        return 0

    def _refusal(self, me: LocalNode) -> str:
        """Why pods get no legs; empty when they do."""
        return me.leg_obstacle or self._segment.refusal(me)
