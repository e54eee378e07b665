"""Plain routes: the next hop of a peer's pod CIDR is the peer's own address, which has to be on the same subnet."""

from collections.abc import Iterable

from podwire.routing.nodes import LocalNode, Peer
from podwire.state.route import Route


def direct_routes(me: LocalNode, peers: Iterable[Peer]) -> tuple[Route, ...]:
    """A route for each pod CIDR whose peer has an address of its family on the same subnet."""
    routes = []
    for peer in peers:
        for cidr in peer.pod_cidrs:
            gateway, source = peer.address(cidr.version), me.address(cidr.version)
            if gateway is not None and me.underlay.reaches(gateway):
                routes.append(
                    Route(dst=str(cidr), via=str(gateway), link=me.underlay.link, src=str(source) if source else "")
                )
    return tuple(routes)


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
