"""Whose verdicts change, on which ports, and by what before and after (pure).

For each two places the egress of the one and the ingress of the other say, each as a table of all protocols and ports,
what passes. Tables are few and pairs are many, so tables are numbered and what comes of four of them is remembered: a
pair costs a few look-ups.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from podwire.cluster.world import World
from podwire.policy.diff.peers import NODES, PODS, Place, Places, places
from podwire.policy.diff.side import Side
from podwire.policy.ports import LAST_PORT, PROTOCOLS, Ruling, Table
from podwire.policy.profile import ProfileKey
from podwire.policy.rules import EGRESS, INGRESS

OTHER = "other"
"""Stands for all protocols that have no ports."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """What decides one direction."""

    direction: str
    policy: str = ""
    """The key of the policy whose rule decides; empty: no rule of the policies of ``isolated_by`` allows it."""
    rule: int = -1
    isolated_by: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict, and what lets it pass in each direction or what does not; nothing where no policy has a say."""

    allowed: bool
    reasons: tuple[Reason, ...] = ()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Ports of one protocol of which the verdict is another one."""

    protocol: str
    first: int = 0
    last: int = LAST_PORT
    before: Outcome
    after: Outcome


class Ends(msgspec.Struct, frozen=True, kw_only=True):
    """Ends that are treated alike."""

    kind: str
    """pods, nodes or external."""
    names: tuple[str, ...]
    """Keys of pods, names of nodes, ranges of addresses; of ``rest``, nothing."""
    rest: bool = False
    """Whether these are all addresses that are not named otherwise."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What changes from some ends to others; from a pod to itself nothing does."""

    sources: tuple[Ends, ...]
    destinations: tuple[Ends, ...]
    own_node: bool = False
    """Whether of the nodes only that is meant which each pod is on; otherwise, where there are nodes, all but that."""
    families: tuple[int, ...]
    changes: tuple[Change, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All that differs between two clusters."""

    differences: tuple[Difference, ...]
    places: Places


def compare(old: World, new: World, *, own_node_egress: bool = True) -> Comparison:
    """What changes from the one to the other."""
    sides = Side(old, own_node_egress=own_node_egress), Side(new, own_node_egress=own_node_egress)
    found = places(*sides)
    comparer = _Comparer(*sides)
    pairs = [pair for family in (4, 6) for pair in comparer.pairs(found.places, family)]
    return Comparison(differences=_gathered(pairs), places=found)


Pair = tuple[int, Ends, Ends, bool, tuple[Change, ...]]
"""Family, source, destination, whether the own nodes alone are meant, and what changes."""
Keys = tuple[ProfileKey | None, ProfileKey | None]
"""The policies of a pod in one direction, before and after."""
Numbers = tuple[int, int]
"""Tables before and after, by number."""


class _Comparer:
    """Compares pairs of places."""

    def __init__(self, old: Side, new: Side) -> None:
        self._old, self._new = old, new
        self._numbers: dict[Table, int] = {}
        self._tables: list[Table] = []
        self._seen: dict[tuple[Keys, int], Numbers] = {}
        self._unchanged: dict[Keys, bool] = {}
        self._known: dict[tuple[Numbers, Numbers, Keys, Keys], tuple[Change, ...]] = {}
        self._differing: dict[tuple[Numbers, Numbers], bool] = {}
        self._nobody: Keys = (None, None)
        self._open: Numbers = (self._number(old.open), self._number(old.open))

    def pairs(self, every: Iterable[Place], family: int) -> Iterator[Pair]:
        """The pairs of places of a family that differ."""
        here = [place for place in every if place.family == family]
        self._seen.clear()
        egress = [self._keys(place, EGRESS) for place in here]
        ingress = [self._keys(place, INGRESS) for place in here]
        ends = [Ends(kind=place.kind, names=() if place.rest else place.names, rest=place.rest) for place in here]
        restless = [n for n, place in enumerate(here) if not (place.same and self._steady(ingress[n]))]
        for row, source in enumerate(here):
            steady = source.same and self._steady(egress[row])
            for column in restless if steady else range(len(here)):
                place = here[column]
                numbers = self._sees(egress[row], column, place), self._sees(ingress[column], row, source)
                if self._differs(numbers) and _meet(source, place, same=row == column):
                    changes = self._changes(numbers, egress[row], ingress[column])
                    yield family, _others(ends[row], place), _others(ends[column], source), False, changes
            if source.kind == PODS:
                yield from self._own_nodes(source, ends[row], egress[row], here)

    def _own_nodes(self, source: Place, end: Ends, keys: Keys, here: Sequence[Place]) -> Iterator[Pair]:
        """To the nodes that the pods are on; those always reach their pods."""
        for place in here:
            if place.kind != NODES or source.on.isdisjoint(place.on):
                continue
            numbers = self._look(keys, place, own_node=True), self._open
            if self._differs(numbers):
                names = tuple(name for name in place.names if name in source.on)
                changes = self._changes(numbers, keys, self._nobody)
                yield place.family, end, Ends(kind=NODES, names=names), True, changes

    def _keys(self, place: Place, direction: str) -> Keys:
        if place.kind != PODS:
            return self._nobody
        return self._old.key(place.old, direction), self._new.key(place.new, direction)

    def _steady(self, keys: Keys) -> bool:
        """Whether the policies of a place are the same before and after; then they say the same of who is the same."""
        found = self._unchanged.get(keys)
        if found is None:
            old, new = keys
            names = (*old.policies, *old.cluster_policies) if old is not None else ()
            same = (self._old.written[name] == self._new.written.get(name) for name in names)
            found = self._unchanged[keys] = old == new and all(same)
        return found

    def _sees(self, keys: Keys, number: int, place: Place) -> Numbers:
        """What the policies of a place say of another one, which has a number."""
        if keys == self._nobody:
            return self._open
        found = self._seen.get((keys, number))
        if found is None:
            found = self._seen[keys, number] = self._look(keys, place)
        return found

    def _look(self, keys: Keys, place: Place, *, own_node: bool = False) -> Numbers:
        old, new = keys
        before = self._old.table(old, place.old, place.addresses[0], own_node=own_node)
        after = self._new.table(new, place.new, place.addresses[1], own_node=own_node)
        return self._number(before), self._number(after)

    def _number(self, table: Table) -> int:
        found = self._numbers.get(table)
        if found is None:
            found = self._numbers[table] = len(self._tables)
            self._tables.append(table)
        return found

    def _differs(self, numbers: tuple[Numbers, Numbers]) -> bool:
        """Whether the verdict on any port is another one."""
        (sent, sent_now), (received, received_now) = numbers
        if sent == sent_now and received == received_now:
            return False
        found = self._differing.get(numbers)
        if found is None:
            rulings = (before != after for *_, before, after in self._pieces(numbers))
            found = self._differing[numbers] = any(rulings)
        return found

    def _pieces(self, numbers: tuple[Numbers, Numbers]) -> Iterator[tuple[str, int, int, bool, bool]]:
        """Ranges in which nothing changes, and whether each passes before and after."""
        for protocol, first, last, rulings in _cut(*self._four(numbers)):
            sent, received, sent_now, received_now = (ruling.accept for ruling in rulings)
            yield protocol, first, last, sent and received, sent_now and received_now

    def _four(self, numbers: tuple[Numbers, Numbers]) -> tuple[Table, Table, Table, Table]:
        """Egress and ingress before, egress and ingress after."""
        (sent, sent_now), (received, received_now) = numbers
        tables = self._tables
        return tables[sent], tables[received], tables[sent_now], tables[received_now]

    def _changes(self, numbers: tuple[Numbers, Numbers], egress: Keys, ingress: Keys) -> tuple[Change, ...]:
        look = (*numbers, egress, ingress)
        found = self._known.get(look)
        if found is None:
            found = self._known[look] = tuple(_merged(self._made(numbers, egress, ingress)))
        return found

    def _made(self, numbers: tuple[Numbers, Numbers], egress: Keys, ingress: Keys) -> Iterator[Change]:
        for protocol, first, last, (sent, received, sent_now, received_now) in _cut(*self._four(numbers)):
            before = _outcome((EGRESS, sent, egress[0]), (INGRESS, received, ingress[0]))
            after = _outcome((EGRESS, sent_now, egress[1]), (INGRESS, received_now, ingress[1]))
            if before.allowed != after.allowed:
                yield Change(protocol=protocol, first=first, last=last, before=before, after=after)


def _meet(source: Place, destination: Place, *, same: bool) -> bool:
    """Whether a pair has ends that differ, one of them a pod, and a node that is not the pod's own."""
    if same:
        return source.kind == PODS and len(source.names) > 1
    for pods, nodes in ((source, destination), (destination, source)):
        if nodes.kind == NODES:
            return pods.kind == PODS and len(pods.on | nodes.on) != 1
    return PODS in (source.kind, destination.kind)


def _others(ends: Ends, pods: Place) -> Ends:
    """Of nodes those that are not the only one that the pods are on; everything else as it is."""
    if ends.kind != NODES:
        return ends
    return msgspec.structs.replace(ends, names=tuple(name for name in ends.names if pods.on != {name}))


def _cut(*tables: Table) -> Iterator[tuple[str, int, int, tuple[Ruling, ...]]]:
    """Ranges in which no table changes, with the ruling of each."""
    for protocol in PROTOCOLS:
        starts = {0, LAST_PORT + 1}
        starts |= {entry.first for table in tables for entry in table.entries if entry.protocol == protocol}
        for first, after in pairwise(sorted(starts)):
            yield protocol, first, after - 1, tuple(table.ruling(protocol, first) for table in tables)
    yield OTHER, 0, LAST_PORT, tuple(table.other for table in tables)


Decided = tuple[str, Ruling, ProfileKey | None]


def _outcome(egress: Decided, ingress: Decided) -> Outcome:
    allowed = egress[1].accept and ingress[1].accept
    reasons = [_reason(*each) for each in (egress, ingress) if allowed or not each[1].accept]
    return Outcome(allowed=allowed, reasons=tuple(reason for reason in reasons if reason is not None))


def _reason(direction: str, ruling: Ruling, key: ProfileKey | None) -> Reason | None:
    """What decides a direction; None: no policy has a say."""
    if ruling.policy:
        return Reason(direction=direction, policy=ruling.policy, rule=ruling.rule)
    if ruling.accept:
        return None
    return Reason(direction=direction, isolated_by=key.policies if key is not None else ())


def _merged(changes: Iterable[Change]) -> Iterator[Change]:
    """The same with neighbouring ranges together, where they come from the same."""
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
    """Pairs of which the same is to be said, together: first the families, then the sources, then the destinations."""
    families: dict[tuple[Ends, Ends, bool, tuple[Change, ...]], tuple[int, ...]] = {}
    for family, source, destination, own_node, changes in pairs:
        look = (source, destination, own_node, changes)
        families[look] = (*families.get(look, ()), family)
    sources: dict[tuple[Ends, bool, tuple[Change, ...], tuple[int, ...]], tuple[Ends, ...]] = {}
    for (source, destination, own_node, changes), each in families.items():
        to = (destination, own_node, changes, each)
        sources[to] = (*sources.get(to, ()), source)
    return tuple(_by_destination(sources))


def _by_destination(
    sources: Mapping[tuple[Ends, bool, tuple[Change, ...], tuple[int, ...]], tuple[Ends, ...]],
) -> Iterator[Difference]:
    destinations: dict[tuple[tuple[Ends, ...], bool, tuple[Change, ...], tuple[int, ...]], tuple[Ends, ...]] = {}
    for (destination, own_node, changes, families), every in sources.items():
        look = (every, own_node, changes, families)
        destinations[look] = (*destinations.get(look, ()), destination)
    for (every, own_node, changes, families), to in destinations.items():
        yield Difference(sources=every, destinations=to, own_node=own_node, families=families, changes=changes)
