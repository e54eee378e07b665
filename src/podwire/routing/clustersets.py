"""The sets of addresses of a cluster that rules of nodes match; a change of one peer costs some microseconds."""

from collections.abc import Iterable, Sequence
from ipaddress import ip_network

from msgspec.structs import replace

from podwire.routing.networks import ClusterSets, Network, NetworkUnion
from podwire.routing.nodes import ClusterView, LocalNode, Peer
from podwire.routing.peerstates import PeerMemory

NEVER = {
    4: tuple(map(ip_network, ("224.0.0.0/4", "255.255.255.255/32", "169.254.0.0/16", "127.0.0.0/8"))),
    6: tuple(map(ip_network, ("ff00::/8", "fe80::/10", "::1/128"))),
}
"""Destinations to which packets of pods are never masqueraded: multicast, broadcast, link-local and loopback."""


class ClusterUnions:
    """Makes the sets for one node."""

    def __init__(self) -> None:
        self._known = PeerMemory()
        self._pods: dict[int, NetworkUnion] = {}
        self._nodes: dict[int, NetworkUnion] = {}
        self._unmasqueraded: dict[int, NetworkUnion] = {}

    def take(
        self, me: LocalNode, peers: Sequence[Peer], cidrs: Sequence[Network], exceptions: Sequence[Network] = ()
    ) -> ClusterSets:
        """The sets with all peers; ``cidrs`` are the configured pod networks."""
        basis = (me.addresses, me.pod_cidrs, me.underlay.addresses, tuple(cidrs), tuple(exceptions))
        changes = self._known.compare(peers, basis)
        if changes.anew:
            self._begin(me, cidrs, exceptions)
        for peer in changes.gone:
            for cidr in peer.pod_cidrs:
                self._pods[cidr.version].remove((cidr,))
                self._unmasqueraded[cidr.version].remove((cidr,))
            for address in peer.addresses:
                self._nodes[address.version].remove_hosts((address,))
                if me.underlay.reaches(address):
                    self._unmasqueraded[address.version].remove_hosts((address,))
        for version in (4, 6):
            cidrs_added = [cidr for peer in changes.new for cidr in peer.pod_cidrs if cidr.version == version]
            hosts = [address for peer in changes.new for address in peer.addresses if address.version == version]
            self._pods[version].add(cidrs_added)
            self._unmasqueraded[version].add(cidrs_added)
            self._nodes[version].add_hosts(hosts)
            self._unmasqueraded[version].add_hosts(address for address in hosts if me.underlay.reaches(address))
        self._known.keep(peers, basis)
        unions = (self._pods, self._nodes, self._unmasqueraded)
        return ClusterSets(*({version: union.merged for version, union in family.items()} for family in unions))

    def _begin(self, me: LocalNode, cidrs: Iterable[Network], exceptions: Iterable[Network]) -> None:
        configured, excepted = tuple(cidrs), tuple(exceptions)
        for version in (4, 6):
            pods = [network for network in (*configured, *me.pod_cidrs) if network.version == version]
            own = [address for address in me.addresses if address.version == version]
            ranges = [network for network in excepted if network.version == version]
            self._pods[version] = NetworkUnion(version, pods)
            self._nodes[version] = NetworkUnion(version)
            self._nodes[version].add_hosts(own)
            self._unmasqueraded[version] = NetworkUnion(version, (*pods, *ranges, *NEVER[version]))
            self._unmasqueraded[version].add_hosts(own)


def sets_of(me: LocalNode, cluster: ClusterView) -> ClusterSets:
    """The sets that a view of the cluster has; made for a view without."""
    return cluster.sets or ClusterUnions().take(me, cluster.peers, cluster.pod_networks)


def with_unmasqueraded(sets: ClusterSets, networks: Sequence[Network]) -> ClusterSets:
    """The sets in which packets of pods to further networks are not masqueraded; 3 us for each network of the set."""
    if not networks:
        return sets
    unmasqueraded = {
        version: NetworkUnion(
            version, (*merged.networks, *(network for network in networks if network.version == version))
        ).merged
        for version, merged in sets.unmasqueraded.items()
    }
    return replace(sets, unmasqueraded=unmasqueraded)
