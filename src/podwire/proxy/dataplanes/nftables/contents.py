"""The elements of one family: what all Services together put in, and the change when one changes (pure).

An element that several Services may share (a cluster address, a hairpin pair) is counted; a frontend can belong to one
Service only, the first that claims it, until that one lets go. What is kept is how each port is placed (its endpoints
by slot, which are the resolved tuples themselves), not the elements: those are made again when a Service changes, of
its old placing and of its new one, and all of them for a whole table (2 us each).
"""

from collections.abc import Iterable, Mapping
from itertools import zip_longest

import msgspec

from podwire.proxy.claims import FrontendClaims
from podwire.proxy.dataplanes.nftables.adopted import AdoptedTable
from podwire.proxy.dataplanes.nftables.affinity import ENDPOINTS, AffinityList, AffinityNumbers
from podwire.proxy.dataplanes.nftables.compile import (
    Compiled,
    Elements,
    PortCompiler,
    PortSlots,
    SlotRange,
    slot_key,
)
from podwire.proxy.dataplanes.nftables.layout import TABLE, NftablesLayout, Shape
from podwire.proxy.dataplanes.nftables.slots import NOBODY, EndpointSlots
from podwire.proxy.nft_frame import FrontendKey
from podwire.proxy.servicemap import ResolvedPort
from podwire.state.nft import Element, Set, Table
from podwire.state.nft_diff import (
    AddChain,
    AddElements,
    AddRule,
    DeleteElements,
    Operation,
    Transaction,
)

_SHARED = frozenset(("cluster-ips", "hairpin"))


class _Service(msgspec.Struct, frozen=True):
    """One Service as it is programmed."""

    placed: tuple[PortSlots, ...] = ()
    owned: frozenset[FrontendKey] = frozenset()


_NOTHING = _Service()


