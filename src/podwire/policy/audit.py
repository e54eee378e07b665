"""What the policies in audit would drop, marked in the table of what is in force (pure).

Two tables are made of the same rules: one without the policies in audit, which is what holds, and one with them. Where
the first accepts and the second drops, the ruling stays and says by whom it would be dropped.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from podwire.policy.ports import LAST_PORT, PROTOCOLS, Entry, PortTable, Ruling, Selection


class AuditScope(msgspec.Struct, frozen=True, kw_only=True):
    """What of a table is in audit."""

    policies: frozenset[str] = frozenset()
    """Cluster policies, by name."""
    isolating: bool = False
    """Whether all NetworkPolicies that isolate are."""
    passing: Sequence[tuple[Selection, Ruling]] = ()
    """Rules of the tier Admin that pass to the next one, in order; the rulings have their names."""


def mark(held: PortTable, whole: PortTable, audited: AuditScope) -> PortTable:
    """``held``, with what ``whole`` would drop of it marked."""
    entries: list[Entry] = []
    for protocol in PROTOCOLS:
        for first, last in _pieces(protocol, held, whole, audited):
            ruling = _marked(held.ruling(protocol, first), whole.ruling(protocol, first), audited, (protocol, first))
            before = entries[-1] if entries else None
            if before is not None and (before.protocol, before.ruling) == (protocol, ruling):
                entries[-1] = Entry(protocol, before.first, last, ruling)
            else:
                entries.append(Entry(protocol, first, last, ruling))
    return PortTable(entries=tuple(entries), other=_marked(held.other, whole.other, audited, None))


def _pieces(protocol: str, held: PortTable, whole: PortTable, audited: AuditScope) -> Iterator[tuple[int, int]]:
    """Ranges in which nothing changes."""
    starts = {0, LAST_PORT + 1}
    for entry in (*held.entries, *whole.entries):
        if entry.protocol == protocol:
            starts.add(entry.first)
    for selection, _ in audited.passing:
        for first, last in dict(selection.ports).get(protocol, ()):
            starts.update((first, last + 1))
    return ((first, after - 1) for first, after in pairwise(sorted(starts)))


def _marked(held: Ruling, whole: Ruling, audited: AuditScope, place: tuple[str, int] | None) -> Ruling:
    if not held.accept or whole.accept:
        return held
    if whole.policy not in audited.policies and (whole.policy or not audited.isolating):
        whole = replace(_passed(audited, place), log=whole.log)
    log = held.log if held.log == "all" else whole.log
    return replace(held, log=log, audit=True, audit_policy=whole.policy, audit_rule=whole.rule)


def _passed(audited: AuditScope, place: tuple[str, int] | None) -> Ruling:
    """The rule in audit that would lead past what accepts: there is one, since nothing else can make a drop of it."""
    return next(ruling for selection, ruling in audited.passing if selection.has(place))
