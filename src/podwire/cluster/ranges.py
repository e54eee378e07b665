"""Where the pods of the whole cluster have their addresses from, kept current as nodes come and go (pure).

Neighbouring ranges are one, so that the few elements of a set say what the ranges of a thousand nodes say. A range that
comes costs one look-up for each length of prefix; one that goes, a walk over all that are known.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from podwire.model.node import Node

Prefix = tuple[int, int, int]
"""IP version, length, and the bits within this length as a number."""

_BITS = {4: 32, 6: 128}


class ClusterRanges:
    """The ranges of all nodes; where nodes have none (another IPAM), those that were configured.

    A configured range in which a node has its own address is left out then: addresses in it are not pods' alone. A
    node whose ranges did not change costs nothing but a look-up.
    """

    def __init__(self, configured: tuple[str, ...] = ()) -> None:
        self._configured = configured
        self._of: dict[str, tuple[str, ...]] = {}
        self._at: dict[str, tuple[str, ...]] = {}
        self._union = _Union()
        self._ranges: tuple[str, ...] | None = None

    def configure(self, ranges: tuple[str, ...]) -> None:
        """Takes over the configured ranges."""
        self._configured, self._ranges = ranges, None

    def follow(self, name: str, node: Node | None) -> None:
        """Takes over a node; None: it is gone."""
        ranges: tuple[str, ...] = ()
        addresses: tuple[str, ...] = ()
        if node is not None:
            ranges = node.pod_cidrs
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
        """Disjoint, IPv4 first; what is no range is left out."""
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
    """What is in any of some prefixes, as the fewest prefixes."""

    def __init__(self) -> None:
        self._given: Counter[Prefix] = Counter()
        self._apart: set[Prefix] = set()

    def add(self, prefixes: Iterable[Prefix]) -> None:
        """Prefixes come; one may come more than once."""
        for each in prefixes:
            self._given[each] += 1
            self._cover(each)

    def take(self, prefixes: Iterable[Prefix]) -> None:
        """Prefixes that came go."""
        for each in prefixes:
            self._given[each] -= 1
            if not self._given[each]:
                del self._given[each]
                holder = self._holder(each)
                self._apart.discard(holder)
                for other in self._given:
                    if _inside(other, holder):
                        self._cover(other)

    def prefixes(self) -> list[Prefix]:
        """The fewest, in the order of their addresses."""
        return sorted(self._apart, key=lambda each: (each[0], _first(each)))

    def _holder(self, each: Prefix) -> Prefix:
        """The one of the fewest that has all of a prefix; the prefix itself where none has."""
        version, length, number = each
        wider = ((version, length - up, number >> up) for up in range(length + 1))
        return next((one for one in wider if one in self._apart), each)

    def _cover(self, each: Prefix) -> None:
        if self._holder(each) in self._apart:
            return
        self._apart -= {one for one in self._apart if _inside(one, each)}
        version, length, number = each
        while length and (version, length, number ^ 1) in self._apart:
            self._apart.remove((version, length, number ^ 1))
            length, number = length - 1, number >> 1
        self._apart.add((version, length, number))


def _inside(each: Prefix, wider: Prefix) -> bool:
    """Whether all of a prefix is in another one."""
    return each[0] == wider[0] and each[1] >= wider[1] and each[2] >> (each[1] - wider[1]) == wider[2]


def _first(each: Prefix) -> int:
    version, length, number = each
    return number << (_BITS[version] - length)


def _text(each: Prefix) -> str:
    address = IPv4Address(_first(each)) if each[0] == 4 else IPv6Address(_first(each))
    return f"{address}/{each[1]}"


def _prefixes(texts: Iterable[str]) -> Iterator[Prefix]:
    for text in texts:
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            continue
        bits = network.max_prefixlen - network.prefixlen
        yield network.version, network.prefixlen, int(network.network_address) >> bits
