"""The elements of one family: what each Service puts into which map, and the change when it changes (pure).

Every Service port is compiled to elements by set (:func:`compile_port`), and :class:`Contents` keeps what all of them
together put in. An element that several Services may share (a cluster address, a hairpin pair, an affinity number)
is counted; a frontend can belong to one Service only, the first that claims it, until that one lets go.

Endpoints keep their slots: one that leaves is replaced by one that comes, or by the last one, so that a change costs
two or three elements and not the whole list. After a restart the slots are read back from the kernel.
"""

import zlib
from collections.abc import Iterable, Mapping
from ipaddress import ip_network

import msgspec

from podwire.proxy.claims import Claims
from podwire.proxy.dataplanes.nftables.layout import AFFINITY_BIT, LOCAL_SLOT, TABLE, Layout, Shape
from podwire.proxy.servicemap import Endpoint, ServicePort
from podwire.state.nft import Element, Set, Table
from podwire.state.nft_diff import (
    AddChain,
    AddElements,
    AddRule,
    DeleteElements,
    Operation,
    Transaction,
    diff,
)
from podwire.state.nft_rules import Verdict
from podwire.state.nft_types import HOST_ORDER, data_type, pack

Elements = dict[str, dict[bytes, Element]]
"""Elements by the name of their set."""

_SHARED = frozenset(("cluster-ips", "hairpin", "affinity-endpoints"))
_REFUSE = Element(verdict=Verdict("goto", "refuse"))
_DROP = Element(verdict=Verdict("drop"))
_PRESENT = Element()
_NOBODY = Endpoint("", 0)


