"""The largest packets of pods, by IP family: from the path to each peer and the header of the backend that sends there.

A packet to a peer may be as large as the smallest of these allows, less the bytes that the backend adds: the route to
the peer's node address (its MTU, or that of its device), and the MTU that the peer announces for its own device. The
outer address is one of the tunnel's family; without a tunnel it is the next hop of the pod's family. The MTU of pods is
the smallest of all peers, so that pods depend on no ICMP message; a route to a peer gets an MTU of its own where the
device in front of it takes larger packets. With ``routing.directRouting`` the header counts as soon as one peer is
behind a router.

IPv6 needs 1280 bytes (RFC 8200, section 5): a tunnel over a narrower path fragments its outer packets. IPv4 pods get
what the path carries, down to 576 bytes (RFC 791). Cost: 10 ns for each peer that is the same as before, and some
microseconds for each with a narrower path than the node's own device.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from msgspec.structs import replace

from podwire.cluster.podnetworks import DEFAULT_NETWORK, announced_networks
from podwire.routing.backend import Backend
from podwire.routing.nodes import LocalNode, Network, Peer
from podwire.routing.peerstates import PeerMemory
from podwire.routing.settings import RoutingSettings
from podwire.state.network import NetworkState

LEAST = {4: 576, 6: 1280}
"""The smallest MTU of pods by family."""
FACT = "mtu"
"""The key under which a node announces the MTU of its device."""


@runtime_checkable
class OneOuterFamily(Protocol):
    """A tunnel whose outer packets do not have the family of the node's first address."""

    outer_version: int


def device_mtu(me: LocalNode, overhead: int) -> int:
    """The MTU of a tunnel device that adds ``overhead`` bytes: with IPv6 pods never less than IPv6 needs."""
    return (
        max(*LEAST.values(), me.underlay.mtu - overhead) if _has_v6(me) else max(LEAST[4], me.underlay.mtu - overhead)
    )


class Header(NamedTuple):
    """The bytes that a backend adds to a packet, and the family of its outer packets; 0: that of the pods."""

    size: int
    outer_version: int


def headers(me: LocalNode, backends: Mapping[str, Backend]) -> dict[str, Header]:
    """The headers by backend."""
    return {name: _header(me, backend) for name, backend in backends.items()}


def _header(me: LocalNode, backend: Backend) -> Header:
    size = backend.overhead(me)
    if not size or not backend.crosses_routers:
        return Header(size, 0)
    return Header(size, backend.outer_version if isinstance(backend, OneOuterFamily) else me.addresses[0].version)


def peer_mtu(me: LocalNode, peer: Peer, header: Header, version: int) -> int:
    """The largest packet of a pod to pods of a peer, in bytes."""
    address = peer.address(header.outer_version or version)
    path = me.underlay.path_mtu(address) if address is not None else me.underlay.mtu
    path = min(path, announced_mtu(peer) or path)
    return max(LEAST[version], path - header.size)


class NarrowPeers:
    """The peers whose path may take smaller packets than the node's own device; a plan computes the MTU of these."""

    def __init__(self) -> None:
        self._known = PeerMemory()
        self._narrow: dict[str, Peer] = {}

    def take(self, me: LocalNode, peers: Sequence[Peer]) -> Mapping[str, Peer]:
        """The narrow ones of all peers, by name."""
        basis = (me.underlay.mtu, me.underlay.routes)
        changes = self._known.compare(peers, basis)
        if changes.anew:
            self._narrow = {}
        for peer in changes.gone:
            self._narrow.pop(peer.name, None)
        for peer in changes.new:
            if me.underlay.routes or 0 < announced_mtu(peer) < me.underlay.mtu:
                self._narrow[peer.name] = peer
        self._known.keep(peers, basis)
        return dict(self._narrow)


def pod_mtus(
    me: LocalNode,
    settings: RoutingSettings,
    by_backend: Mapping[str, Header],
    senders: Mapping[str, str],
    narrow: Mapping[str, Peer],
) -> dict[int, int]:
    """The MTU of pods in bytes for each family of this node's pods; ``senders`` is the backend of each peer."""
    in_use = set(senders.values())
    if not in_use or not settings.direct_routing:
        in_use.add(settings.backend)
    room = min(me.underlay.mtu - by_backend[name].size for name in in_use)
    mtus: dict[int, int] = {}
    for version in sorted({cidr.version for cidr in me.pod_cidrs}):
        sizes = [
            peer_mtu(me, peer, by_backend[senders[peer.name]], version)
            for peer in narrow.values()
            if peer.name in senders and any(cidr.version == version for cidr in peer.pod_cidrs)
        ]
        mtus[version] = max(LEAST[version], min(room, settings.mtu or room, *sizes))
    return mtus


def with_path_mtus(
    state: NetworkState,
    me: LocalNode,
    by_backend: Mapping[str, Header],
    senders: Mapping[str, str],
    narrow: Mapping[str, Peer],
) -> NetworkState:
    """The state with an MTU on each route to a peer that takes smaller packets than the device in front of it."""
    limits = dict(_limits(me, by_backend, senders, narrow.values()))
    if not limits:
        return state
    routes = (replace(r, mtu=limits[r.dst]) if r.dst in limits and r.kind == "unicast" else r for r in state.routes)
    return replace(state, routes=tuple(routes))


def _limits(
    me: LocalNode, by_backend: Mapping[str, Header], senders: Mapping[str, str], peers: Iterable[Peer]
) -> Iterator[tuple[str, int]]:
    for peer in peers:
        if peer.name not in senders:
            continue
        header = by_backend[senders[peer.name]]
        device = device_mtu(me, header.size)
        for cidr in (*peer.pod_cidrs, *_further_ranges(peer)):
            if (mtu := peer_mtu(me, peer, header, cidr.version)) < device:
                yield str(cidr), mtu


def _further_ranges(peer: Peer) -> Iterator[Network]:
    for network in announced_networks(peer.facts.details) if peer.facts is not None else ():
        if network.name != DEFAULT_NETWORK:
            yield from network.networks


def announced_mtu(peer: Peer) -> int:
    """The MTU that a peer announces for its device, in bytes; 0 when it announces none that is one."""
    announced = peer.facts.details.get(FACT) if peer.facts is not None else None
    return announced if isinstance(announced, int) and announced >= LEAST[4] else 0


def _has_v6(me: LocalNode) -> bool:
    return any(cidr.version == 6 for cidr in me.pod_cidrs)
