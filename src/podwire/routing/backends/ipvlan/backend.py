"""Pod routing by second interfaces of pods: ipvlan devices on the uplink, which all have its hardware address.

As with ``macvlan``, each pod has its addresses on two interfaces: the veth to its node, and a leg (``lan0``). The
network sees one hardware address per node, so switches and clouds that refuse further ones do not matter. The kernel
does not let an ipvlan device talk to its own lower device (drivers/net/ipvlan/ipvlan_core.c), and the node must see
packets to Services: those, and packets to cluster DNS, to the own node, to pods of the same node and out of the cluster
take the veth.

The lower device hands every packet for an address of a leg to that leg, before the node's own stack sees it: packets of
nodes without legs, too. Connection tracking of the node calls the answers invalid if they pass the node and the packets
before did not. So answers take the leg as well: it leads to the pods of peers with legs, to the addresses of peers, and
through these to pods of peers without legs. On a second card, which other packets do not take, it leads to the pods of
peers with legs alone.

The modes are those of the kernel. ``l2``: the pod answers ARP and neighbour discovery on its leg. ``l3``: there is no
ARP; packets leave by the routes of the node, to the hardware address of the next node. ``l3s``: as ``l3``, and arriving
packets pass the node's hook ``input``. In no mode do packets pass ``forward``, where policies are.

No NetworkPolicy sees packets of legs. A node that enforces policies gives its pods no legs, nor does one whose Services
are translated by IPVS, which does not mark its connections as translated.

Cost: a device per pod, and per peer and family a route in the node and two in each pod. No bytes in the packet.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from podwire.cluster.podleg import PodLeg
from podwire.routing.backend import BackendOptions, BackendPlan
from podwire.routing.direct import DirectRoutes, behind_router, no_address
from podwire.routing.legs import ANNOUNCEMENT, has_legs, leg_path, leg_table, legged_networks
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath
from podwire.routing.segment import NodeSegment, check_uplink

TABLE = "podwire-ipvlan"


class IpvlanSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The lower device of the legs, empty for the one with the node's addresses, and the mode of the legs."""

    uplink: str = ""
    mode: Literal["l2", "l3", "l3s"] = "l2"


class IpvlanOptions(BackendOptions, frozen=True):
    """The section ``routing.ipvlan``."""

    ipvlan: IpvlanSection = IpvlanSection()

    def check(self, source: str) -> None:
        """Checks the name of the uplink.

        Raises: ConfigError naming the field.
        """
        check_uplink(source, "routing.ipvlan.uplink", self.ipvlan.uplink)


class IpvlanLegs:
    """Legs of pods with the hardware address of their node, and plain routes."""

    name = "ipvlan"
    feature = "ipvlan"
    options = IpvlanOptions
    tables = (TABLE,)
    announced = True
    crosses_routers = False
    udp_ports = ()

    def __init__(self, options: IpvlanOptions) -> None:
        self._segment = NodeSegment(self.name, options.ipvlan.uplink)
        self._routes = DirectRoutes()
        self._mode = options.ipvlan.mode

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """That the pods of this node have legs; nothing when they have none."""
        return {} if self._refusal(me) else {self.name: ANNOUNCEMENT}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """A route per peer and family, and the leg of pods; without a leg, why not."""
        network = self._routes.state(me, peers)
        if reason := self._refusal(me):
            return BackendPlan(network=network, degraded=f"pods have no ipvlan legs, and their nodes route: {reason}")
        shared = self._segment.lower(me) == me.underlay.link
        leg = PodLeg(
            uplink=self._segment.lower(me),
            mtu=self._segment.mtu(me),
            networks=(*map(str, legged_networks(peers, self.name)), *(_addresses(me, peers) if shared else ())),
            gateways=_gateways(me, peers) if shared else (),
            kind="ipvlan",
            mode=self._mode,
        )
        far = [cidr for peer in cluster.peers if shared or has_legs(peer, self.name) for cidr in peer.pod_cidrs]
        return BackendPlan(network=network, values=(leg_table(TABLE, me.pod_cidrs, far),), leg=leg)

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
        if reason := me.leg_obstacle or self._segment.refusal(me):
            return reason
        lower = self._segment.lower(me)
        for name, device in me.underlay.devices.items():
            if device.kind == "macvlan" and device.lower == lower:
                problem = f"{lower} of node {me.name} has the macvlan device {name}"
                return (
                    f"{problem}, and the kernel lets no device carry both kinds (delete {name}, or set another uplink)"
                )
        return ""


def _addresses(me: LocalNode, peers: Sequence[Peer]) -> list[str]:
    """The addresses of peers on the same subnet, as networks."""
    reached = (address for peer in peers for address in peer.addresses if me.underlay.reaches(address))
    return [f"{address}/{address.max_prefixlen}" for address in reached]


def _gateways(me: LocalNode, peers: Sequence[Peer]) -> tuple[tuple[str, str], ...]:
    """The pod CIDRs of peers without legs, each with the address of its node."""
    bare = (peer for peer in peers if not has_legs(peer, IpvlanLegs.name))
    pairs = ((cidr, peer.address(cidr.version)) for peer in bare for cidr in peer.pod_cidrs)
    return tuple((str(cidr), str(gateway)) for cidr, gateway in pairs if gateway and me.underlay.reaches(gateway))
