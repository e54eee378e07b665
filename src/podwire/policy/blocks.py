"""Address ranges of many rules as disjoint intervals (pure).

Ranges and their exceptions may overlap; a kernel's interval map must have each address once. Cutting the ranges at
every border gives intervals in which the same rules match everywhere. One list holds one family, addresses as numbers.
A rule that comes or goes costs the intervals that its blocks cover, and two searches.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network
from itertools import pairwise

from podwire.model.policy import IPBlock
from podwire.policy.ports import Range, Ranges, merged, without

Interval = tuple[int, int, frozenset[int]]
"""First and last address, both included, and the numbers of the rules whose blocks contain them."""

NOWHERE: frozenset[int] = frozenset()


class Blocks:
    """The ranges of some rules in one family, 4 or 6."""

    def __init__(self, blocks: Iterable[tuple[int, IPBlock]], family: int) -> None:
        """``blocks`` are pairs of a rule's number and a block; blocks of the other family are ignored."""
        self.family = family
        self.intervals: list[Interval] = _cut(tuple(blocks), family)
        """Disjoint and in order; neighbours without a gap have different rules."""
        self._starts = [first for first, _, _ in self.intervals]
        self._uses = Counter(rules for _, _, rules in self.intervals)
        self._orphaned: set[frozenset[int]] = set()
        self._regions: list[Range] = []
        self.touched: set[frozenset[int]] = set()
        """The rules of the intervals that the last :meth:`add` or :meth:`remove` replaced, as they were before.

        Rules of neighbouring intervals may be among them.
        """
        self.filled = False
        """Whether the last :meth:`add` added addresses that no rule contained."""

    def holding(self, address: str) -> frozenset[int]:
        """The rules with a block that contains an address of this family."""
        if not self.intervals:
            return NOWHERE
        number = number_of(address)
        index = bisect_right(self._starts, number) - 1
        if index < 0 or self.intervals[index][1] < number:
            return NOWHERE
        return self.intervals[index][2]

    def uses(self, rules: frozenset[int]) -> int:
        """How many intervals have exactly these rules."""
        return self._uses[rules]

    def take_orphaned(self) -> set[frozenset[int]]:
        """The rules of the intervals that changed since the last call, as they were."""
        orphaned, self._orphaned = self._orphaned, set()
        return orphaned

    def take_regions(self) -> Ranges:
        """The addresses whose intervals changed since the last call; no interval is partly in a region."""
        regions, self._regions = self._regions, []
        return merged(regions)

    def between(self, first: int, last: int) -> Sequence[Interval]:
        """The intervals that overlap a range."""
        low, high = self._between(first, last)
        return self.intervals[low:high]

    def add(self, number: int, blocks: Iterable[IPBlock]) -> Ranges:
        """Adds a rule with a new number; returns the ranges that changed."""
        ranges = _ranges(blocks, self.family)
        self.touched, self.filled = set(), False
        for first, last in ranges:
            low, high = self._between(first, last)
            intervals: list[Interval] = []
            following = first
            for begin, end, rules in self.intervals[low:high]:
                if begin < first:
                    intervals.append((begin, first - 1, rules))
                elif following < begin:
                    intervals.append((following, begin - 1, frozenset((number,))))
                    self.filled = True
                intervals.append((max(begin, first), min(end, last), rules | {number}))
                if end > last:
                    intervals.append((last + 1, end, rules))
                following = end + 1
            if following <= last:
                intervals.append((following, last, frozenset((number,))))
                self.filled = True
            self._replace(low, high, intervals)
        return ranges

    def remove(self, number: int, blocks: Iterable[IPBlock]) -> Ranges:
        """Removes a rule that was added with these blocks; returns the ranges that changed."""
        ranges = _ranges(blocks, self.family)
        self.touched, self.filled = set(), False
        for first, last in ranges:
            low, high = self._between(first, last)
            low, high = max(low - 1, 0), high + 1  # neighbours may have the same rules now
            intervals: list[Interval] = []
            for begin, end, rules in self.intervals[low:high]:
                remaining = rules - {number} if first <= begin and end <= last else rules
                if intervals and intervals[-1][1] == begin - 1 and intervals[-1][2] == remaining:
                    intervals[-1] = (intervals[-1][0], end, remaining)
                elif remaining:
                    intervals.append((begin, end, remaining))
            self._replace(low, high, intervals)
        return ranges

    def _between(self, first: int, last: int) -> tuple[int, int]:
        """The slice of the intervals that overlap a range."""
        low = bisect_right(self._starts, first) - 1
        if low < 0 or self.intervals[low][1] < first:
            low += 1
        return low, bisect_right(self._starts, last)

    def _replace(self, low: int, high: int, intervals: list[Interval]) -> None:
        replaced = self.intervals[low:high]
        bounds = [bound for part in (replaced, intervals) if part for bound in (part[0][0], part[-1][1])]
        if bounds:
            self._regions.append((min(bounds), max(bounds)))
        for _, _, rules in replaced:
            self._orphaned.add(rules)
            self.touched.add(rules)
            self._uses[rules] -= 1
            if not self._uses[rules]:
                del self._uses[rules]
        self._uses.update(rules for _, _, rules in intervals)
        self._starts[low:high] = [first for first, _, _ in intervals]
        self.intervals[low:high] = intervals


@lru_cache(maxsize=1 << 16)
def number_of(address: str) -> int:
    """An address as a number; cached, because every profile looks up the addresses of all pods."""
    return int(ip_address(address))


def _ranges(blocks: Iterable[IPBlock], family: int) -> Ranges:
    """The addresses of some blocks of a family, as disjoint ranges."""
    ranges: list[Range] = []
    for block in blocks:
        whole = _bounds(block.cidr, family)
        if whole is not None:
            excepted = (_bounds(text, family) for text in block.excepted)
            ranges += without((whole,), merged(bounds for bounds in excepted if bounds is not None))
    return merged(ranges)


def _cut(blocks: Sequence[tuple[int, IPBlock]], family: int) -> list[Interval]:
    """Walks over all borders and collects the rules that match between two neighbouring borders."""
    covered: Counter[int] = Counter()
    excepted: Counter[int] = Counter()
    changes: dict[int, list[tuple[Counter[int], int, int]]] = {}
    for index, (_, block) in enumerate(blocks):
        if _bounds(block.cidr, family) is None:
            continue
        for text, count in ((block.cidr, covered), *((part, excepted) for part in block.excepted)):
            bounds = _bounds(text, family)
            if bounds is not None:
                changes.setdefault(bounds[0], []).append((count, index, 1))
                changes.setdefault(bounds[1] + 1, []).append((count, index, -1))
    borders = sorted(changes)
    intervals: list[Interval] = []
    for border, following in pairwise(borders):
        for count, index, step in changes[border]:
            count[index] += step
            if not count[index]:
                del count[index]
        rules = frozenset(blocks[index][0] for index in covered if index not in excepted)
        if not rules:
            continue
        if intervals and intervals[-1][1] == border - 1 and intervals[-1][2] == rules:
            intervals[-1] = (intervals[-1][0], following - 1, rules)
        else:
            intervals.append((border, following - 1, rules))
    return intervals


def _bounds(cidr: str, family: int) -> tuple[int, int] | None:
    """First and last address of a range; host bits are ignored. None: of the other family, or not a range."""
    try:
        network = ip_network(cidr.strip(), strict=False)
    except ValueError:
        return None
    if network.version != family:
        return None
    return int(network.network_address), int(network.broadcast_address)
