"""The ruling for each protocol and port between one pod and one peer: a table of disjoint ranges (pure).

A table is built by applying rules in order: each rule decides the ports that no earlier rule decided. So a finished
table has no tiers, priorities or actions: it has one ruling for each port, with the rule that the ruling comes from.
Equal tables are equal values, so the kernel needs only one copy.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec

PROTOCOLS = ("TCP", "UDP", "SCTP")
"""The protocols that have ports."""
LAST_PORT = 65535
_RANKS = {protocol: rank for rank, protocol in enumerate(PROTOCOLS)}

Range = tuple[int, int]
"""First and last port, both included."""
Ranges = tuple[Range, ...]
"""Disjoint, in order, with a gap between any two."""
EVERY_PORT: Ranges = ((0, LAST_PORT),)


class Ruling(msgspec.Struct, frozen=True, gc=False, order=True):
    """Accept or drop, and which rule decided."""

    accept: bool
    policy: str = ""
    """The key of the policy; empty: no rule allows, or no policy applies."""
    rule: int = -1
    """The index of the rule in the list of its direction."""
    log: str = ""
    """Which packets are logged: ``all``, ``drops`` or ``none``; empty: the node's settings decide."""
    audit: bool = False
    """Accepted, and dropped if the policies in audit were in force."""
    audit_policy: str = ""
    """The policy in audit whose rule would drop it; empty: no rule of the NetworkPolicies in audit allows."""
    audit_rule: int = -1
    """The index of that rule."""


class Selection(msgspec.Struct, frozen=True, gc=False):
    """The ports that a rule matches, by protocol, and whether it matches protocols without ports."""

    ports: tuple[tuple[str, Ranges], ...]
    """In the order of :data:`PROTOCOLS`; a protocol without ranges is left out."""
    other: bool = False

    def has(self, port: tuple[str, int] | None) -> bool:
        """Whether a protocol and port are selected; None: whether protocols without ports are selected."""
        if port is None:
            return self.other
        return any(first <= port[1] <= last for first, last in dict(self.ports).get(port[0], ()))


class PortRuling(msgspec.Struct, frozen=True, gc=False, order=True):
    """The ruling for one range of ports of one protocol."""

    protocol: str
    first: int
    last: int
    ruling: Ruling


class PortTable(msgspec.Struct, frozen=True, gc=False):
    """The rulings for all ports, disjoint and without gaps."""

    entries: tuple[PortRuling, ...]
    """In the order of :data:`PROTOCOLS`, then by port; adjacent ranges have different rulings."""
    other: Ruling
    """For protocols without ports, such as ICMP."""

    def ruling(self, protocol: str, port: int) -> Ruling:
        """The ruling for one port."""
        for entry in self.entries:
            if entry.protocol == protocol and entry.first <= port <= entry.last:
                return entry.ruling
        return self.other

    def of_protocol(self, protocol: str) -> tuple[PortRuling, ...]:
        """The rulings of one protocol, by port."""
        rank = _RANKS[protocol]
        first = bisect_left(self.entries, rank, key=_rank)
        return self.entries[first : bisect_left(self.entries, rank + 1, first, key=_rank)]

    def single_ports(self, protocol: str) -> "SinglePorts | None":
        """The rulings of a protocol as single ports that differ from all its others; None: there are ranges as well."""
        entries = self.of_protocol(protocol)
        rests = {entry.ruling for entry in entries if entry.first != entry.last}
        if len(rests) != 1:
            return None
        (rest,) = rests
        return SinglePorts(rest, {entry.first: entry.ruling for entry in entries if entry.ruling != rest})

    @property
    def rulings(self) -> frozenset[Ruling]:
        """The distinct rulings of the table."""
        return frozenset((*(entry.ruling for entry in self.entries), self.other))

    @property
    def uniform(self) -> Ruling | None:
        """The ruling for all ports if there is only one; else None."""
        return self.other if len(self.rulings) == 1 else None

    def lessens(self, other: "PortTable") -> bool:
        """Whether the other table drops traffic that this table accepts."""
        if self.other.accept and not other.other.accept:
            return True
        accepted, dropped = self.accepting(accept=True), other.accepting(accept=False)
        return any(overlap(accepted[protocol], dropped[protocol]) for protocol in PROTOCOLS)

    def accepting(self, *, accept: bool) -> dict[str, Ranges]:
        """The ports that are accepted, or those that are dropped, by protocol."""
        result: dict[str, list[Range]] = {protocol: [] for protocol in PROTOCOLS}
        for entry in self.entries:
            if entry.ruling.accept == accept:
                result[entry.protocol].append((entry.first, entry.last))
        return {protocol: merged(ranges) for protocol, ranges in result.items()}


class SinglePorts(msgspec.Struct, frozen=True):
    """The rulings of a protocol, if all its ports but single ones have the same."""

    rest: Ruling
    """The ruling of all ports that are not in :attr:`ports`."""
    ports: dict[int, Ruling]


EVERYTHING = Selection(ports=tuple((protocol, EVERY_PORT) for protocol in PROTOCOLS), other=True)
NOTHING = Selection(ports=())


def merged(ranges: Iterable[Range]) -> Ranges:
    """Disjoint ranges with the same ports as ``ranges``, which may overlap and be in any order."""
    result: list[Range] = []
    for first, last in sorted(ranges):
        if first > last:
            continue
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return tuple(result)