class Contents:
    """All elements of one family, and the changes to commit."""

    def __init__(self, layout: NftablesLayout, known: Table | None = None) -> None:
        self.layout = layout
        self.compiler = PortCompiler(layout)
        self.declared: dict[str, Set] = {each.name: each for each in layout.sets()}
        self.shapes: set[Shape] = set()
        self._counts: dict[tuple[str, bytes], int] = {}
        self._claims: FrontendClaims[FrontendKey] = FrontendClaims()
        self._services: dict[str, _Service] = {}
        self._known = None if known is None else AdoptedTable(known, self.compiler)
        self._lists = AffinityNumbers(self._known.lists() if self._known is not None else ())

    def elements(self) -> Elements:
        """All elements of Services, by the name of their set."""
        found = self._empty()
        for service in tuple(self._services.values()):
            for compiled in self._compile(service):
                self.compiler.elements(compiled, found)
        return found

    def _empty(self) -> Elements:
        return {each.name: {} for each in self.declared.values() if not each.elements and not each.dynamic}

    def table(self) -> Table:
        """The whole desired table."""
        return self.layout.table(frozenset(self.shapes), self.elements())

    def load(self, services: Mapping[str, tuple[ResolvedPort, ...]]) -> Table:
        """Applies all Services, before any change; returns the whole table."""
        for key, ports in services.items():
            if ports:
                self._services[key] = self._take(key, ports, _NOTHING)
                for shared in {each for port in ports for each in self.compiler.shared(port)}:
                    self._counts[shared] = self._counts.get(shared, 0) + 1
        self._known = None
        self._lists.open()
        # Only now what goes again: between what stays, it would leave holes.
        found = self._empty()
        for service in self._services.values():
            for compiled in self._compile(service):
                self.shapes |= compiled.shapes
                self.compiler.elements(compiled, found)
        return self.layout.table(frozenset(self.shapes), found)

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend which another one holds."""
        return self._claims.waiting()

    def change(self, changed: Mapping[str, tuple[ResolvedPort, ...]]) -> Transaction:
        """Applies new ports of Services (of this family); returns what to commit."""
        delta = _ElementDelta()
        shapes = frozenset(self.shapes)
        todo = dict(changed)
        while todo:
            for service, ports in todo.items():
                self._replace(service, ports, delta)
            todo = {loser: self._ports_of(loser) for loser in self._claims.released()}
        return self._transaction(delta, shapes)

    def _ports_of(self, service: str) -> tuple[ResolvedPort, ...]:
        return tuple(placed.port for placed in self._services.get(service, _NOTHING).placed)

    def _replace(self, service: str, ports: tuple[ResolvedPort, ...], delta: "_ElementDelta") -> None:
        before = self._services.pop(service, _NOTHING)
        after = self._take(service, ports, before)
        for number in _numbers(before) - _numbers(after):
            self._lists.release(number)
        if ports:
            self._services[service] = after
        old, new = self._compile(before), self._compile(after)
        for compiled in new:
            self.shapes |= compiled.shapes
        self._swap_frames(old, new, delta)
        self._swap_runs(old, new, delta)
        self._swap_lists(old, new, delta)

    def _take(self, service: str, ports: tuple[ResolvedPort, ...], before: _Service) -> _Service:
        """The frontends, slots and numbers that a Service gets."""
        wanted = frozenset(frontend for port in ports for frontend in self.compiler.frontends(port))
        owned = self._claims.claim(service, wanted)
        by_key = {placed.port.key: placed for placed in before.placed}
        return _Service(tuple(self._place(port, by_key.get(port.key)) for port in ports), owned)

    def _compile(self, service: _Service) -> list[Compiled]:
        return [self.compiler.compile(placed, service.owned) for placed in service.placed]

    def _place(self, port: ResolvedPort, before: PortSlots | None) -> PortSlots:
        """Slots and numbers of a port, given where its endpoints were."""
        cluster, local = NOBODY, NOBODY
        if before is not None:
            cluster, local = before.cluster, before.local
        elif self._known is not None:
            cluster, local = self._known.spreads(port)
        placed = PortSlots(port, cluster.follow(port.cluster_endpoints), local.follow(port.local_endpoints))
        return self._remember(placed, before, (cluster.numbered, local.numbered)) if port.affinity_s else placed

    def _remember(
        self, placed: PortSlots, before: PortSlots | None, numbers: tuple[AffinityList | None, ...]
    ) -> PortSlots:
        """The port with numbers for the lists that it uses; without affinity where there are not enough of them."""
        port = placed.port
        outside = bool(port.node_port or port.external_ips or port.load_balancer_ips)
        used = (outside or not port.internal_local, port.internal_local or port.external_local)
        taken: list[int] = []
        found: list[EndpointSlots] = []
        for spread, needed, old in zip((placed.cluster, placed.local), used, numbers, strict=True):
            if not (needed and spread.endpoints):
                found.append(spread)
                continue
            if old is None or before is None:
                number = self._lists.take(None if old is None else old.number)
                taken += [] if number is None else [number]
                old = old if old is not None and old.number == number else _numbered(number)
            if old is None or len(spread.endpoints) > ENDPOINTS:
                for number in taken:
                    self._lists.release(number)
                return msgspec.structs.replace(placed, port=msgspec.structs.replace(port, affinity_s=0))
            found.append(msgspec.structs.replace(spread, numbered=old.follow(spread.endpoints)))
        return PortSlots(port, *found)

    def _swap_frames(self, old: list[Compiled], new: list[Compiled], delta: "_ElementDelta") -> None:
        before, after = _frame(old), _frame(new)
        for name, entries in before.items():
            fresh = after.get(name, {})
            for key, element in entries.items():
                if fresh.get(key) != element:
                    self._leave(name, key, element, delta)
        for name, entries in after.items():
            stale = before.get(name, {})
            for key, element in entries.items():
                if stale.get(key) != element:
                    self._enter(name, key, element, delta)

    def _swap_runs(self, old: list[Compiled], new: list[Compiled], delta: "_ElementDelta") -> None:
        before, after = _runs(old), _runs(new)
        for run in before | after:
            stale, fresh = before.get(run, NOBODY), after.get(run, NOBODY)
            for slot in _differing(stale, fresh):
                key = slot_key(run.frontend, run.first + slot)
                if slot < len(stale.endpoints):
                    delta.leave(run.map, key, self.compiler.in_slot(stale, slot))
                if slot < len(fresh.endpoints):
                    delta.enter(run.map, key, self.compiler.in_slot(fresh, slot))

    def _swap_lists(self, old: list[Compiled], new: list[Compiled], delta: "_ElementDelta") -> None:
        before, after = _lists(old), _lists(new)
        for number in before | after:
            stale, fresh = before.get(number, AffinityList(number)), after.get(number, AffinityList(number))
            if stale is fresh:
                continue
            for endpoint in stale.endpoints:
                if fresh.endpoints.get(endpoint) != stale.endpoints[endpoint]:
                    for key, element in self.compiler.answers(stale, endpoint):
                        delta.leave("affinity-endpoints", key, element)
            for endpoint in fresh.endpoints:
                if stale.endpoints.get(endpoint) != fresh.endpoints[endpoint]:
                    for key, element in self.compiler.answers(fresh, endpoint):
                        delta.enter("affinity-endpoints", key, element)

    def _leave(self, name: str, key: bytes, element: Element, delta: "_ElementDelta") -> None:
        if name in _SHARED:
            self._counts[name, key] -= 1
            if self._counts[name, key]:
                return
            del self._counts[name, key]
        delta.leave(name, key, element)

    def _enter(self, name: str, key: bytes, element: Element, delta: "_ElementDelta") -> None:
        if name in _SHARED:
            self._counts[name, key] = self._counts.get((name, key), 0) + 1
            if self._counts[name, key] > 1:
                return
        delta.enter(name, key, element)

    def _transaction(self, delta: "_ElementDelta", shapes: frozenset[Shape]) -> Transaction:
        operations: list[Operation] = []
        if self.shapes != shapes:
            there = {chain.name for chain in self.layout.chains(shapes)}
            chains = [c for c in self.layout.chains(frozenset(self.shapes)) if c.name not in there]
            operations += (AddChain(chain) for chain in chains)
            operations += (AddRule(chain.name, rule) for chain in chains for rule in chain.rules)
        operations += (DeleteElements(self.declared[n], e) for n, e in delta.removed.items() if e)
        operations += (AddElements(self.declared[n], e) for n, e in delta.added.items() if e)
        return Transaction(self.layout.family, TABLE, tuple(operations))


class _ElementDelta:
    """What leaves and what enters; coming back to what it was is no change."""

    def __init__(self) -> None:
        self.removed: Elements = {}
        self.added: Elements = {}

    def leave(self, name: str, key: bytes, element: Element) -> None:
        """An element goes."""
        self._move(self.added, self.removed, name, (key, element))

    def enter(self, name: str, key: bytes, element: Element) -> None:
        """An element comes."""
        self._move(self.removed, self.added, name, (key, element))

    def _move(self, other: Elements, own: Elements, name: str, entry: tuple[bytes, Element]) -> None:
        key, element = entry
        if other.get(name, {}).get(key) == element:
            del other[name][key]
        else:
            own.setdefault(name, {})[key] = element


def _numbered(number: int | None) -> AffinityList | None:
    return None if number is None else AffinityList(number)


def _numbers(service: _Service) -> set[int]:
    lists = (spread.numbered for placed in service.placed for spread in (placed.cluster, placed.local))
    return {numbered.number for numbered in lists if numbered is not None}


def _frame(compiled: Iterable[Compiled]) -> Elements:
    found: Elements = {}
    for each in compiled:
        for name, entries in each.frame.items():
            found.setdefault(name, {}).update(entries)
    return found


def _runs(compiled: Iterable[Compiled]) -> dict[SlotRange, EndpointSlots]:
    return {run: spread for each in compiled for run, spread in each.runs.items()}


def _lists(compiled: Iterable[Compiled]) -> dict[int, AffinityList]:
    return {number: numbered for each in compiled for number, numbered in each.lists.items()}


def _differing(old: EndpointSlots, new: EndpointSlots) -> Iterable[int]:
    """The slots that do not yield the same in both."""
    before = None if old.numbered is None else old.numbered.number
    after = None if new.numbered is None else new.numbered.number
    if before != after:
        return range(max(len(old.endpoints), len(new.endpoints)))
    if old.endpoints is new.endpoints:
        return ()
    pairs = zip_longest(old.endpoints, new.endpoints)
    return (slot for slot, (one, other) in enumerate(pairs) if one is not other and one != other)
