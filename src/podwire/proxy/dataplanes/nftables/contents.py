"""The elements of all Services of one family, and the transaction when Services change (pure).

An element that several Services may need (a cluster address, a hairpin pair) is counted. A frontend can belong to one
Service only: the first Service that claims the frontend, until it releases the frontend. Only the slots of each port
are kept (the resolved tuples themselves), not the elements. The old and new elements of a Service are made again when
the Service changes, and all elements for a whole table (2 us each). Few Services also keep their encoded elements
(:mod:`.encoded`), because another program may delete the table.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec

from podwire.proxy.claims import FrontendClaims
from podwire.proxy.dataplanes.nftables.adopted import AdoptedTable
from podwire.proxy.dataplanes.nftables.affinity import ENDPOINTS, AffinityList, AffinityNumbers
from podwire.proxy.dataplanes.nftables.compile import (
    Compiled,
    Elements,
    PortCompiler,
    PortSlots,
)
from podwire.proxy.dataplanes.nftables.elementchange import ElementChange, ElementDelta
from podwire.proxy.dataplanes.nftables.encoded import MOST, EncodedElements
from podwire.proxy.dataplanes.nftables.layout import TABLE, NftablesLayout, Shape
from podwire.proxy.dataplanes.nftables.slots import NO_ENDPOINTS, EndpointSlots
from podwire.proxy.nft_layout import FrontendKey
from podwire.proxy.servicemap import ResolvedPort
from podwire.state.nft import Set, Table
from podwire.state.nft_diff import (
    AddChain,
    AddElements,
    AddRule,
    DeleteElements,
    Operation,
    RestoreElements,
    Transaction,
    replacement,
    rewriting,
)


class _Service(msgspec.Struct, frozen=True):
    """The programmed ports and frontends of one Service."""

    ports: tuple[PortSlots, ...] = ()
    owned: frozenset[FrontendKey] = frozenset()


_NOTHING = _Service()


class Contents:
    """All elements of one family, and the changes to commit."""

    def __init__(self, layout: NftablesLayout, held: Table | None = None) -> None:
        self.layout = layout
        self.compiler = PortCompiler(layout)
        self.declared: dict[str, Set] = {declared.name: declared for declared in layout.sets()}
        self.shapes: set[Shape] = set()
        self._counts: dict[tuple[str, bytes], int] = {}
        self._claims: FrontendClaims[FrontendKey] = FrontendClaims()
        self._services: dict[str, _Service] = {}
        self._encoded: EncodedElements | None = None
        self._adopted = None if held is None else AdoptedTable(held, self.compiler)
        self._list_numbers = AffinityNumbers(self._adopted.lists() if self._adopted is not None else ())

    def __len__(self) -> int:
        return len(self._services)

    def elements(self) -> Elements:
        """All elements of Services, by the name of their set."""
        elements = self._empty()
        for service in tuple(self._services.values()):
            for compiled in self._compile(service):
                self.compiler.add_elements(compiled, elements)
        return elements

    def _empty(self) -> Elements:
        return {s.name: {} for s in self.declared.values() if not s.elements and not s.dynamic}

    def table(self) -> Table:
        """The whole desired table."""
        return self.layout.table(frozenset(self.shapes), self.elements())

    def load(self, services: Mapping[str, tuple[ResolvedPort, ...]]) -> Table:
        """Applies all Services, before any change; returns the whole table."""
        for key, ports in services.items():
            if ports:
                self._services[key] = self._assign(key, ports, _NOTHING)
                for shared in {element for port in ports for element in self.compiler.shared(port)}:
                    self._counts[shared] = self._counts.get(shared, 0) + 1
        self._adopted = None
        self._list_numbers.end_reservations()
        # Made last, because elements are freed after the load: between lasting objects they leave holes in memory.
        elements = self._empty()
        for service in self._services.values():
            for compiled in self._compile(service):
                self.shapes |= compiled.shapes
                self.compiler.add_elements(compiled, elements)
        self._encoded = EncodedElements(self.declared, elements) if len(self._services) <= MOST else None
        return self.layout.table(frozenset(self.shapes), elements)

    def replaced(self) -> Transaction:
        """The transaction that replaces the whole table without reading it."""
        if self._encoded is None:
            return replacement(self.table())
        constant = replacement(self.layout.table(frozenset(self.shapes), self._empty()))
        return Transaction(self.layout.family, TABLE, (*constant.operations, *self._encoded.operations()))

    def rewritten(
        self,
        chains: Collection[str],
        sets: Collection[str],
        removed: Mapping[str, Mapping[bytes, bytes]] = MappingProxyType({}),
    ) -> Transaction:
        """The transaction that writes these chains of the table whole, and the elements of these sets, unread.

        ``removed`` are the encoded elements that alone are missing in a set; other sets are written whole.
        """
        every = self.layout.chains(frozenset(self.shapes)) if chains else ()
        operations: list[Operation] = list(rewriting(chain for chain in every if chain.name in chains))
        declared = [
            declared_set
            for declared_set in self.declared.values()
            if declared_set.name in sets and not declared_set.dynamic
        ]
        changing = [declared_set for declared_set in declared if not declared_set.elements]
        operations += (RestoreElements(s, removed[s.name]) for s in changing if s.name in removed)
        elements = self.elements() if any(s.name not in removed for s in changing) else {}
        filled = ((s, s.elements or elements[s.name]) for s in declared if s.elements or s.name not in removed)
        operations += (AddElements(declared_set, entries) for declared_set, entries in filled if entries)
        return Transaction(self.layout.family, TABLE, tuple(operations))

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend that another Service owns."""
        return self._claims.waiting()

    def change(self, changed: Mapping[str, tuple[ResolvedPort, ...]]) -> Transaction:
        """Applies new ports of Services (of this family); returns the transaction to commit."""
        change = ElementChange(self.compiler, self._counts)
        shapes = frozenset(self.shapes)
        todo = dict(changed)
        while todo:
            for service, ports in todo.items():
                self._replace(service, ports, change)
            todo = {waiting: self._ports_of(waiting) for waiting in self._claims.released()}
        self._encoded = self._encoded if len(self._services) <= MOST else None
        if self._encoded is not None:
            self._encoded.change(change.delta)
        return self._transaction(change.delta, shapes)

    def _ports_of(self, service: str) -> tuple[ResolvedPort, ...]:
        return tuple(port_slots.port for port_slots in self._services.get(service, _NOTHING).ports)

    def _replace(self, service: str, ports: tuple[ResolvedPort, ...], change: ElementChange) -> None:
        before = self._services.pop(service, _NOTHING)
        after = self._assign(service, ports, before)
        for number in _numbers(before) - _numbers(after):
            self._list_numbers.release(number)
        if ports:
            self._services[service] = after
        old, new = self._compile(before), self._compile(after)
        for compiled in new:
            self.shapes |= compiled.shapes
        change.swap(old, new)

    def _assign(self, service: str, ports: tuple[ResolvedPort, ...], before: _Service) -> _Service:
        """Assigns frontends, slots and affinity numbers to a Service."""
        frontends = frozenset(frontend for port in ports for frontend in self.compiler.frontends(port))
        owned = self._claims.claim(service, frontends)
        by_key = {port_slots.port.key: port_slots for port_slots in before.ports}
        return _Service(tuple(self._place(port, by_key.get(port.key)) for port in ports), owned)

    def _compile(self, service: _Service) -> list[Compiled]:
        return [self.compiler.compile(port_slots, service.owned) for port_slots in service.ports]

    def _place(self, port: ResolvedPort, before: PortSlots | None) -> PortSlots:
        """Assigns slots and affinity numbers to a port; endpoints keep their slots."""
        cluster, local = NO_ENDPOINTS, NO_ENDPOINTS
        if before is not None:
            cluster, local = before.cluster, before.local
        elif self._adopted is not None:
            cluster, local = self._adopted.endpoint_slots_of(port)
        port_slots = PortSlots(
            port, cluster.with_endpoints(port.cluster_endpoints), local.with_endpoints(port.local_endpoints)
        )
        return (
            self._add_affinity(port_slots, before, (cluster.affinity_list, local.affinity_list))
            if port.affinity_s
            else port_slots
        )

    def _add_affinity(
        self, port_slots: PortSlots, before: PortSlots | None, numbers: tuple[AffinityList | None, ...]
    ) -> PortSlots:
        """The port with affinity numbers for the lists that it uses; without affinity when numbers run out."""
        port = port_slots.port
        outside = bool(port.node_port or port.external_ips or port.load_balancer_ips)
        used = (outside or not port.internal_local, port.internal_local or port.external_local)
        new_numbers: list[int] = []
        lists: list[EndpointSlots] = []
        for endpoint_slots, needed, old in zip((port_slots.cluster, port_slots.local), used, numbers, strict=True):
            if not (needed and endpoint_slots.endpoints):
                lists.append(endpoint_slots)
                continue
            if old is None or before is None:
                number = self._list_numbers.take(None if old is None else old.number)
                new_numbers += [] if number is None else [number]
                old = old if old is not None and old.number == number else _new_affinity_list(number)
            if old is None or len(endpoint_slots.endpoints) > ENDPOINTS:
                for number in new_numbers:
                    self._list_numbers.release(number)
                return msgspec.structs.replace(port_slots, port=msgspec.structs.replace(port, affinity_s=0))
            lists.append(
                msgspec.structs.replace(endpoint_slots, affinity_list=old.with_endpoints(endpoint_slots.endpoints))
            )
        return PortSlots(port, *lists)

    def _transaction(self, delta: ElementDelta, shapes: frozenset[Shape]) -> Transaction:
        operations: list[Operation] = []
        if self.shapes != shapes:
            present = {chain.name for chain in self.layout.chains(shapes)}
            chains = [c for c in self.layout.chains(frozenset(self.shapes)) if c.name not in present]
            operations += (AddChain(chain) for chain in chains)
            operations += (AddRule(chain.name, rule) for chain in chains for rule in chain.rules)
        operations += (DeleteElements(self.declared[n], e) for n, e in delta.removed.items() if e)
        operations += (AddElements(self.declared[n], e) for n, e in delta.added.items() if e)
        return Transaction(self.layout.family, TABLE, tuple(operations))


def _new_affinity_list(number: int | None) -> AffinityList | None:
    return None if number is None else AffinityList(number)


def _numbers(service: _Service) -> set[int]:
    lists = (
        endpoint_slots.affinity_list
        for port_slots in service.ports
        for endpoint_slots in (port_slots.cluster, port_slots.local)
    )
    return {affinity_list.number for affinity_list in lists if affinity_list is not None}