def overlap(ranges: Ranges, other_ranges: Ranges) -> Ranges:
    """The ports that both have."""
    result: list[Range] = []
    index, other_index = 0, 0
    while index < len(ranges) and other_index < len(other_ranges):
        first, last = (
            max(ranges[index][0], other_ranges[other_index][0]),
            min(ranges[index][1], other_ranges[other_index][1]),
        )
        if first <= last:
            result.append((first, last))
        if ranges[index][1] < other_ranges[other_index][1]:
            index += 1
        else:
            other_index += 1
    return tuple(result)


def without(ranges: Ranges, other_ranges: Ranges) -> Ranges:
    """The ports of the first without those of the second, in one pass over both."""
    result: list[Range] = []
    outer = 0
    for first, last in ranges:
        while outer < len(other_ranges) and other_ranges[outer][1] < first:
            outer += 1
        start, inner = first, outer
        while inner < len(other_ranges) and other_ranges[inner][0] <= last:
            removed, last_taken = other_ranges[inner]
            if removed > start:
                result.append((start, removed - 1))
            start = last_taken + 1
            inner += 1
        outer = max(outer, inner - 1)
        if start <= last:
            result.append((start, last))
    return tuple(result)


def selection(ports: Mapping[str, Iterable[Range]], *, other: bool = False) -> Selection:
    """A selection from ranges in any order; unknown protocols and those without ports are left out."""
    merged_ports = ((protocol, merged(ports.get(protocol, ()))) for protocol in PROTOCOLS)
    return Selection(ports=tuple((protocol, ranges) for protocol, ranges in merged_ports if ranges), other=other)


def union(selections: Sequence[Selection]) -> Selection:
    """The ports that any of the selections contains."""
    ports: dict[str, list[Range]] = {}
    for selection_of_rule in selections:
        for protocol, ranges in selection_of_rule.ports:
            ports.setdefault(protocol, []).extend(ranges)
    return selection(ports, other=any(selection_of_rule.other for selection_of_rule in selections))


class PortTableBuilder:
    """Builds a port table rule by rule."""

    def __init__(self) -> None:
        self._open: dict[str, Ranges] = dict.fromkeys(PROTOCOLS, EVERY_PORT)
        self._other: Ruling | None = None
        self._passed: dict[str, Ranges] = {}
        self._passed_other = False
        self._entries: dict[str, list[tuple[int, int, Ruling]]] = {protocol: [] for protocol in PROTOCOLS}

    def decide(self, ports: Selection, ruling: Ruling) -> None:
        """Gives a ruling to the still undecided ports of a selection."""
        for protocol, ranges in ports.ports:
            open_ranges = overlap(self._open[protocol], ranges)
            if open_ranges:
                self._open[protocol] = without(self._open[protocol], open_ranges)
                self._entries[protocol].extend((first, last, ruling) for first, last in open_ranges)
        if ports.other and self._other is None and not self._passed_other:
            self._other = ruling

    def pass_on(self, ports: Selection) -> None:
        """Leaves the still undecided ports of a selection to the next tier."""
        for protocol, ranges in ports.ports:
            open_ranges = overlap(self._open[protocol], ranges)
            if open_ranges:
                self._open[protocol] = without(self._open[protocol], open_ranges)
                self._passed[protocol] = merged((*self._passed.get(protocol, ()), *open_ranges))
        if ports.other and self._other is None:
            self._passed_other = True

    def next_tier(self) -> None:
        """Starts the next tier: ports that were passed on are undecided again."""
        for protocol, ranges in self._passed.items():
            self._open[protocol] = merged((*self._open[protocol], *ranges))
        self._passed, self._passed_other = {}, False

    def table(self, rest: Ruling) -> PortTable:
        """The finished table; ports that are still undecided get the ruling ``rest``."""
        self.decide(EVERYTHING, rest)
        assert self._other is not None, "everything is decided"
        entries = (
            PortRuling(protocol, first, last, ruling)
            for protocol in PROTOCOLS
            for first, last, ruling in sorted(self._entries[protocol])
        )
        return PortTable(entries=_joined(entries), other=self._other)


def table_of_ports(singles: Mapping[str, Mapping[int, Ruling]], rest: Mapping[str, Ruling]) -> PortTable:
    """The table with rulings for single ports, by protocol and port in order, and one ruling for all its other ports.

    Adjacent ports have different rulings. ``rest`` has the other ruling of each protocol, and under ``""`` that of
    protocols without ports.
    """
    entries: list[PortRuling] = []
    for protocol in PROTOCOLS:
        other, following = rest[protocol], 0
        for port, ruling in singles[protocol].items():
            if ruling == other:
                continue
            if port > following:
                entries.append(PortRuling(protocol, following, port - 1, other))
            entries.append(PortRuling(protocol, port, port, ruling))
            following = port + 1
        if following <= LAST_PORT:
            entries.append(PortRuling(protocol, following, LAST_PORT, other))
    return PortTable(entries=tuple(entries), other=rest[""])


def _rank(entry: PortRuling) -> int:
    return _RANKS[entry.protocol]


def _joined(entries: Iterable[PortRuling]) -> tuple[PortRuling, ...]:
    """The entries, with neighbours of equal rulings joined."""
    result: list[PortRuling] = []
    for entry in entries:
        before = result[-1] if result else None
        if before is not None and before.protocol == entry.protocol and before.ruling == entry.ruling:
            result[-1] = PortRuling(entry.protocol, before.first, entry.last, entry.ruling)
        else:
            result.append(entry)
    return tuple(result)
