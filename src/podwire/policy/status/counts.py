"""What rules have counted, as totals that never go down while the process lives (pure).

A counter is a rule's, and a rule may go and come again: what it had counted is kept. So whoever takes rules away reads
their counters just before and says so by :meth:`Totals.keep`; a counter that is lower than when it was read last, since
somebody else took the rule away, begins anew behind what it had been. Of rules that are gone, the ``_REMEMBERED`` last
are kept apart, earlier ones in one sum for each direction and verdict.
"""

from collections.abc import Iterable, Mapping

import msgspec

from podwire.policy.ports import Ruling
from podwire.policy.verdicts import RuleHit

_REMEMBERED = 2048

GONE = "(gone)"
"""Stands for policies whose rules went long ago."""


class Count(msgspec.Struct, frozen=True, gc=False):
    """Packets, and bytes with their headers."""

    packets: int = 0
    bytes: int = 0

    def plus(self, other: "Count") -> "Count":
        """The sum."""
        return Count(self.packets + other.packets, self.bytes + other.bytes)


class Counted(msgspec.Struct, frozen=True, gc=False):
    """What a rule has counted."""

    hit: RuleHit
    count: Count


class Totals:
    """The totals of one node."""

    def __init__(self) -> None:
        self._past: dict[RuleHit, Count] = {}
        self._last: dict[tuple[str, str], Counted] = {}

    def keep(self, family: str, readings: Mapping[str, Counted]) -> None:
        """These rules, by their names, go or begin anew, having counted this."""
        self._note(family, readings)
        for name in readings:
            self._end(family, name)

    def totals(self, family: str, readings: Mapping[str, Counted]) -> None:
        """Takes in what all rules of a family, by their names, have counted by now."""
        self._note(family, readings)
        for gone in [key for key in self._last if key[0] == family and key[1] not in readings]:
            self._end(*gone)

    def _note(self, family: str, readings: Mapping[str, Counted]) -> None:
        for name, counted in readings.items():
            before = self._last.get((family, name))
            if before is not None and before.count.packets > counted.count.packets:
                self._end(family, name)
            self._last[family, name] = counted

    def _end(self, family: str, name: str) -> None:
        found = self._last.pop((family, name), None)
        if found is None or not found.count.packets:
            return
        self._add(found.hit, found.count)
        if len(self._past) > _REMEMBERED:
            oldest = next(iter(self._past))
            accept, audit = oldest.ruling.accept, oldest.ruling.audit
            gone = RuleHit(oldest.direction, Ruling(accept=accept, audit=audit), (GONE,))
            count = self._past.pop(oldest)
            self._add(gone, count)

    def _add(self, hit: RuleHit, count: Count) -> None:
        """Adds to what is past, as the youngest."""
        self._past[hit] = self._past.pop(hit, Count()).plus(count)

    def all(self) -> tuple[Counted, ...]:
        """All that there is, both families together, in no order; what counted nothing is left out."""
        found = dict(self._past)
        for each in self._last.values():
            found[each.hit] = found.get(each.hit, Count()).plus(each.count)
        return tuple(Counted(hit, count) for hit, count in found.items() if count.packets)


def by_policy(counted: Iterable[Counted]) -> dict[tuple[str, str], Count]:
    """By policy and verdict; what several policies are behind counts for each of them."""
    found: dict[tuple[str, str], Count] = {}
    for each in counted:
        for policy in each.hit.policies:
            key = (policy, each.hit.verdict)
            found[key] = found.get(key, Count()).plus(each.count)
    return found
