"""Address ranges of many rules as disjoint intervals (pure).

Ranges and their exceptions may overlap; a kernel's interval map must have each address once. Cutting the ranges at
every border gives intervals in which the same rules match everywhere. One list holds one family, addresses as numbers.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network
from itertools import pairwise

from podwire.model.policy import IPBlock

Interval = tuple[int, int, frozenset[int]]
"""First and last address, both included, and the numbers of the rules whose blocks contain them."""

NOWHERE: frozenset[int] = frozenset()


class Blocks:
    """The ranges of some rules in one family, 4 or 6."""

    def __init__(self, blocks: Iterable[tuple[int, IPBlock]], family: int) -> None:
        """``blocks`` are pairs of a rule's number and a block; blocks of the other family are ignored."""
        self.family = family
        self.intervals: tuple[Interval, ...] = _cut(tuple(blocks), family)
        self._starts = [first for first, _, _ in self.intervals]

    def holding(self, address: str) -> frozenset[int]:
        """The rules with a block that contains an address of this family."""
        if not self.intervals:
            return NOWHERE
        number = _number(address)
        place = bisect_right(self._starts, number) - 1
        if place < 0 or self.intervals[place][1] < number:
            return NOWHERE
        return self.intervals[place][2]


@lru_cache(maxsize=1 << 16)
def _number(address: str) -> int:
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
