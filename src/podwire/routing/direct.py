"""Plain routes: the next hop of a peer's pod CIDR is the peer's own address, which has to be on the same subnet."""

from collections.abc import Iterator, Sequence

from podwire.routing.entries import route_to
from podwire.routing.nodes import LocalNode, Peer
from podwire.routing.peerstates import PeerStates
from podwire.state.address import address_text
from podwire.state.network import NetworkState
from podwire.state.route import Route


class DirectRoutes:
    """The routes to the peers of the same subnet, kept while a peer is the same."""

    def __init__(self) -> None:
        self._states = PeerStates()

    def state(self, me: LocalNode, peers: Sequence[Peer]) -> NetworkState:
        """A route for each pod CIDR whose peer has an address of its family on the same subnet."""
        basis = (me.addresses, me.underlay.link, me.underlay.addresses)
        return self._states.merged(peers, basis, lambda peer: _routes(me, peer))


def _routes(me: LocalNode, peer: Peer) -> Iterator[Route]:
    for cidr in peer.pod_cidrs:
        gateway, source = peer.address(cidr.version), me.address(cidr.version)
        if gateway is not None and me.underlay.reaches(gateway):
            link, own = me.underlay.link, address_text(source) if source is not None else ""
            yield route_to(cidr, address_text(gateway), link=link, src=own)


def no_address(peer: Peer) -> str:
    """Empty when the peer has an address of the family of each of its pod CIDRs, else the reason as text."""
    for cidr in peer.pod_cidrs:
        if peer.address(cidr.version) is None:
            return f"node {peer.name} has no IPv{cidr.version} address for its pod CIDR {cidr}"
    return ""


def behind_router(me: LocalNode, peer: Peer) -> str:
    """Empty when the peer is on the same subnet in the families of its pod CIDRs, else the reason as text."""
    for cidr in peer.pod_cidrs:
        gateway = peer.address(cidr.version)
        if gateway is not None and not me.underlay.reaches(gateway):
            return f"node {peer.name} ({gateway}) is not on a subnet of {me.underlay.link}"
    return ""
