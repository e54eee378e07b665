"""Allocates blocks of the cluster CIDRs to nodes. Pure.

How it works: each cluster CIDR is divided into blocks of one size; the set of used blocks is kept. The search for a
free block starts behind the last allocated one, so a new node does not get the addresses of a node that was just
deleted while caches still have them. Blocks that overlap the Service CIDRs are never allocated. A CIDR of any size that
a node already has marks every overlapping block as used.

Cost: constant per node while blocks are free (a search skips used ones). Source:
``k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset``.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network

import msgspec

from podwire.errors import ConfigError

Network = IPv4Network | IPv6Network

DEFAULT_MASK = {4: 24, 6: 64}
MAX_BITS = 16


class Exhausted(Exception):
    """No block of ``cidr`` is free."""

    def __init__(self, cidr: Network) -> None:
        self.cidr = cidr
        super().__init__(f"no block is left in {cidr}")


class CidrBlocks(msgspec.Struct):
    """The blocks of one cluster CIDR; ``used`` has their numbers."""

    cidr: Network
    mask: int
    used: set[int] = msgspec.field(default_factory=set)
    last: int = -1

    @property
    def count(self) -> int:
        """The number of blocks."""
        return 1 << (self.mask - self.cidr.prefixlen)

    def take(self) -> Network:
        """A free block, marked as used.

        Raises: Exhausted.
        """
        for step in range(1, self.count + 1):
            number = (self.last + step) % self.count
            if number not in self.used:
                self.used.add(number)
                self.last = number
                return self.block(number)
        raise Exhausted(self.cidr)

    def block(self, number: int) -> Network:
        """The block with this number."""
        size = 1 << (self.cidr.max_prefixlen - self.mask)
        return ip_network((int(self.cidr.network_address) + number * size, self.mask))

    def occupy(self, network: Network) -> None:
        """Marks every block that overlaps ``network`` as used."""
        self.used.update(self._touched(network))

    def release(self, network: Network) -> None:
        """Frees every block that overlaps ``network``."""
        self.used.difference_update(self._touched(network))

    def _touched(self, network: Network) -> range:
        if network.version != self.cidr.version or not network.overlaps(self.cidr):
            return range(0)
        shift = self.cidr.max_prefixlen - self.mask
        first = max(int(network.network_address), int(self.cidr.network_address))
        last = min(int(network.broadcast_address), int(self.cidr.broadcast_address))
        start = int(self.cidr.network_address)
        return range((first - start) >> shift, ((last - start) >> shift) + 1)


class NodeCidrs:
    """The CIDRs of all nodes: one per cluster CIDR, in their order."""

    def __init__(self, cluster: Sequence[Network], masks: Sequence[int] = (), excluded: Iterable[Network] = ()) -> None:
        lengths = masks or [default_mask(cidr) for cidr in cluster]
        self._pools = [_pool(cidr, mask) for cidr, mask in zip(cluster, lengths, strict=True)]
        self._nodes: dict[str, tuple[Network, ...]] = {}
        self._kept_out = tuple(excluded)
        for network in self._kept_out:
            for pool in self._pools:
                pool.occupy(network)

    def occupy(self, node: str, networks: Sequence[Network]) -> None:
        """Records the CIDRs of a node."""
        if self._nodes.get(node) == tuple(networks):
            return
        self._nodes[node] = tuple(networks)
        for network in networks:
            for pool in self._pools:
                pool.occupy(network)

    def allocate(self, node: str) -> tuple[Network, ...]:
        """The node's CIDRs; the same ones at each call.

        Raises: Exhausted, with nothing taken from any pool.
        """
        if node in self._nodes:
            return self._nodes[node]
        networks: list[Network] = []
        try:
            for pool in self._pools:
                networks.append(pool.take())
        except Exhausted:
            for pool, network in zip(self._pools, networks, strict=False):
                pool.release(network)
            raise
        self._nodes[node] = tuple(networks)
        return self._nodes[node]

    def release(self, node: str) -> None:
        """Frees the CIDRs of a deleted node, except blocks that CIDRs of other nodes overlap."""
        gone = self._nodes.pop(node, ())
        for pool in self._pools:
            for network in gone:
                pool.release(network)
            for network in self._kept_out:
                pool.occupy(network)
        # Two nodes may have the same block when a user wrote it; the block stays used then.
        for networks in self._nodes.values():
            for network in networks:
                if any(
                    network.version == network_in_use.version and network.overlaps(network_in_use)
                    for network_in_use in gone
                ):
                    for pool in self._pools:
                        pool.occupy(network)

    @property
    def nodes(self) -> dict[str, tuple[Network, ...]]:
        """The CIDRs of each node."""
        return dict(self._nodes)


def default_mask(cidr: Network) -> int:
    """/24 for IPv4 and /64 for IPv6, or eight bits more than a cluster CIDR with at least that length."""
    mask = DEFAULT_MASK[cidr.version]
    return mask if cidr.prefixlen <= mask else min(cidr.max_prefixlen, cidr.prefixlen + 8)


def parse_cidrs(source: str, path: str, texts: Sequence[str]) -> tuple[Network, ...]:
    """One or two networks of different families.

    Raises: ConfigError.
    """
    networks: list[Network] = []
    for at, text in enumerate(texts):
        try:
            networks.append(ip_network(text))
        except ValueError as failure:
            raise ConfigError(
                source, f"{path}[{at}]", f"expected a network such as 10.244.0.0/16: {failure}"
            ) from failure
    if len({network.version for network in networks}) != len(networks):
        raise ConfigError(source, path, "expected at most one IPv4 and one IPv6 network")
    return tuple(networks)


def _pool(cidr: Network, mask: int) -> CidrBlocks:
    if not cidr.prefixlen <= mask <= cidr.max_prefixlen:
        raise ConfigError("nodeipam", "nodeCIDRMaskSize", f"/{mask} does not fit into {cidr}")
    if mask - cidr.prefixlen > MAX_BITS:
        raise ConfigError("nodeipam", "nodeCIDRMaskSize", f"/{mask} in {cidr} makes more than {1 << MAX_BITS} blocks")
    return CidrBlocks(cidr, mask)
