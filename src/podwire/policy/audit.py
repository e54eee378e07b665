"""Marks in a port table which accepted traffic the policies in audit would drop (pure).

Two tables are made from the same rules: the table in force, without the policies in audit, and a table with them. If
the first accepts a port and the second drops it, the ruling of the first stays and names the policy that would drop it.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from podwire.policy.ports import LAST_PORT, PROTOCOLS, PortRuling, PortTable, Ruling, Selection


class AuditScope(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a port table that are in audit."""

    policies: frozenset[str] = frozenset()
    """Cluster policies, by name."""
    isolating: bool = False
    """Whether all isolating NetworkPolicies are in audit."""
    passing: Sequence[tuple[Selection, Ruling]] = ()
    """Pass rules in audit of the tier Admin, in order; each ruling names the policy and rule."""


def mark(held: PortTable, whole: PortTable, audited: AuditScope) -> PortTable:
    """The table in force (``held``), marked where it accepts and the table with audit (``whole``) drops."""
    entries: list[PortRuling] = []
    for protocol in PROTOCOLS:
        for first, last in _ranges(protocol, held, whole, audited):
            ruling = _marked(held.ruling(protocol, first), whole.ruling(protocol, first), audited, (protocol, first))
            previous = entries[-1] if entries else None
            if previous is not None and (previous.protocol, previous.ruling) == (protocol, ruling):
                entries[-1] = PortRuling(protocol, previous.first, last, ruling)
            else:
                entries.append(PortRuling(protocol, first, last, ruling))
    return PortTable(entries=tuple(entries), other=_marked(held.other, whole.other, audited, None))


def _ranges(protocol: str, held: PortTable, whole: PortTable, audited: AuditScope) -> Iterator[tuple[int, int]]:
    """The ranges of ports in which both tables have one ruling each."""
    starts = {0, LAST_PORT + 1}
    for entry in (*held.entries, *whole.entries):
        if entry.protocol == protocol:
            starts.add(entry.first)
    for selection, _ in audited.passing:
        for first, last in dict(selection.ports).get(protocol, ()):
            starts.update((first, last + 1))
    return ((first, after - 1) for first, after in pairwise(sorted(starts)))


def _marked(held: Ruling, whole: Ruling, audited: AuditScope, port: tuple[str, int] | None) -> Ruling:
    if not held.accept or whole.accept:
        return held
    if whole.policy not in audited.policies and (whole.policy or not audited.isolating):
        whole = replace(_passed(audited, port), log=whole.log)
    log = held.log if held.log == "all" else whole.log
    return replace(held, log=log, audit=True, audit_policy=whole.policy, audit_rule=whole.rule)


def _passed(audited: AuditScope, port: tuple[str, int] | None) -> Ruling:
    """The Pass rule in audit that would skip the accepting rule; there always is one, as no other rule can do that."""
    return next(ruling for selection, ruling in audited.passing if selection.has(port))
