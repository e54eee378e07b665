"""The VLANs of pod networks on one uplink, as the state of one node (pure).

Each pod network has a segment of its own (:mod:`podwire.routing.segment`): a bridge ``podwire-v<id>`` with the port
``podwire-vp<id>``, a device of kind vlan on the uplink. The segment leads to the ranges of the network on the nodes
that have announced the network with the same VLAN. A node has the same hardware address in all VLANs.

Cost: two devices per network; the entries of a segment per network and peer; 1 us per network and peer that changes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from podwire.cluster.podnetworks import DEFAULT_NETWORK, NodePodNetwork, announced_networks
from podwire.routing.backend import BackendPlan
from podwire.routing.nodes import ClusterView, LocalNode, Network, Peer
from podwire.routing.podnetworks import PodNetworks, PodNetworkSection, node_ranges
from podwire.routing.segment import NodeSegment
from podwire.state.link import Link
from podwire.state.link_kinds import Vlan
from podwire.state.network import merge


class AnnouncedNetworks:
    """The pod networks that peers announce, by name; read once for each version of a peer."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Peer, Mapping[str, NodePodNetwork]]] = {}

    def read(self, peer: Peer) -> Mapping[str, NodePodNetwork]:
        """The networks of a peer."""
        known = self._known.get(peer.name)
        if known is None or known[0] is not peer:
            networks = announced_networks(peer.facts.details) if peer.facts is not None else ()
            known = self._known[peer.name] = peer, {network.name: network for network in networks}
        return known[1]

    def forget(self, names: Collection[str]) -> None:
        """Forgets all peers but those with these names."""
        self._known = {name: entry for name, entry in self._known.items() if name in names}


class NetworkSegment:
    """The segment of one pod network; ``base`` is that of the default network, with the same uplink."""

    def __init__(self, network: PodNetworkSection, base: NodeSegment, announced: AnnouncedNetworks) -> None:
        self.network = network
        self._announced = announced
        self.segment = NodeSegment(base.backend, base.uplink, f"podwire-v{network.id}")
        self._clusters: tuple[Network, ...] = ()
        self._members: dict[str, tuple[Peer, Peer | None]] = {}
        """Peers by name, each with the peer as it is in this network."""

    def plan(
        self, me: LocalNode, ranges: tuple[Network, ...], peers: Sequence[Peer], cluster: ClusterView
    ) -> BackendPlan:
        """The bridge with its port, and the way to the ranges of the peers that are in the network."""
        port = Link(
            name=f"podwire-vp{self.network.id}",
            kind="vlan",
            attributes=Vlan(self.network.id, self.segment.lower(me)),
        )
        if cluster.cluster_cidrs != self._clusters:
            self._clusters, self._members = cluster.cluster_cidrs, {}
        members = {peer.name: member for peer in cluster.peers if (member := self.member(peer)) is not None}
        present = {peer.name for peer in cluster.peers}
        self._members = {name: entry for name, entry in self._members.items() if name in present}
        reached = [members[peer.name] for peer in peers if peer.name in members]
        view = ClusterView(tuple(members.values()), cluster.pod_networks)
        return self.segment.plan(replace(me, pod_cidrs=ranges), reached, view, port)

    def member(self, peer: Peer) -> Peer | None:
        """A peer with its ranges of this network in place of its pod CIDRs; None where it has not joined the VLAN."""
        known = self._members.get(peer.name)
        if known is None or known[0] is not peer:
            known = self._members[peer.name] = peer, self._joined(peer)
        return known[1]

    def _joined(self, peer: Peer) -> Peer | None:
        """The peer in this network, if it has announced the VLAN and, where this can be checked, its own ranges."""
        network = self._announced.read(peer).get(self.network.name)
        if network is None or network.vlan != self.network.id:
            return None
        is_own = not self._clusters or network.networks == self._ranges(peer)
        return replace(peer, pod_cidrs=network.networks) if is_own else None

    def _ranges(self, peer: Peer) -> tuple[Network, ...]:
        try:
            return node_ranges(self.network, peer.pod_cidrs, self._clusters)
        except ValueError:
            return ()


class Trunk:
    """The pod networks of the backend besides the default one."""

    def __init__(self, networks: PodNetworks, base: NodeSegment) -> None:
        self._default_id = networks.default_id
        self._announced = AnnouncedNetworks()
        self._segments = tuple(NetworkSegment(network, base, self._announced) for network in networks.networks)

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView, base: BackendPlan) -> BackendPlan:
        """The plan ``base`` of the default network, with the segments of the other networks."""
        if not self._segments:
            return base
        self._announced.forget({peer.name for peer in cluster.peers})
        plans, problems = [base], []
        default = NodePodNetwork(DEFAULT_NETWORK, self._default_id, tuple(map(str, me.pod_cidrs)))
        own = [default]
        for segment in self._segments:
            network = segment.network
            try:
                ranges = node_ranges(network, me.pod_cidrs, cluster.cluster_cidrs)
            except ValueError as failure:
                problems.append(f"pods cannot be in the network {network.name}: {failure}")
                continue
            plans.append(segment.plan(me, ranges, peers, cluster))
            own.append(NodePodNetwork(network.name, network.id, tuple(map(str, ranges))))
        return msgspec.structs.replace(
            base,
            network=merge([plan.network for plan in plans]),
            tunnels=tuple(device for plan in plans for device in plan.tunnels),
            degraded="; ".join(filter(None, (base.degraded, *problems))),
            pod_networks=tuple(own),
        )

    def at(self, peer: Peer, address: object) -> Iterator[tuple[NetworkSegment, Peer]]:
        """The segment with an address of a peer's pod, and the peer as it is in that network; nothing for others."""
        for segment in self._segments:
            member = segment.member(peer)
            for cidr in member.pod_cidrs if member is not None else ():
                if address in cidr and member is not None:
                    yield segment, member
