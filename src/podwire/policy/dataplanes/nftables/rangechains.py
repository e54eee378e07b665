"""The chains that decide by ranges of addresses, in parts that profiles and versions of a profile share (pure).

A map of ranges is never changed while packets use it. Up to :data:`FEW` ranges of a profile are one map. More ranges
are cut into parts; each part is a chain with a map of its own, and the profile's map leads from the span of a part to
its chain. Where the parts begin depends on the ranges alone: at a range whose first address has a certain hash, and
after :data:`MOST` ranges. So one more range rewrites one part and the map of the spans, and a restart finds the same
parts.
"""

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
"""Five bits of 32 are looked at: one range of 32 begins a part."""

RangeChain = tuple[int, int, str]
"""First and last address of a range, and the name of its chain."""


class RangeChains:
    """The parts of all profiles of one family, each with the number of its uses."""

    def __init__(self, layout: TableLayout, keyed: KeyedContents[Chain, Set, bytes, Element]) -> None:
        """``keyed`` receives the chains and maps."""
        self._layout = layout
        self._keyed = keyed
        self._uses: Counter[str] = Counter()
        self._names: dict[tuple[str, tuple[RangeChain, ...]], str] = {}
        self._parts: dict[str, tuple[str, tuple[RangeChain, ...]]] = {}
        self._maps: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether any profile has parts, to which packets jump."""
        return bool(self._parts)

    def take(self, ranges: Sequence[RangeChain], profile: ProfileName) -> tuple[RangeChain, ...]:
        """The ranges for the map of a profile; the parts among them exist until :meth:`drop`."""
        if len(ranges) <= FEW:
            return tuple(ranges)
        return tuple((part[0][0], part[-1][1], self._take(part, profile)) for part in _parts(ranges))

    def _take(self, part: tuple[RangeChain, ...], profile: ProfileName) -> str:
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

    def drop(self, ranges: Sequence[RangeChain]) -> None:
        """Drops one use of each part in the result of :meth:`take`."""
        for _, _, name in ranges:
            if name not in self._parts:
                continue
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name]
                del self._names[self._parts.pop(name)]
                self._keyed.remove_chain(name)
                self._keyed.remove_set(self._maps.pop(name))


def _parts(ranges: Sequence[RangeChain]) -> Iterator[tuple[RangeChain, ...]]:
    """The ranges, cut where a part begins."""
    start = 0
    for index, (first, _, _) in enumerate(ranges):
        begins = not (first % _PRIME * _FACTOR & _WORD) >> _SHIFT
        if index > start and (begins or index - start == MOST):
            yield tuple(ranges[start:index])
            start = index
    yield tuple(ranges[start:])