def keep_slots(before: tuple[Endpoint, ...], wanted: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """``wanted`` in an order that leaves as many endpoints of ``before`` in their places as possible."""
    missing = set(wanted)
    slots: list[Endpoint | None] = [None] * len(wanted)
    for place, endpoint in enumerate(before[: len(wanted)]):
        if endpoint in missing:
            slots[place] = endpoint
            missing.discard(endpoint)
    rest = (endpoint for endpoint in wanted if endpoint in missing)
    return tuple(endpoint if endpoint is not None else next(rest) for endpoint in slots)


class Slots(msgspec.Struct, frozen=True, gc=False):
    """Endpoints of one Service port in the order of their slots."""

    internal: tuple[Endpoint, ...] = ()
    cluster: tuple[Endpoint, ...] = ()
    local: tuple[Endpoint, ...] = ()


def place(port: ServicePort, before: Slots) -> Slots:
    """The slots of a port, given where its endpoints were."""
    cluster = keep_slots(before.cluster, port.cluster_endpoints)
    local = keep_slots(before.local, port.local_endpoints)
    return Slots(internal=local if port.internal_local else cluster, cluster=cluster, local=local)


class Frontend(msgspec.Struct, frozen=True, gc=False):
    """One way in: the bytes of its key, and whether it is a node port."""

    key: bytes
    node_port: bool

    @property
    def suffix(self) -> str:
        """What the names of its verdict maps end in."""
        return "node-ports" if self.node_port else "services"

    def slots(self, *, affinity: bool) -> str:
        """The name of the map that holds its slots."""
        if affinity:
            return "affinity-node-port-slots" if self.node_port else "affinity-slots"
        return "node-port-endpoints" if self.node_port else "endpoints"

    def slot(self, number: int) -> bytes:
        """The key of one slot."""
        return self.key + number.to_bytes(4, HOST_ORDER)


class PortCompiler:
    """Compiles the ports of one family."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._keep_off = ~(layout.facts.masquerade_mark | AFFINITY_BIT) & 0xFFFFFFFF
        self._parse = data_type(layout.address).parse
        self._targets: dict[tuple[str, int], bytes] = {}

    def compile(self, port: ServicePort, slots: Slots, owned: frozenset[Frontend]) -> tuple[Elements, frozenset[Shape]]:
        """All elements of one Service port that its ``owned`` frontends need, and the shared chains they go to."""
        out: Elements = {}
        shapes: set[Shape] = set()
        comment = Element(comment=port.name)
        internal, *external = self.frontends(port)
        self._put(out, "cluster-ips", internal.key[: self._size], _PRESENT)
        if internal in owned:
            self._internal(out, shapes, (port, slots, internal, comment))
        for frontend in external:
            if frontend in owned:
                self._external(out, shapes, (port, slots, frontend, comment))
        if port.source_ranges:
            for frontend in (self._address_frontend(address, port) for address in port.load_balancer_ips):
                if frontend in owned:
                    self._guard(out, port, frontend)
        for endpoint in {*port.cluster_endpoints, *port.local_endpoints}:
            if endpoint.local:
                address_bytes = self.target(endpoint)[: self._size]
                self._put(out, "hairpin", address_bytes + address_bytes, _PRESENT)
        return out, frozenset(shapes)

    def internal(self, port: ServicePort) -> Frontend:
        """The frontend of the cluster address."""
        return self._address_frontend(port.cluster_ip, port)

    def frontends(self, port: ServicePort) -> tuple[Frontend, ...]:
        """The cluster address, then everything that is reached from outside."""
        addresses = dict.fromkeys((*port.external_ips, *port.load_balancer_ips))
        found = [self.internal(port), *(self._address_frontend(address, port) for address in addresses)]
        if port.node_port:
            key = pack(("inet_proto", "inet_service"), (port.protocol, str(port.node_port)))
            found.append(Frontend(key, True))
        return tuple(found)

    @property
    def _size(self) -> int:
        return 4 if self._layout.family == "ip" else 16

    def _address_frontend(self, address: str, port: ServicePort) -> Frontend:
        types = (self._layout.address, "inet_proto", "inet_service")
        return Frontend(pack(types, (address, port.protocol, str(port.port))), False)

    def _put(self, out: Elements, name: str, key: bytes, element: Element) -> None:
        out.setdefault(name, {})[key] = element

    def target(self, endpoint: Endpoint) -> bytes:
        known = self._targets.get((endpoint.address, endpoint.port))
        if known is None:
            address = self._parse(endpoint.address)
            known = address + endpoint.port.to_bytes(2, "big") + b"\0\0"
            self._targets[endpoint.address, endpoint.port] = known
        return known

    def _internal(self, out: Elements, shapes: set[Shape], what: "_What") -> None:
        port, slots, frontend, comment = what
        if not slots.internal:
            self._unreachable(out, frontend, comment, drop=port.has_endpoints)
            return
        shape = Shape("cluster", len(slots.internal), False, port.affinity_s)
        self._serve(out, shapes, (frontend, comment, shape), slots.internal)

    def _external(self, out: Elements, shapes: set[Shape], what: "_What") -> None:
        port, slots, frontend, comment = what
        if not port.has_endpoints:
            self._unreachable(out, frontend, comment, drop=False)
            return
        kind = "cluster" if port.external_local else "external"
        if slots.cluster:
            shape = Shape(kind, len(slots.cluster), frontend.node_port, port.affinity_s)
            self._serve(out, shapes, (frontend, comment, shape), slots.cluster)
        if not port.external_local:
            return
        if slots.local:
            shape = Shape("local", len(slots.local), frontend.node_port, port.affinity_s)
            self._serve(out, shapes, (frontend, comment, shape), slots.local)
        else:
            drop = Element(verdict=_DROP.verdict, comment=comment.comment)
            self._put(out, f"local-{frontend.suffix}", frontend.key, drop)

    def _unreachable(self, out: Elements, frontend: Frontend, comment: Element, *, drop: bool) -> None:
        verdict = (_DROP if drop else _REFUSE).verdict
        element = Element(verdict=verdict, comment=comment.comment)
        self._put(out, f"refused-{frontend.suffix}", frontend.key, element)

    def _serve(
        self,
        out: Elements,
        shapes: set[Shape],
        dispatch: tuple[Frontend, Element, Shape],
        endpoints: tuple[Endpoint, ...],
    ) -> None:
        frontend, comment, shape = dispatch
        shapes.add(shape)
        prefix = "local-" if shape.kind == "local" else ""
        element = Element(verdict=Verdict("goto", shape.chain), comment=comment.comment)
        self._put(out, prefix + frontend.suffix, frontend.key, element)
        first = LOCAL_SLOT if shape.kind == "local" else 0
        if shape.affinity_s:
            self._affine(out, frontend, first, endpoints)
            return
        into = out.setdefault(frontend.slots(affinity=False), {})
        for slot, endpoint in enumerate(endpoints, first):
            into[frontend.slot(slot)] = Element(self.target(endpoint))

    def _affine(self, out: Elements, frontend: Frontend, first: int, endpoints: tuple[Endpoint, ...]) -> None:
        slots = frontend.slots(affinity=True)
        for slot, endpoint in enumerate(endpoints, first):
            number = self.number(endpoint)
            self._put(out, slots, frontend.slot(slot), Element(number.to_bytes(4, HOST_ORDER)))
            target = Element(self.target(endpoint))
            for marked in (number, number | self._layout.facts.masquerade_mark):
                self._put(out, "affinity-endpoints", marked.to_bytes(4, HOST_ORDER), target)

    def number(self, endpoint: Endpoint) -> int:
        """The number of an endpoint, the same on every start."""
        return zlib.crc32(str(endpoint).encode()) & self._keep_off | AFFINITY_BIT

    def _guard(self, out: Elements, port: ServicePort, frontend: Frontend) -> None:
        self._put(out, "guarded-services", frontend.key, _PRESENT)
        ranges = list(port.source_ranges)
        own = [a for a in self._layout.facts.addresses if (":" in a) == (self._layout.family == "ip6")]
        if any(_contains(text, address) for text in ranges for address in own):
            ranges.extend(port.load_balancer_ips)
        for text in ranges:
            network = ip_network(text)
            first, last = network.network_address.packed, network.broadcast_address.packed
            element = Element(end=frontend.key + last)
            self._put(out, "guarded-sources", frontend.key + first, element)


_What = tuple[ServicePort, Slots, Frontend, Element]


def _contains(network: str, address: str) -> bool:
    return ip_network(address).subnet_of(ip_network(network))  # type: ignore[arg-type]


class _Service(msgspec.Struct, frozen=True):
    """One Service as it is programmed."""

    ports: tuple[ServicePort, ...]
    slots: dict[str, Slots]
    elements: Elements


_NOTHING = _Service((), {}, {})


class Contents:
    """All elements of one family, and the changes to commit."""

    def __init__(self, layout: Layout, known: Table | None = None) -> None:
        self.layout = layout
        self.compiler = PortCompiler(layout)
        self.declared: dict[str, Set] = {each.name: each for each in layout.sets()}
        self.held: Elements = {each.name: {} for each in layout.sets() if not each.elements and not each.dynamic}
        self.shapes: set[Shape] = set()
        self._counts: dict[tuple[str, bytes], int] = {}
        self._claims: Claims[Frontend] = Claims()
        self._services: dict[str, _Service] = {}
        self._known = {} if known is None else {each.name: each.elements for each in known.sets}

    def table(self) -> Table:
        """The whole desired table."""
        return self.layout.table(frozenset(self.shapes), self.held)

    def forget_kernel(self) -> None:
        """Drops what was read at the start; called after the first load."""
        self._known = {}

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend which another one holds."""
        return self._claims.waiting()

    def change(self, changed: Mapping[str, tuple[ServicePort, ...]]) -> Transaction:
        """Takes over new ports of Services (of this family) and returns what to commit."""
        removed: Elements = {}
        added: Elements = {}
        shapes = set(self.shapes)
        affinity = any(shape.affinity_s for shape in shapes)
        todo = dict(changed)
        while todo:
            for service, ports in todo.items():
                self._replace(service, ports, (removed, added))
            todo = {loser: self._ports_of(loser) for loser in self._claims.released()}
        return self._transaction((removed, added), sorted(self.shapes - shapes), affinity)

    def _ports_of(self, service: str) -> tuple[ServicePort, ...]:
        known = self._services.get(service)
        return () if known is None else known.ports

    def _replace(self, service: str, ports: tuple[ServicePort, ...], delta: tuple[Elements, Elements]) -> None:
        before = self._services.pop(service, _NOTHING)
        wanted = frozenset(frontend for port in ports for frontend in self.compiler.frontends(port))
        owned = self._claims.claim(service, wanted)
        slots: dict[str, Slots] = {}
        elements: Elements = {}
        for port in ports:
            old = before.slots.get(port.key)
            slots[port.key] = place(port, old if old is not None else self._read_slots(port))
            compiled, shapes = self.compiler.compile(port, slots[port.key], owned)
            self.shapes |= shapes
            for name, entries in compiled.items():
                elements.setdefault(name, {}).update(entries)
        if ports:
            self._services[service] = _Service(ports, slots, elements)
        self._swap(before.elements, elements, delta)

    def _swap(self, old: Elements, new: Elements, delta: tuple[Elements, Elements]) -> None:
        for name, entries in old.items():
            fresh = new.get(name, {})
            for key, element in entries.items():
                if fresh.get(key) != element:
                    self._leave(name, key, delta)
        for name, entries in new.items():
            stale = old.get(name, {})
            for key, element in entries.items():
                if stale.get(key) != element:
                    self._enter(name, key, element, delta)

    def _leave(self, name: str, key: bytes, delta: tuple[Elements, Elements]) -> None:
        if name in _SHARED:
            self._counts[name, key] -= 1
            if self._counts[name, key]:
                return
            del self._counts[name, key]
        removed, added = delta
        element = self.held[name].pop(key)
        if added.get(name, {}).get(key) == element:
            del added[name][key]
        else:
            removed.setdefault(name, {})[key] = element

    def _enter(self, name: str, key: bytes, element: Element, delta: tuple[Elements, Elements]) -> None:
        if name in _SHARED:
            self._counts[name, key] = self._counts.get((name, key), 0) + 1
            if self._counts[name, key] > 1:
                return
        removed, added = delta
        self.held[name][key] = element
        if removed.get(name, {}).get(key) == element:
            del removed[name][key]
        else:
            added.setdefault(name, {})[key] = element

    def _transaction(self, delta: tuple[Elements, Elements], shapes: Iterable[Shape], affinity: bool) -> Transaction:
        removed, added = delta
        operations: list[Operation] = []
        chains = [self.layout.chain(shape) for shape in shapes]
        if not affinity and any(shape.affinity_s for shape in self.shapes):
            plain = {chain.name for chain in self.layout.chains(affinity=False)}
            chains += [c for c in self.layout.chains(affinity=True) if c.name not in plain]
        operations += (AddChain(chain) for chain in chains)
        operations += (DeleteElements(self.declared[n], e) for n, e in removed.items() if e)
        operations += (AddRule(chain.name, rule) for chain in chains for rule in chain.rules)
        operations += (AddElements(self.declared[n], e) for n, e in added.items() if e)
        return Transaction(self.layout.family, TABLE, tuple(operations))

    def _read_slots(self, port: ServicePort) -> Slots:
        """The slots that the kernel's table has for a port, as read before the first load."""
        if not self._known:
            return Slots()
        endpoints = (*port.cluster_endpoints, *port.local_endpoints)
        if port.affinity_s:
            found = {self.compiler.number(e).to_bytes(4, HOST_ORDER): e for e in endpoints}
        else:
            found = {self.compiler.target(e): e for e in endpoints}
        internal = self._slots_at(self.compiler.internal(port), 0, port, found)
        frontends = self.compiler.frontends(port)
        outside = frontends[1] if len(frontends) > 1 else frontends[0]
        local = internal if port.internal_local else self._slots_at(outside, LOCAL_SLOT, port, found)
        cluster = self._slots_at(outside, 0, port, found) if port.internal_local else internal
        return Slots(internal=internal, cluster=cluster, local=local)

    def _slots_at(
        self, frontend: Frontend, first: int, port: ServicePort, found: Mapping[bytes, Endpoint]
    ) -> tuple[Endpoint, ...]:
        entries = self._known.get(frontend.slots(affinity=bool(port.affinity_s)), {})
        slots: list[Endpoint] = []
        while (entry := entries.get(frontend.slot(first + len(slots)))) is not None:
            slots.append(found.get(entry.data, _NOBODY))
        return tuple(slots)


def full_change(have: Table | None, contents: Contents) -> Transaction:
    """The transaction that brings the kernel's table to the desired one."""
    return diff(have, contents.table())
