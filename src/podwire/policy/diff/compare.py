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
from podwire.policy.diff.side import AppliedPolicies, Side
from podwire.policy.ports import LAST_PORT, PROTOCOLS, PortTable, Ruling
from podwire.policy.rules import EGRESS, INGRESS

OTHER = "other"
"""Stands for all protocols without ports."""


class DecidingRule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule or policies that decide in one direction."""

    direction: str
    policy: str = ""
    """The key of the policy whose rule decides; empty: no rule of the policies in ``isolated_by`` allows it."""
    rule: int = -1
    isolated_by: tuple[str, ...] = ()


class DecidedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict, and the deciding rule of each direction; no ``reasons``: no policy applies."""

    allowed: bool
    reasons: tuple[DecidingRule, ...] = ()


class PortChange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of ports of one protocol whose verdict changes."""

    protocol: str
    first: int = 0
    last: int = LAST_PORT
    before: DecidedVerdict
    after: DecidedVerdict


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """Ends of connections that policies treat alike."""

    kind: str
    """pods, nodes or external."""
    names: tuple[str, ...]
    """Keys of pods, names of nodes or ranges of addresses; empty with ``rest``."""
    rest: bool = False
    """Whether these are all addresses outside of the ranges that policies name."""


class VerdictDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The changes for connections from ``sources`` to ``destinations``, except from a pod to itself."""

    sources: tuple[Peers, ...]
    destinations: tuple[Peers, ...]
    own_node: bool = False
    """True: the nodes are only each pod's own node. False: all nodes except the pod's own."""
    families: tuple[int, ...]
    changes: tuple[PortChange, ...]


class ClusterComparison(msgspec.Struct, frozen=True, kw_only=True):
    """All verdicts that differ between two clusters."""

    differences: tuple[VerdictDifference, ...]
    groups: PeerGroups


def compare(old: World, new: World, *, own_node_egress: bool = True) -> ClusterComparison:
    """The verdicts that differ between two clusters."""
    sides = Side(old, own_node_egress=own_node_egress), Side(new, own_node_egress=own_node_egress)
    groups = peer_groups(*sides)
    comparer = _GroupComparer(*sides)
    pairs = [pair for family in (4, 6) for pair in comparer.pairs(groups.common, family)]
    return ClusterComparison(differences=_gathered(pairs), groups=groups)


Pair = tuple[int, Peers, Peers, bool, tuple[PortChange, ...]]
"""Family, source, destination, whether only the pods' own nodes are meant, and the changes."""
PolicyPair = tuple[AppliedPolicies | None, AppliedPolicies | None]
"""The policies of a pod in one direction, before and after."""
TableNumbers = tuple[int, int]
"""Tables before and after, by number."""


