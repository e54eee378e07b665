"""The chains that decide by ranges of addresses, in parts that profiles and versions of a profile share (pure).

A map of ranges is never changed while packets use it. Up to :data:`FEW` ranges of a profile are one map. More ranges
are cut into parts; each part is a chain with a map of its own, and the profile's map leads from the span of a part to
its chain. Where the parts begin depends on the ranges alone: at a range whose first address has a certain hash, and
after :data:`MOST` ranges. So one more range rewrites one part and the map of the spans, at the cost of these, and a
restart finds the same parts.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from podwire.dataplane.contents import KeyedContents
from podwire.policy.dataplanes.nftables.layout import TableLayout, part_name
from podwire.policy.profilenames import ProfileName
from podwire.state.nft import Chain, Element, Set

FEW = 64
"""Up to this number, all ranges of a profile are in one map."""
MOST = 128
"""The most ranges of a part; with the hash, parts have 32 on average."""
_PRIME, _FACTOR, _WORD = 4294967291, 2654435761, 0xFFFFFFFF
_SHIFT = 27
"""Five bits of 32 are compared: one range of 32 begins a part."""

RangeChain = tuple[int, int, str]
"""First and last address of a range, and the name of its chain."""
Part = tuple[RangeChain, ...]


class RangeChains:
    """The parts of all profiles of one family, each with the number of its uses."""

    def __init__(self, layout: TableLayout, keyed: KeyedContents[Chain, Set, bytes, Element]) -> None:
        """``keyed`` receives the chains and maps."""
        self._layout = layout
        self._keyed = keyed
        self._uses: Counter[str] = Counter()
        self._names: dict[tuple[str, Part], str] = {}
        self._parts: dict[str, tuple[str, Part]] = {}
        self._maps: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether any profile has parts, to which packets jump."""
        return bool(self._parts)

    def take(self, part: Part, profile: ProfileName) -> str:
        """The chain of a part; it exists until each taken use is dropped."""
        meaning = profile.direction, part
        name = self._names.get(meaning)
        if name is None:
            name = self._names[meaning] = part_name(profile, part)
            self._parts[name] = meaning
            declared, chain = self._layout.part(name, profile)
            self._keyed.add_set(declared.with_elements(self._layout.ranged(*interval) for interval in part))
            self._keyed.put_chain(name, chain)
            self._maps[name] = declared.name
        self._uses[name] += 1
        return name

    def drop(self, name: str) -> None:
        """Drops one use of a part; with the last use, the chain is removed."""
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name]
            del self._names[self._parts.pop(name)]
            self._keyed.remove_chain(name)
            self._keyed.remove_set(self._maps.pop(name))


class ProfileRanges:
    """The ranges of one profile in order, and the parts into which they are cut."""

    def __init__(self, chains: RangeChains, profile: ProfileName) -> None:
        self._chains = chains
        self._profile = profile
        self._ranges: list[RangeChain] = []
        self._starts: list[int] = []
        self._spans: list[RangeChain] = []
        """The first and last address and the chain of each part; empty with few ranges."""
        self._span_starts: list[int] = []

    @property
    def entries(self) -> tuple[RangeChain, ...]:
        """The entries of the profile's map: the ranges, or the spans of their parts."""
        return tuple(self._spans or self._ranges)

    def fill(self, ranges: Sequence[RangeChain]) -> None:
        """Replaces all ranges."""
        self._ranges[:] = ranges
        self._starts[:] = [first for first, _, _ in ranges]
        self._cut_again(0, len(self._spans), 0)

    def replace(self, first: int, last: int, ranges: Sequence[RangeChain]) -> None:
        """Replaces the ranges between two addresses; no range is partly between them."""
        low, high = bisect_left(self._starts, first), bisect_right(self._starts, last)
        self._ranges[low:high] = ranges
        self._starts[low:high] = [start for start, _, _ in ranges]
        if not self._spans or len(self._ranges) <= FEW:
            self._cut_again(0, len(self._spans), 0)
            return
        # The first range of a part may be gone: then the rest of the part belongs to the part before.
        part = max(bisect_right(self._span_starts, first) - 2, 0)
        start = bisect_left(self._starts, self._span_starts[part]) if part else 0
        self._cut_again(part, bisect_right(self._span_starts, last), start)

    def drop(self) -> None:
        """Removes all ranges."""
        self.fill(())

    def _cut_again(self, first_part: int, last_part: int, start: int) -> None:
        """Cuts the ranges from the index ``start`` on, up to the first cut at the start of ``last_part`` or later."""
        before = self._span_starts
        spans: list[RangeChain] = []
        end = len(before)
        for part in _parts(self._ranges, start) if len(self._ranges) > FEW else ():
            begin = part[0][0]
            place = bisect_left(before, begin, last_part)
            if place < len(before) and before[place] == begin:
                end = place
                break
            spans.append((begin, part[-1][1], self._chains.take(part, self._profile)))
        unused = [name for _, _, name in self._spans[first_part:end]]
        self._spans[first_part:end] = spans
        self._span_starts[first_part:end] = [begin for begin, _, _ in spans]
        for name in unused:
            self._chains.drop(name)


def _parts(ranges: Sequence[RangeChain], start: int) -> Iterator[Part]:
    """The ranges from an index on, cut where a part begins."""
    for index in range(start, len(ranges)):
        first = ranges[index][0]
        begins = not (first % _PRIME * _FACTOR & _WORD) >> _SHIFT
        if index > start and (begins or index - start == MOST):
            yield tuple(ranges[start:index])
            start = index
    if start < len(ranges):
        yield tuple(ranges[start:])
