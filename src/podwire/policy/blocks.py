"""Address ranges of many rules as disjoint intervals (pure).

Ranges and their exceptions may overlap; a kernel's interval map must have each address once. Cutting the ranges at
every border gives intervals in which the same rules match everywhere. One list holds one family, addresses as numbers.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network
from itertools import pairwise

from podwire.model.policy import IPBlock

Interval = tuple[int, int, frozenset[int]]
"""First and last address, both included, and the numbers of the rules whose blocks contain them."""

NOWHERE: frozenset[int] = frozenset()


class Blocks:
    """The ranges of some rules in one family, 4 or 6.

    A rule that comes or goes costs its own ranges, and what they overlap.
    """

    def __init__(self, blocks: Iterable[tuple[int, IPBlock]], family: int) -> None:
        """``blocks`` are pairs of a rule's number and a block; blocks of the other family are ignored."""
        self.family = family
        self.intervals: list[Interval] = list(_cut(tuple(blocks), family))
        """Disjoint and in order; neighbours without a gap have different rules."""
        self._starts = [first for first, _, _ in self.intervals]
        self._uses = Counter(rules for _, _, rules in self.intervals)
        self._touched = False
        self.unused: set[frozenset[int]] = set()
        """The rules that were those of an interval at the last :meth:`take_unused`, and lost one since."""

    def holding(self, address: str) -> frozenset[int]:
        """The rules with a block that contains an address of this family."""
        if not self.intervals:
            return NOWHERE
        number = number_of(address)
        place = bisect_right(self._starts, number) - 1
        if place < 0 or self.intervals[place][1] < number:
            return NOWHERE
        return self.intervals[place][2]

    def uses(self, rules: frozenset[int]) -> int:
        """How many intervals have exactly these rules."""
        return self._uses.get(rules, 0)

    def take_touched(self) -> bool:
        """Whether intervals came, went or changed since the last call, other than by :meth:`join` and :meth:`leave`."""
        touched, self._touched = self._touched, False
        return touched

    def take_unused(self) -> set[frozenset[int]]:
        """The rules that were those of some interval at the last call, and are those of none now."""
        unused, self.unused = self.unused, set()
        return {rules for rules in unused if rules not in self._uses}

    def add(self, number: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Adds a rule with the result of :func:`ranges_of`."""
        for first, last in ranges:
            low, high = self._between(first, last)
            pieces: list[Interval] = []
            at = first
            for begin, end, rules in self.intervals[low:high]:
                if begin < first:
                    pieces.append((begin, first - 1, rules))
                elif at < begin:
                    pieces.append((at, begin - 1, frozenset((number,))))
                pieces.append((max(begin, first), min(end, last), rules | {number}))
                if end > last:
                    pieces.append((last + 1, end, rules))
                at = end + 1
            if at <= last:
                pieces.append((at, last, frozenset((number,))))
            self._splice(low, high, pieces)

    def remove(self, number: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Removes a rule with the result of :func:`ranges_of`."""
        for first, last in ranges:
            low, high = self._between(first, last)
            low, high = max(low - 1, 0), min(high + 1, len(self.intervals))
            pieces: list[Interval] = []
            for begin, end, rules in self.intervals[low:high]:
                left = rules - {number}
                if pieces and left == pieces[-1][2] and pieces[-1][1] == begin - 1:
                    pieces[-1] = (pieces[-1][0], end, left)
                elif left:
                    pieces.append((begin, end, left))
            self._splice(low, high, pieces)

    def join(self, twin: int, number: int) -> None:
        """Adds a rule with the blocks of another rule; the intervals stay."""
        self._recolour({rules: rules | {number} for rules in self._uses if twin in rules})

    def leave(self, number: int) -> None:
        """Removes a rule whose blocks another rule has too; the intervals stay."""
        self._recolour({rules: rules - {number} for rules in self._uses if number in rules})

    def _recolour(self, others: Mapping[frozenset[int], frozenset[int]]) -> None:
        if others:
            self.unused.update(others)
            self.intervals = [(first, last, others.get(rules, rules)) for first, last, rules in self.intervals]
            self._uses = Counter({others.get(rules, rules): count for rules, count in self._uses.items()})

    def _between(self, first: int, last: int) -> tuple[int, int]:
        """The slice of the intervals that overlap a range."""
        low = bisect_right(self._starts, first)
        if low and self.intervals[low - 1][1] >= first:
            low -= 1
        return low, bisect_right(self._starts, last, low)

    def _splice(self, low: int, high: int, pieces: list[Interval]) -> None:
        before = self.intervals[low:high]
        self._touched |= before != pieces
        for _, _, rules in before:
            self._uses[rules] -= 1
            if not self._uses[rules]:
                del self._uses[rules]
                self.unused.add(rules)
        self._uses.update(rules for _, _, rules in pieces)
        self.intervals[low:high] = pieces
        self._starts[low:high] = [first for first, _, _ in pieces]


def ranges_of(blocks: Iterable[IPBlock], family: int) -> list[tuple[int, int]]:
    """The first and last addresses of the ranges that any of some blocks contains: disjoint, in order, with gaps."""
    return [(first, last) for first, last, _ in _cut([(0, block) for block in blocks], family)]


@lru_cache(maxsize=1 << 16)
def number_of(address: str) -> int:
    """An address as a number; cached, because every profile looks up the addresses of all pods."""
    return int(ip_address(address))


def _cut(blocks: Sequence[tuple[int, IPBlock]], family: int) -> tuple[Interval, ...]:
    """Walks over all borders and collects the rules that match between two neighbouring borders."""
    covered: Counter[int] = Counter()
    excepted: Counter[int] = Counter()
    changes: dict[int, list[tuple[Counter[int], int, int]]] = {}
    for place, (_, block) in enumerate(blocks):
        if _bounds(block.cidr, family) is None:
            continue
        for text, count in ((block.cidr, covered), *((part, excepted) for part in block.excepted)):
            bounds = _bounds(text, family)
            if bounds is not None:
                changes.setdefault(bounds[0], []).append((count, place, 1))
                changes.setdefault(bounds[1] + 1, []).append((count, place, -1))
    borders = sorted(changes)
    intervals: list[Interval] = []
    for border, following in pairwise(borders):
        for count, place, step in changes[border]:
            count[place] += step
            if not count[place]:
                del count[place]
        rules = frozenset(blocks[place][0] for place in covered if place not in excepted)
        if not rules:
            continue
        if intervals and intervals[-1][1] == border - 1 and intervals[-1][2] == rules:
            intervals[-1] = (intervals[-1][0], following - 1, rules)
        else:
            intervals.append((border, following - 1, rules))
    return tuple(intervals)


def _bounds(cidr: str, family: int) -> tuple[int, int] | None:
    """First and last address of a range; host bits are ignored. None: of the other family, or not a range."""
    try:
        network = ip_network(cidr.strip(), strict=False)
    except ValueError:
        return None
    if network.version != family:
        return None
    return int(network.network_address), int(network.broadcast_address)