class _GroupComparer:
    """Compares pairs of peer groups."""

    def __init__(self, old: Side, new: Side) -> None:
        self._old, self._new = old, new
        self._numbers: dict[PortTable, int] = {}
        self._tables: list[PortTable] = []
        self._tables_by_peer: dict[tuple[PolicyPair, int], TableNumbers] = {}
        self._unchanged: dict[PolicyPair, bool] = {}
        self._changes_by_tables: dict[
            tuple[TableNumbers, TableNumbers, PolicyPair, PolicyPair], tuple[PortChange, ...]
        ] = {}
        self._differing: dict[tuple[TableNumbers, TableNumbers], bool] = {}
        self._no_policies: PolicyPair = (None, None)
        self._open: TableNumbers = (self._number(old.open), self._number(old.open))

    def pairs(self, groups: Iterable[PeerGroup], family: int) -> Iterator[Pair]:
        """The pairs of peer groups of a family whose verdicts differ."""
        of_family = [group for group in groups if group.family == family]
        self._tables_by_peer.clear()
        egress = [self._keys(group, EGRESS) for group in of_family]
        ingress = [self._keys(group, INGRESS) for group in of_family]
        ends = [Peers(kind=group.kind, names=() if group.rest else group.names, rest=group.rest) for group in of_family]
        changed_columns = [
            n for n, group in enumerate(of_family) if not (group.same and self._unchanged_policies(ingress[n]))
        ]
        for row, source in enumerate(of_family):
            unchanged = source.same and self._unchanged_policies(egress[row])
            for column in changed_columns if unchanged else range(len(of_family)):
                group = of_family[column]
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
                yield from self._own_nodes(source, ends[row], egress[row], of_family)

    def _own_nodes(
        self, source: PeerGroup, end: Peers, keys: PolicyPair, groups: Sequence[PeerGroup]
    ) -> Iterator[Pair]:
        """Pairs of pods and their own nodes; a node always reaches its own pods."""
        for group in groups:
            if group.kind != NODES or source.on.isdisjoint(group.on):
                continue
            numbers = self._look_up(keys, group, own_node=True), self._open
            if self._differs(numbers):
                names = tuple(name for name in group.names if name in source.on)
                changes = self._changes(numbers, keys, self._no_policies)
                yield group.family, end, Peers(kind=NODES, names=names), True, changes

    def _keys(self, group: PeerGroup, direction: str) -> PolicyPair:
        if group.kind != PODS:
            return self._no_policies
        return self._old.key(group.old, direction), self._new.key(group.new, direction)

    def _unchanged_policies(self, keys: PolicyPair) -> bool:
        """Whether policies are equal before and after; their verdicts on an unchanged peer are then equal too."""
        cached = self._unchanged.get(keys)
        if cached is None:
            old, new = keys
            names = (*old.policies, *old.cluster_policies) if old is not None else ()
            same = (self._old.written[name] == self._new.written.get(name) for name in names)
            cached = self._unchanged[keys] = old == new and all(same)
        return cached

    def _tables_for(self, keys: PolicyPair, number: int, group: PeerGroup) -> TableNumbers:
        """The tables of the policies with these keys for a peer group, which has a number."""
        if keys == self._no_policies:
            return self._open
        cached = self._tables_by_peer.get((keys, number))
        if cached is None:
            cached = self._tables_by_peer[keys, number] = self._look_up(keys, group)
        return cached

    def _look_up(self, keys: PolicyPair, group: PeerGroup, *, own_node: bool = False) -> TableNumbers:
        old, new = keys
        before = self._old.table(old, group.old, group.addresses[0], own_node=own_node)
        after = self._new.table(new, group.new, group.addresses[1], own_node=own_node)
        return self._number(before), self._number(after)

    def _number(self, table: PortTable) -> int:
        cached = self._numbers.get(table)
        if cached is None:
            cached = self._numbers[table] = len(self._tables)
            self._tables.append(table)
        return cached

    def _differs(self, numbers: tuple[TableNumbers, TableNumbers]) -> bool:
        """Whether the verdict on any port changes."""
        (sent, sent_now), (received, received_now) = numbers
        if sent == sent_now and received == received_now:
            return False
        cached = self._differing.get(numbers)
        if cached is None:
            rulings = (before != after for *_, before, after in self._verdicts(numbers))
            cached = self._differing[numbers] = any(rulings)
        return cached

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
        self, numbers: tuple[TableNumbers, TableNumbers], egress: PolicyPair, ingress: PolicyPair
    ) -> tuple[PortChange, ...]:
        key_of_pair = (*numbers, egress, ingress)
        cached = self._changes_by_tables.get(key_of_pair)
        if cached is None:
            cached = self._changes_by_tables[key_of_pair] = tuple(
                _merged(self._changed_ranges(numbers, egress, ingress))
            )
        return cached

    def _changed_ranges(
        self, numbers: tuple[TableNumbers, TableNumbers], egress: PolicyPair, ingress: PolicyPair
    ) -> Iterator[PortChange]:
        for protocol, first, last, (sent, received, sent_now, received_now) in _cut(*self._four(numbers)):
            before = _outcome((EGRESS, sent, egress[0]), (INGRESS, received, ingress[0]))
            after = _outcome((EGRESS, sent_now, egress[1]), (INGRESS, received_now, ingress[1]))
            if before.allowed != after.allowed:
                yield PortChange(protocol=protocol, first=first, last=last, before=before, after=after)


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


DirectionRuling = tuple[str, Ruling, AppliedPolicies | None]


def _outcome(egress: DirectionRuling, ingress: DirectionRuling) -> DecidedVerdict:
    allowed = egress[1].accept and ingress[1].accept
    reasons = [
        _reason(*ruling_of_direction)
        for ruling_of_direction in (egress, ingress)
        if allowed or not ruling_of_direction[1].accept
    ]
    return DecidedVerdict(allowed=allowed, reasons=tuple(reason for reason in reasons if reason is not None))


def _reason(direction: str, ruling: Ruling, key: AppliedPolicies | None) -> DecidingRule | None:
    """The deciding rule of a direction; None: no policy applies."""
    if ruling.policy:
        return DecidingRule(direction=direction, policy=ruling.policy, rule=ruling.rule)
    if ruling.accept:
        return None
    return DecidingRule(direction=direction, isolated_by=key.policies if key is not None else ())


def _merged(changes: Iterable[PortChange]) -> Iterator[PortChange]:
    """The changes, with neighbouring ranges joined where all else is equal."""
    last: PortChange | None = None
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


def _gathered(pairs: Iterable[Pair]) -> tuple[VerdictDifference, ...]:
    """Pairs with equal changes, joined: first the families, then the sources, then the destinations."""
    families: dict[tuple[Peers, Peers, bool, tuple[PortChange, ...]], tuple[int, ...]] = {}
    for family, source, destination, own_node, changes in pairs:
        key_of_pair = (source, destination, own_node, changes)
        families[key_of_pair] = (*families.get(key_of_pair, ()), family)
    sources: dict[tuple[Peers, bool, tuple[PortChange, ...], tuple[int, ...]], tuple[Peers, ...]] = {}
    for (source, destination, own_node, changes), pair_families in families.items():
        to = (destination, own_node, changes, pair_families)
        sources[to] = (*sources.get(to, ()), source)
    return tuple(_by_destination(sources))


def _by_destination(
    sources: Mapping[tuple[Peers, bool, tuple[PortChange, ...], tuple[int, ...]], tuple[Peers, ...]],
) -> Iterator[VerdictDifference]:
    destinations: dict[tuple[tuple[Peers, ...], bool, tuple[PortChange, ...], tuple[int, ...]], tuple[Peers, ...]] = {}
    for (destination, own_node, changes, families), source_peers in sources.items():
        key_of_pair = (source_peers, own_node, changes, families)
        destinations[key_of_pair] = (*destinations.get(key_of_pair, ()), destination)
    for (source_peers, own_node, changes, families), to in destinations.items():
        yield VerdictDifference(
            sources=source_peers, destinations=to, own_node=own_node, families=families, changes=changes
        )
