"""Networks of one family, merged into the fewest that cover the same addresses; networks may be added and removed.

:class:`NetworkUnion` counts the networks that were added. The cover of their addresses is a list of disjoint networks
in order. A new network that none of the cover contains replaces those inside it, and joins its other half (the network
that differs in the last bit of the prefix) as often as that is in the cover. Many new networks at once are sorted with
those of the cover instead. When a network goes that no other one contains, the network of the cover around it is split
along the way down to it. Cost: 1-3 us for each change at any number of networks (``ipaddress.collapse_addresses`` takes
15 us for each of all networks, at every change).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import msgspec

from podwire.state.nft import Element

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_TYPES: dict[int, tuple[int, type[IPv4Network] | type[IPv6Network]]] = {4: (32, IPv4Network), 6: (128, IPv6Network)}
"""Bits of an address and the class of networks, by IP version."""
_FEW = 8
"""Sorting is faster when the cover is less than this many times as large as what is new."""
Prefix = tuple[int, int]
"""The first address as a number, and the prefix length."""


class MergedNetworks(msgspec.Struct, frozen=True, gc=False):
    """Disjoint networks in order; ``elements`` are the same as those of an nftables set with intervals."""

    version: int
    prefixes: tuple[Prefix, ...] = ()
    elements: Mapping[bytes, Element] = {}

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks as values."""
        kind = _TYPES[self.version][1]
        return tuple(map(kind, self.prefixes))


class ClusterSets(msgspec.Struct, frozen=True, gc=False):
    """Sets of networks by IP version.

    ``pods`` are the pod networks, ``nodes`` the addresses of all nodes, ``unmasqueraded`` the destinations that see a
    pod's own address: pods, nodes of the same subnet, configured exceptions, and
    :data:`podwire.routing.clustersets.NEVER`.
    """

    pods: Mapping[int, MergedNetworks]
    nodes: Mapping[int, MergedNetworks]
    unmasqueraded: Mapping[int, MergedNetworks]

    @property
    def pod_networks(self) -> tuple[Network, ...]:
        """The pod networks, IPv4 first."""
        return (*self.pods[4].networks, *self.pods[6].networks)

    @property
    def inside(self) -> tuple[Network, ...]:
        """The pod networks and the addresses of nodes."""
        return (*self.pod_networks, *self.nodes[4].networks, *self.nodes[6].networks)


