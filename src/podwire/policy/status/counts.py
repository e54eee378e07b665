"""The counters of rules as totals that never go down while the process lives (pure).

A rule may be removed and added again; its total must survive. So the code that removes rules reads their counters just
before and calls :meth:`Totals.keep`. A counter that is lower than at the last reading (another program removed the
rule) counts as a new one, added to the old total. Of removed rules, the last ``_REMEMBERED`` keep their own total;
the totals of rules that were removed earlier are added up by direction and verdict. Where the policies behind a counter
change (the policies that isolate pods), what it counted before stays with the policies of that time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from podwire.policy.ports import Ruling
from podwire.policy.verdicts import RuleHit

_REMEMBERED = 2048

GONE = "(gone)"
"""The name for policies whose rules were removed long ago."""


class Count(msgspec.Struct, frozen=True, gc=False):
    """Packets, and bytes with their headers."""

    packets: int = 0
    bytes: int = 0

    def plus(self, other: "Count") -> "Count":
        """The sum."""
        return Count(self.packets + other.packets, self.bytes + other.bytes)


class Counted(msgspec.Struct, frozen=True, gc=False):
    """The counter of one rule."""

    hit: RuleHit
    count: Count


class Totals:
    """The totals of one node."""

    def __init__(self) -> None:
        self._past: dict[RuleHit, Count] = {}
        self._last: dict[tuple[str, str], Counted] = {}
        self._earlier: dict[tuple[str, str], Count] = {}
        """Packets that rules counted for other policies than those of their last reading."""

    def keep(self, family: str, readings: Mapping[str, Counted]) -> None:
        """Keeps the last readings of rules, by name, that are removed or reset now."""
        self.take(family, readings)
        for name in readings:
            self._end(family, name)

    def totals(self, family: str, readings: Mapping[str, Counted]) -> None:
        """Takes over the current readings of all rules of a family, by name."""
        self.take(family, readings)
        for gone in [key for key in self._last if key[0] == family and key[1] not in readings]:
            self._end(*gone)

    def take(self, family: str, readings: Mapping[str, Counted]) -> None:
        """Takes over the current readings of some rules of a family, by name."""
        for name, counted in readings.items():
            before = self._last.get((family, name))
            if before is not None and before.count.packets > counted.count.packets:
                self._end(family, name)
            elif before is not None and before.hit != counted.hit:
                self._retire(before.hit, self._own(family, name))
                self._earlier[family, name] = before.count
            self._last[family, name] = counted

    def _own(self, family: str, name: str) -> Count:
        """What a rule has counted for the policies of its last reading."""
        count, earlier = self._last[family, name].count, self._earlier.get((family, name), Count())
        return Count(count.packets - earlier.packets, count.bytes - earlier.bytes)

    def _end(self, family: str, name: str) -> None:
        if (family, name) not in self._last:
            return
        count = self._own(family, name)
        counted = self._last.pop((family, name))
        self._earlier.pop((family, name), None)
        self._retire(counted.hit, count)

    def _retire(self, hit: RuleHit, count: Count) -> None:
        """Adds to the totals of removed rules, of which the oldest lose their policies."""
        if not count.packets:
            return
        self._add(hit, count)
        if len(self._past) > _REMEMBERED:
            oldest = next(iter(self._past))
            accept, audit = oldest.ruling.accept, oldest.ruling.audit
            gone = RuleHit(oldest.direction, Ruling(accept=accept, audit=audit), (GONE,))
            count = self._past.pop(oldest)
            self._add(gone, count)

    def _add(self, hit: RuleHit, count: Count) -> None:
        """Adds to the totals of removed rules, as the latest entry."""
        self._past[hit] = self._past.pop(hit, Count()).plus(count)

    def all(self) -> tuple[Counted, ...]:
        """All totals, both families together, in no order; rules that counted nothing are left out."""
        totals = dict(self._past)
        for (family, name), counted in self._last.items():
            totals[counted.hit] = totals.get(counted.hit, Count()).plus(self._own(family, name))
        return tuple(Counted(hit, count) for hit, count in totals.items() if count.packets)


class RuleLookup(Protocol):
    """Finds the rule behind a chain; the contents of a data plane in one family."""

    def meaning(self, name: str) -> RuleHit | None:
        """The rule of a chain or log prefix that exists or was removed lately; None: unknown."""
        ...


ReadCounters = Callable[[str, Collection[str] | None], Mapping[str, Count]]
"""Reads the counters of a family by chain; the result has at least the named chains (None: all chains)."""


class RuleCounters:
    """The counters of a data plane's rules by rule; the counts of deleted rules are kept."""

    def __init__(self, contents: Mapping[str, RuleLookup], read: ReadCounters) -> None:
        """``contents`` finds the rules of each family, ``read`` reads counters from the kernel."""
        self._contents = contents
        self._read = read
        self._totals = Totals()

    def hit(self, prefix: str) -> RuleHit | None:
        """The rule that logs packets with a prefix; None: the rule is unknown or was deleted long ago."""
        hits = (contents.meaning(prefix) for contents in self._contents.values())
        return next(filter(None, hits), None)

    def counts(self) -> tuple[Counted, ...]:
        """The counts of all rules, deleted rules included; a rule that is older than this object keeps its count.

        Raises: KernelError.
        """
        for family in self._contents:
            self._totals.totals(family, self._readings(family, None))
        return self._totals.all()

    def keep(self, family: str, chains: Collection[str] | None) -> None:
        """Keeps the counts of chains that are deleted or reset next (None: of all chains).

        Raises: KernelError.
        """
        if chains is None or chains:
            self._totals.keep(family, self._readings(family, chains))

    def settle(self, family: str, chains: Collection[str]) -> None:
        """Counts what chains have counted for the policies behind them, which change next.

        Raises: KernelError.
        """
        if chains:
            self._totals.take(family, self._readings(family, chains))

    def _readings(self, family: str, chains: Collection[str] | None) -> dict[str, Counted]:
        """The counters of the chains whose rule is known."""
        contents = self._contents.get(family)
        if contents is None:
            return {}
        counts = self._read(family, chains).items()
        hits = ((name, contents.meaning(name), count) for name, count in counts if chains is None or name in chains)
        return {name: Counted(hit, count) for name, hit, count in hits if hit is not None}


def by_policy(rules: Iterable[Counted]) -> dict[tuple[str, str], Count]:
    """Counts by policy and verdict; a rule hit with several policies counts for each of them."""
    totals: dict[tuple[str, str], Count] = {}
    for counted in rules:
        for policy in counted.hit.policies:
            key = (policy, counted.hit.verdict)
            totals[key] = totals.get(key, Count()).plus(counted.count)
    return totals
