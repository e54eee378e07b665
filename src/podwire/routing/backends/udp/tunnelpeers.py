"""The peers of a node's tunnel, from the nodes of the cluster (pure).

What follows from one node is kept while the node is the same. Cost: 1 us for each node that is the same.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

from podwire.routing.nodes import LocalNode, Peer
from podwire.routing.peerstates import PeerResults
from podwire.state.address import address_text, prefix_text
from podwire.state.ipvs import endpoint_text
from podwire.state.udptunnel import UdpPeer


class _Candidate(NamedTuple):
    """A node's address, its networks and addresses, and the peer that it is when no other node claims one of them."""

    address: str
    networks: tuple[str, ...]
    peer: UdpPeer


class TunnelPeers:
    """Plans the peers again and again."""

    def __init__(self) -> None:
        self._candidates = PeerResults[_Candidate | None]()
        self._ordered: list[UdpPeer] = []
        self._known: dict[str, UdpPeer] = {}

    def take(self, me: LocalNode, peers: Sequence[Peer], port_of: Callable[[Peer], int]) -> tuple[UdpPeer, ...]:
        """The peers in the order of their endpoints; an address or network that two nodes claim belongs to the first.

        ``port_of`` gives the port of a node, and always the same for the same node.
        """
        version = me.addresses[0].version
        candidates = self._candidates.take(peers, version, lambda peer: _candidate(peer, version, port_of))
        claimed = {str(address) for address in me.addresses} | set(map(str, me.pod_cidrs))
        now: dict[str, UdpPeer] = {}
        for peer in peers:
            candidate = candidates[peer.name]
            if candidate is None or candidate.address in claimed:
                continue
            entry, networks = candidate.peer, candidate.networks
            if not claimed.isdisjoint(networks):
                networks = tuple(network for network in networks if network not in claimed)
                entry = UdpPeer(entry.endpoint, networks)
            claimed.update(networks)
            now[peer.name] = entry
        self._follow(now)
        return tuple(self._ordered)

    def _follow(self, now: dict[str, UdpPeer]) -> None:
        """Puts the peers in order, at the cost of those that differ."""
        for name, entry in self._known.items():
            if now.get(name) is not entry:
                del self._ordered[bisect_left(self._ordered, entry)]
        for name, entry in now.items():
            if self._known.get(name) is not entry:
                insort(self._ordered, entry)
        self._known = now


def _candidate(peer: Peer, version: int, port_of: Callable[[Peer], int]) -> _Candidate | None:
    address = peer.address(version)
    if address is None:
        return None
    networks = (*map(address_text, peer.addresses), *map(prefix_text, peer.pod_cidrs))
    return _Candidate(str(address), networks, UdpPeer(endpoint_text(str(address), port_of(peer)), networks))
