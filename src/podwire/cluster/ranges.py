"""The pod ranges of the whole cluster, kept current when nodes are added and removed. Pure.

Adjacent ranges are merged, so that a set needs few elements for the ranges of a thousand nodes. A new range costs one
look-up per prefix length; a removed range costs a walk over all known ranges.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from podwire.cluster.podnetworks import further_ranges
from podwire.model.node import Node

Prefix = tuple[int, int, int]
"""IP version, length, and the bits within this length as a number."""

_BITS = {4: 32, 6: 128}


class ClusterRanges:
    """The ranges of all nodes; without ranges of nodes (another IPAM) the configured ranges.

    A configured range in which a node has its own address is left out then, since it has other addresses than those of
    pods. A node whose ranges did not change costs one look-up.
    """

    def __init__(self, configured: tuple[str, ...] = ()) -> None:
        self._configured = configured
        self._of: dict[str, tuple[str, ...]] = {}
        self._at: dict[str, tuple[str, ...]] = {}
        self._union = _Union()
        self._ranges: tuple[str, ...] | None = None

    def configure(self, ranges: tuple[str, ...]) -> None:
        """Sets the configured ranges."""
        self._configured, self._ranges = ranges, None

    def follow(self, name: str, node: Node | None) -> None:
        """Sets the ranges of a node; None: the node was deleted."""
        ranges: tuple[str, ...] = ()
        addresses: tuple[str, ...] = ()
        if node is not None:
            ranges = (*node.pod_cidrs, *map(str, further_ranges(node)))
            addresses = node.internal_ips
        before = self._of.get(name, ())
        if (before, self._at.get(name, ())) == (ranges, addresses):
            return
        for known, value in ((self._of, ranges), (self._at, addresses)):
            known.pop(name, None)
            if value:
                known[name] = value
        if ranges != before:
            self._union.add(_prefixes(ranges))
            self._union.take(_prefixes(before))
        self._ranges = None

    @property
    def ranges(self) -> tuple[str, ...]:
        """Disjoint ranges, IPv4 first; texts that are not ranges are left out."""
        if self._ranges is None:
            union = self._union
            if not self._of:
                union = _Union()
                union.add(_prefixes(text for text in self._configured if not self._holds_a_node(text)))
            self._ranges = tuple(map(_text, union.prefixes()))
        return self._ranges

    def _holds_a_node(self, text: str) -> bool:
        try:
            network = ip_network(text, strict=False)
            return any(ip_address(address) in network for addresses in self._at.values() for address in addresses)
        except ValueError:
            return False


class _Union:
    """The union of prefixes, as the fewest prefixes."""

    def __init__(self) -> None:
        self._counts: Counter[Prefix] = Counter()
        self._disjoint: set[Prefix] = set()

    def add(self, prefixes: Iterable[Prefix]) -> None:
        """Adds prefixes; one may be added several times."""
        for prefix in prefixes:
            self._counts[prefix] += 1
            self._cover(prefix)

    def take(self, prefixes: Iterable[Prefix]) -> None:
        """Removes prefixes that were added."""
        for prefix in prefixes:
            self._counts[prefix] -= 1
            if not self._counts[prefix]:
                del self._counts[prefix]
                holder = self._containing(prefix)
                self._disjoint.discard(holder)
                for other in self._counts:
                    if _inside(other, holder):
                        self._cover(other)

    def prefixes(self) -> list[Prefix]:
        """The fewest prefixes, in the order of their addresses."""
        return sorted(self._disjoint, key=lambda prefix: (prefix[0], _first(prefix)))

    def _containing(self, prefix: Prefix) -> Prefix:
        """The prefix of the union that contains a prefix; the prefix itself when there is none."""
        version, length, number = prefix
        wider = ((version, length - up, number >> up) for up in range(length + 1))
        return next((other for other in wider if other in self._disjoint), prefix)

    def _cover(self, prefix: Prefix) -> None:
        if self._containing(prefix) in self._disjoint:
            return
        self._disjoint -= {other for other in self._disjoint if _inside(other, prefix)}
        version, length, number = prefix
        while length and (version, length, number ^ 1) in self._disjoint:
            self._disjoint.remove((version, length, number ^ 1))
            length, number = length - 1, number >> 1
        self._disjoint.add((version, length, number))


def _inside(prefix: Prefix, wider: Prefix) -> bool:
    """Whether one prefix contains another."""
    return prefix[0] == wider[0] and prefix[1] >= wider[1] and prefix[2] >> (prefix[1] - wider[1]) == wider[2]


def _first(prefix: Prefix) -> int:
    version, length, number = prefix
    return number << (_BITS[version] - length)


def _text(prefix: Prefix) -> str:
    address = IPv4Address(_first(prefix)) if prefix[0] == 4 else IPv6Address(_first(prefix))
    return f"{address}/{prefix[1]}"


def _prefixes(texts: Iterable[str]) -> Iterator[Prefix]:
    for text in texts:
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            continue
        bits = network.max_prefixlen - network.prefixlen
        yield network.version, network.prefixlen, int(network.network_address) >> bits