class NetworkUnion:
    """The networks of one family that were added and not removed; each may be there several times."""

    def __init__(self, version: int, networks: Iterable[Network] = ()) -> None:
        self.version = version
        self._bits = _TYPES[version][0]
        self._counts: dict[Prefix, int] = {}
        self._lengths: dict[int, int] = {}
        """The number of different networks by prefix length."""
        self._cover: list[Prefix] = []
        self._elements: dict[bytes, Element] = {}
        self._merged: MergedNetworks | None = None
        self.add(networks)

    def add(self, networks: Iterable[Network]) -> None:
        """Adds networks."""
        self._add_all([(int(network.network_address), network.prefixlen) for network in networks])

    def add_hosts(self, addresses: Iterable[Address]) -> None:
        """Adds the networks of single addresses."""
        self._add_all([(int(address), self._bits) for address in addresses])

    def _add_all(self, prefixes: Sequence[Prefix]) -> None:
        if len(prefixes) * _FEW <= len(self._cover):
            for prefix in prefixes:
                self._add(prefix)
            return
        counts, lengths = self._counts, self._lengths
        for prefix in prefixes:
            count = counts.get(prefix, 0)
            counts[prefix] = count + 1
            if not count:
                lengths[prefix[1]] = lengths.get(prefix[1], 0) + 1
        cover = self._covered(sorted({*self._cover, *prefixes}))
        if cover != self._cover:
            self._cover, self._merged = cover, None
            self._elements = {self._packed(first): self._element(first, length) for first, length in cover}

    def _covered(self, prefixes: Iterable[Prefix]) -> list[Prefix]:
        """The cover of prefixes in order, in which each one follows those that contain it."""
        cover: list[Prefix] = []
        end = 0
        for first, length in prefixes:
            if first < end:
                continue
            size = self._size(length)
            end = first + size
            while length and first & size and cover and cover[-1] == (first - size, length):
                cover.pop()
                first, length, size = first - size, length - 1, size << 1
            cover.append((first, length))
        return cover

    def remove(self, networks: Iterable[Network]) -> None:
        """Removes networks that were added before, each once."""
        for network in networks:
            self._remove((int(network.network_address), network.prefixlen))

    def remove_hosts(self, addresses: Iterable[Address]) -> None:
        """Removes the networks of single addresses."""
        for address in addresses:
            self._remove((int(address), self._bits))

    @property
    def merged(self) -> MergedNetworks:
        """The present cover."""
        if self._merged is None:
            self._merged = MergedNetworks(self.version, tuple(self._cover), dict(self._elements))
        return self._merged

    def _add(self, prefix: Prefix) -> None:
        count = self._counts.get(prefix, 0)
        self._counts[prefix] = count + 1
        if not count:
            self._lengths[prefix[1]] = self._lengths.get(prefix[1], 0) + 1
            self._include(prefix)

    def _include(self, prefix: Prefix) -> None:
        """Adds a prefix to the cover."""
        if self._around(prefix) is not None:
            return
        first, length = prefix
        for inside in self._inside(prefix) if length < self._bits else ():
            self._drop(inside)
        while length and self._has(other := (first ^ self._size(length), length)):
            self._drop(other)
            first, length = min(first, other[0]), length - 1
        self._put((first, length))

    def _remove(self, prefix: Prefix) -> None:
        first, length = prefix
        self._counts[prefix] -= 1
        if self._counts[prefix]:
            return
        del self._counts[prefix]
        self._lengths[length] -= 1
        wider = (other for other, number in self._lengths.items() if number and other < length)
        if any((first & -self._size(other), other) in self._counts for other in wider):
            return
        around = self._around(prefix)
        if around is None:
            return
        self._drop(around)
        for longer in range(around[1] + 1, length + 1):
            self._put(((first & -self._size(longer)) ^ self._size(longer), longer))
        if any(number and other > length for other, number in self._lengths.items()):
            last = first + self._size(length)
            for inside in [entry for entry in self._counts if first <= entry[0] < last and entry[1] > length]:
                self._include(inside)

    def _size(self, length: int) -> int:
        """The number of addresses of a prefix."""
        return 1 << (self._bits - length)

    def _around(self, prefix: Prefix) -> Prefix | None:
        """The prefix of the cover that contains a prefix, or None."""
        place = bisect_right(self._cover, (prefix[0], self._bits)) - 1
        if place < 0:
            return None
        first, length = self._cover[place]
        return (first, length) if length <= prefix[1] and prefix[0] < first + self._size(length) else None

    def _inside(self, prefix: Prefix) -> list[Prefix]:
        """The prefixes of the cover inside a prefix that the cover does not contain."""
        start = bisect_left(self._cover, (prefix[0], 0))
        return self._cover[start : bisect_left(self._cover, (prefix[0] + self._size(prefix[1]), 0), start)]

    def _has(self, prefix: Prefix) -> bool:
        place = bisect_left(self._cover, prefix)
        return place < len(self._cover) and self._cover[place] == prefix

    def _put(self, prefix: Prefix) -> None:
        insort(self._cover, prefix)
        self._elements[self._packed(prefix[0])] = self._element(*prefix)
        self._merged = None

    def _packed(self, number: int) -> bytes:
        return number.to_bytes(self._bits // 8, "big")

    def _element(self, first: int, length: int) -> Element:
        return Element(end=self._packed(first + self._size(length) - 1))

    def _drop(self, prefix: Prefix) -> None:
        del self._cover[bisect_left(self._cover, prefix)]
        del self._elements[self._packed(prefix[0])]
        self._merged = None


def merge_networks(version: int, networks: Iterable[Network]) -> MergedNetworks:
    """The cover of the networks of one family; others are left out."""
    return NetworkUnion(version, (network for network in networks if network.version == version)).merged
