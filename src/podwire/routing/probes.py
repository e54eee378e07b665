"""What the self-test sends to each peer, and what the answers mean (pure).

A target is one family of one peer. Through a tunnel the packets go from the node's own tunnel address to the peer's, so
they take the path of pods' packets; without a tunnel they go between the nodes' addresses. Peers that do not announce
their MTU are no nodes of podwire, and are not tested.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from podwire.routing.backend import BackendPlan
from podwire.routing.mtu import Header, announced_mtu, peer_mtu
from podwire.routing.nodes import LocalNode, Peer, node_address
from podwire.routing.settings import RoutingSettings
from podwire.state.link import Link
from podwire.state.offload import Offload

NAMED = 3
"""Number of peers in the condition of the Node and its Events."""
EVERY_TUNNEL = "every tunnel"
"""In place of the name of a device: kernels before 5.7 need the checksums of all tunnels in software."""
_OFFLOADING = ("vxlan", "geneve")


class ProbeTarget(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """One family of one peer.

    ``mtu`` is the size in bytes that has to pass, ``device`` the tunnel that computes no checksums itself; empty: none.
    """

    peer: str
    version: int
    source: str
    address: str
    mtu: int
    device: str = ""


class PathResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a test: the largest size that passed in bytes, 0 where nothing was answered.

    ``checksums`` False: the device below the tunnel writes wrong checksums.
    """

    target: ProbeTarget
    largest: int = 0
    checksums: bool = True

    @property
    def is_mismatch(self) -> bool:
        """Whether small packets pass and those of the expected size do not."""
        return 0 < self.largest < self.target.mtu

    def __str__(self) -> str:
        target = self.target
        return (
            f"{target.peer} (IPv{target.version}, {target.address}): packets of {self.largest} bytes pass, "
            f"{target.mtu} are expected"
        )


class ProbeBasis(msgspec.Struct, frozen=True, kw_only=True):
    """Where the targets follow from.

    ``senders`` is the backend that sends to each peer; ``tunnels`` has, by backend with a tunnel, the device that
    leaves checksums to the device below, empty for none.
    """

    me: LocalNode
    peers: tuple[Peer, ...]
    senders: Mapping[str, str]
    headers: Mapping[str, Header]
    tunnels: Mapping[str, str]


def probe_targets(basis: ProbeBasis, pod_mtus: Mapping[int, int]) -> Iterator[ProbeTarget]:
    """The targets of this node."""
    for peer in basis.peers:
        name = basis.senders.get(peer.name)
        if name is None or not announced_mtu(peer):
            continue
        find_ends = _tunnel_ends if name in basis.tunnels else _node_ends
        for version, mtu in pod_mtus.items():
            ends = find_ends(basis.me, peer, version)
            if ends is not None:
                yield ProbeTarget(
                    peer=peer.name,
                    version=version,
                    source=ends[0],
                    address=ends[1],
                    mtu=min(mtu, peer_mtu(basis.me, peer, basis.headers[name], version)),
                    device=basis.tunnels.get(name, ""),
                )


def tunnel_devices(plans: Mapping[str, BackendPlan]) -> dict[str, str]:
    """By backend with a tunnel: the device that leaves checksums to the device below; empty: none."""
    devices = {}
    for name, backend_plan in plans.items():
        if backend_plan.tunnels:
            links = backend_plan.network.links
            devices[name] = next((link.name for link in links if link.kind in _OFFLOADING), "")
    return devices


def _tunnel_ends(me: LocalNode, peer: Peer, version: int) -> tuple[str, str] | None:
    own = next((cidr for cidr in me.pod_cidrs if cidr.version == version), None)
    other = next((cidr for cidr in peer.pod_cidrs if cidr.version == version), None)
    return (str(node_address(own)), str(node_address(other))) if own is not None and other is not None else None


def _node_ends(me: LocalNode, peer: Peer, version: int) -> tuple[str, str] | None:
    own, other = me.address(version), peer.address(version)
    return (str(own), str(other)) if own is not None and other is not None else None


def offloads(me: LocalNode, settings: RoutingSettings, links: Iterable[Link]) -> Iterator[Offload]:
    """The checksum offload of tunnel devices, where it is not left as it is."""
    for link in links:
        if link.kind not in _OFFLOADING:
            continue
        if settings.tx_checksum != "auto":
            yield Offload(link.name, settings.tx_checksum)
        elif link.name in me.plain_checksums or EVERY_TUNNEL in me.plain_checksums:
            yield Offload(link.name, "off")


def mismatches(results: Iterable[PathResult]) -> str:
    """The paths that are too narrow as one text; empty when there are none."""
    texts = [str(result) for result in sorted(results, key=lambda result: result.target) if result.is_mismatch]
    more = [f"and {len(texts) - NAMED} more"] if len(texts) > NAMED else []
    return "; ".join(texts[:NAMED] + more)
