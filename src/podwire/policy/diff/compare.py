"""Which connections change their verdict, on which ports, and which rules decide before and after (pure).

For each pair of peer groups, the egress policies of the source and the ingress policies of the destination each give a
table of all protocols and ports. There are few different tables and many pairs. So each table has a number, and the
result for four tables (both directions, before and after) is kept: a pair costs a few look-ups.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from podwire.cluster.world import World
from podwire.policy.diff.peers import NODES, PODS, PeerGroup, PeerGroups, peer_groups
from podwire.policy.diff.side import Side
from podwire.policy.ports import LAST_PORT, PROTOCOLS, PortTable, Ruling
from podwire.policy.profile import ProfileKey
from podwire.policy.rules import EGRESS, INGRESS

OTHER = "other"
"""Stands for all protocols without ports."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """What decides one direction."""

    direction: str
    policy: str = ""
    """The key of the policy whose rule decides; empty: no rule of the policies of ``isolated_by`` allows it."""
    rule: int = -1
    isolated_by: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict, and what decides it in each direction; no reasons: no policy applies."""

    allowed: bool
    reasons: tuple[Reason, ...] = ()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A range of ports of one protocol whose verdict changes."""

    protocol: str
    first: int = 0
    last: int = LAST_PORT
    before: Outcome
    after: Outcome


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """Ends of connections that policies treat alike."""

    kind: str
    """pods, nodes or external."""
    names: tuple[str, ...]
    """Keys of pods, names of nodes or ranges of addresses; empty with ``rest``."""
    rest: bool = False
    """Whether these are all addresses outside of the ranges that policies name."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What changes for connections from ``sources`` to ``destinations``, except from a pod to itself."""

    sources: tuple[Peers, ...]
    destinations: tuple[Peers, ...]
    own_node: bool = False
    """True: of the nodes, only each pod's own node is meant. False: all nodes but the pod's own."""
    families: tuple[int, ...]
    changes: tuple[Change, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All that differs between two clusters."""

    differences: tuple[Difference, ...]
    groups: PeerGroups


def compare(old: World, new: World, *, own_node_egress: bool = True) -> Comparison:
    """The verdicts that differ between two clusters."""
    sides = Side(old, own_node_egress=own_node_egress), Side(new, own_node_egress=own_node_egress)
    found = peer_groups(*sides)
    comparer = _Comparer(*sides)
    pairs = [pair for family in (4, 6) for pair in comparer.pairs(found.common, family)]
    return Comparison(differences=_gathered(pairs), groups=found)


Pair = tuple[int, Peers, Peers, bool, tuple[Change, ...]]
"""Family, source, destination, whether only the pods' own nodes are meant, and the changes."""
ProfileKeys = tuple[ProfileKey | None, ProfileKey | None]
"""The policies of a pod in one direction, before and after."""
TableNumbers = tuple[int, int]
"""Tables before and after, by number."""


class _Comparer:
    """Compares pairs of peer groups."""

    def __init__(self, old: Side, new: Side) -> None:
        self._old, self._new = old, new
        self._numbers: dict[PortTable, int] = {}
        self._tables: list[PortTable] = []
        self._seen: dict[tuple[ProfileKeys, int], TableNumbers] = {}
        self._unchanged: dict[ProfileKeys, bool] = {}
        self._known: dict[tuple[TableNumbers, TableNumbers, ProfileKeys, ProfileKeys], tuple[Change, ...]] = {}
        self._differing: dict[tuple[TableNumbers, TableNumbers], bool] = {}
        self._nobody: ProfileKeys = (None, None)
        self._open: TableNumbers = (self._number(old.open), self._number(old.open))

    def pairs(self, every: Iterable[PeerGroup], family: int) -> Iterator[Pair]:
        """The pairs of peer groups of a family whose verdicts differ."""
        here = [group for group in every if group.family == family]
        self._seen.clear()
        egress = [self._keys(group, EGRESS) for group in here]
        ingress = [self._keys(group, INGRESS) for group in here]
        ends = [Peers(kind=group.kind, names=() if group.rest else group.names, rest=group.rest) for group in here]
        restless = [n for n, group in enumerate(here) if not (group.same and self._unchanged_policies(ingress[n]))]
        for row, source in enumerate(here):
            steady = source.same and self._unchanged_policies(egress[row])
            for column in restless if steady else range(len(here)):
                group = here[column]
                numbers = self._tables_for(egress[row], column, group), self._tables_for(ingress[column], row, source)
                if self._differs(numbers) and _comparable(source, group, same=row == column):
                    changes = self._changes(numbers, egress[row], ingress[column])
                    yield (
                        family,
                        _without_own_node(ends[row], group),
                        _without_own_node(ends[column], source),
                        False,
                        changes,
                    )
            if source.kind == PODS:
                yield from self._own_nodes(source, ends[row], egress[row], here)

    def _own_nodes(self, source: PeerGroup, end: Peers, keys: ProfileKeys, here: Sequence[PeerGroup]) -> Iterator[Pair]:
        """Pairs of pods and their own nodes; a node always reaches its own pods."""
        for group in here:
            if group.kind != NODES or source.on.isdisjoint(group.on):
                continue
            numbers = self._look(keys, group, own_node=True), self._open
            if self._differs(numbers):
                names = tuple(name for name in group.names if name in source.on)
                changes = self._changes(numbers, keys, self._nobody)
                yield group.family, end, Peers(kind=NODES, names=names), True, changes

    def _keys(self, group: PeerGroup, direction: str) -> ProfileKeys:
        if group.kind != PODS:
            return self._nobody
        return self._old.key(group.old, direction), self._new.key(group.new, direction)

    def _unchanged_policies(self, keys: ProfileKeys) -> bool:
        """Whether policies are equal before and after; their verdicts on an unchanged peer are then equal too."""
        found = self._unchanged.get(keys)
        if found is None:
            old, new = keys
            names = (*old.policies, *old.cluster_policies) if old is not None else ()
            same = (self._old.written[name] == self._new.written.get(name) for name in names)
            found = self._unchanged[keys] = old == new and all(same)
        return found

    def _tables_for(self, keys: ProfileKeys, number: int, group: PeerGroup) -> TableNumbers:
        """The tables of the policies with these keys for a peer group, which has a number."""
        if keys == self._nobody:
            return self._open
        found = self._seen.get((keys, number))
        if found is None:
            found = self._seen[keys, number] = self._look(keys, group)
        return found

    def _look(self, keys: ProfileKeys, group: PeerGroup, *, own_node: bool = False) -> TableNumbers:
        old, new = keys
        before = self._old.table(old, group.old, group.addresses[0], own_node=own_node)
        after = self._new.table(new, group.new, group.addresses[1], own_node=own_node)
        return self._number(before), self._number(after)

    def _number(self, table: PortTable) -> int:
        found = self._numbers.get(table)
        if found is None:
            found = self._numbers[table] = len(self._tables)
            self._tables.append(table)
        return found

    def _differs(self, numbers: tuple[TableNumbers, TableNumbers]) -> bool:
        """Whether the verdict on any port changes."""
        (sent, sent_now), (received, received_now) = numbers
        if sent == sent_now and received == received_now:
            return False
        found = self._differing.get(numbers)
        if found is None:
            rulings = (before != after for *_, before, after in self._verdicts(numbers))
            found = self._differing[numbers] = any(rulings)
        return found

    def _verdicts(self, numbers: tuple[TableNumbers, TableNumbers]) -> Iterator[tuple[str, int, int, bool, bool]]:
        """Ranges of ports with one verdict before and one after: protocol, first, last, both verdicts."""
        for protocol, first, last, rulings in _cut(*self._four(numbers)):
            sent, received, sent_now, received_now = (ruling.accept for ruling in rulings)
            yield protocol, first, last, sent and received, sent_now and received_now

    def _four(self, numbers: tuple[TableNumbers, TableNumbers]) -> tuple[PortTable, PortTable, PortTable, PortTable]:
        """Egress and ingress before, egress and ingress after."""
        (sent, sent_now), (received, received_now) = numbers
        tables = self._tables
        return tables[sent], tables[received], tables[sent_now], tables[received_now]

    def _changes(
        self, numbers: tuple[TableNumbers, TableNumbers], egress: ProfileKeys, ingress: ProfileKeys
    ) -> tuple[Change, ...]:
        look = (*numbers, egress, ingress)
        found = self._known.get(look)
        if found is None:
            found = self._known[look] = tuple(_merged(self._changed_ranges(numbers, egress, ingress)))
        return found

    def _changed_ranges(
        self, numbers: tuple[TableNumbers, TableNumbers], egress: ProfileKeys, ingress: ProfileKeys
    ) -> Iterator[Change]:
        for protocol, first, last, (sent, received, sent_now, received_now) in _cut(*self._four(numbers)):
            before = _outcome((EGRESS, sent, egress[0]), (INGRESS, received, ingress[0]))
            after = _outcome((EGRESS, sent_now, egress[1]), (INGRESS, received_now, ingress[1]))
            if before.allowed != after.allowed:
                yield Change(protocol=protocol, first=first, last=last, before=before, after=after)


def _comparable(source: PeerGroup, destination: PeerGroup, *, same: bool) -> bool:
    """Whether a pair is compared: its ends differ, one is a pod, and a node is not the pod's own."""
    if same:
        return source.kind == PODS and len(source.names) > 1
    for pods, nodes in ((source, destination), (destination, source)):
        if nodes.kind == NODES:
            return pods.kind == PODS and len(pods.on | nodes.on) != 1
    return PODS in (source.kind, destination.kind)


def _without_own_node(ends: Peers, pods: PeerGroup) -> Peers:
    """The peers, without a node that is the only node of all these pods."""
    if ends.kind != NODES:
        return ends
    return msgspec.structs.replace(ends, names=tuple(name for name in ends.names if pods.on != {name}))


def _cut(*tables: PortTable) -> Iterator[tuple[str, int, int, tuple[Ruling, ...]]]:
    """Ranges of ports in which every table has one ruling, with the ruling of each table."""
    for protocol in PROTOCOLS:
        starts = {0, LAST_PORT + 1}
        starts |= {entry.first for table in tables for entry in table.entries if entry.protocol == protocol}
        for first, after in pairwise(sorted(starts)):
            yield protocol, first, after - 1, tuple(table.ruling(protocol, first) for table in tables)
    yield OTHER, 0, LAST_PORT, tuple(table.other for table in tables)


DirectionRuling = tuple[str, Ruling, ProfileKey | None]


def _outcome(egress: DirectionRuling, ingress: DirectionRuling) -> Outcome:
    allowed = egress[1].accept and ingress[1].accept
    reasons = [_reason(*each) for each in (egress, ingress) if allowed or not each[1].accept]
    return Outcome(allowed=allowed, reasons=tuple(reason for reason in reasons if reason is not None))


def _reason(direction: str, ruling: Ruling, key: ProfileKey | None) -> Reason | None:
    """What decides a direction; None: no policy applies."""
    if ruling.policy:
        return Reason(direction=direction, policy=ruling.policy, rule=ruling.rule)
    if ruling.accept:
        return None
    return Reason(direction=direction, isolated_by=key.policies if key is not None else ())


def _merged(changes: Iterable[Change]) -> Iterator[Change]:
    """The changes, with neighbouring ranges joined where all else is equal."""
    last: Change | None = None
    for change in changes:
        if last is not None and (last.protocol, last.before, last.after, last.last + 1) == (
            change.protocol,
            change.before,
            change.after,
            change.first,
        ):
            last = msgspec.structs.replace(last, last=change.last)
            continue
        if last is not None:
            yield last
        last = change
    if last is not None:
        yield last


def _gathered(pairs: Iterable[Pair]) -> tuple[Difference, ...]:
    """Pairs with equal changes, joined: first the families, then the sources, then the destinations."""
    families: dict[tuple[Peers, Peers, bool, tuple[Change, ...]], tuple[int, ...]] = {}
    for family, source, destination, own_node, changes in pairs:
        look = (source, destination, own_node, changes)
        families[look] = (*families.get(look, ()), family)
    sources: dict[tuple[Peers, bool, tuple[Change, ...], tuple[int, ...]], tuple[Peers, ...]] = {}
    for (source, destination, own_node, changes), each in families.items():
        to = (destination, own_node, changes, each)
        sources[to] = (*sources.get(to, ()), source)
    return tuple(_by_destination(sources))


def _by_destination(
    sources: Mapping[tuple[Peers, bool, tuple[Change, ...], tuple[int, ...]], tuple[Peers, ...]],
) -> Iterator[Difference]:
    destinations: dict[tuple[tuple[Peers, ...], bool, tuple[Change, ...], tuple[int, ...]], tuple[Peers, ...]] = {}
    for (destination, own_node, changes, families), every in sources.items():
        look = (every, own_node, changes, families)
        destinations[look] = (*destinations.get(look, ()), destination)
    for (every, own_node, changes, families), to in destinations.items():
        yield Difference(sources=every, destinations=to, own_node=own_node, families=families, changes=changes)
