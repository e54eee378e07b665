"""Compiles one port of one Service to elements of sets and maps (pure).

Verdicts, addresses and source ranges are few, so their elements are made (``Compiled.elements``). A port may have
thousands of endpoints, so only the position of their slots is compiled (``Compiled.slot_ranges``), and elements are
made only for slots that differ.
"""

from collections.abc import Iterator
from itertools import chain

import msgspec

from podwire.proxy.dataplanes.nftables.affinity import AffinityList, AffinityMarks
from podwire.proxy.dataplanes.nftables.layout import LOCAL_SLOT, NftablesLayout, Shape
from podwire.proxy.dataplanes.nftables.slots import EndpointSlots
from podwire.proxy.nft_layout import FrontendKey
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort
from podwire.state.nft import Element
from podwire.state.nft_rules import Verdict
from podwire.state.nft_types import HOST_ORDER, data_type, pack

Elements = dict[str, dict[bytes, Element]]
"""Elements by the name of their set."""

_REFUSE = Verdict("goto", "refuse")
_DROP = Verdict("drop")
PRESENT = Element()
"""An element without data."""


def slot_map(frontend: FrontendKey, *, affinity: bool) -> str:
    """The name of the map that holds the slots of a frontend."""
    if affinity:
        return "affinity-node-port-slots" if frontend.node_port else "affinity-slots"
    return "node-port-endpoints" if frontend.node_port else "endpoints"


def slot_key(frontend: FrontendKey, number: int) -> bytes:
    """The key of one slot of a frontend."""
    return frontend.key + number.to_bytes(4, HOST_ORDER)


class PortSlots(msgspec.Struct, frozen=True, gc=False):
    """A port with the slots of its two endpoint lists."""

    port: ResolvedPort
    cluster: EndpointSlots = EndpointSlots()
    local: EndpointSlots = EndpointSlots()

    @property
    def internal(self) -> EndpointSlots:
        """The slots behind the cluster address."""
        return self.local if self.port.internal_local else self.cluster


class SlotRange(msgspec.Struct, frozen=True, gc=False):
    """The position of the slots of an endpoint list: a map, a frontend, and the number of the first slot."""

    map: str
    frontend: FrontendKey
    first: int


class Compiled(msgspec.Struct, frozen=True):
    """The elements, slots and shapes of a port."""

    elements: Elements
    """All elements except those of slots and affinity lists."""
    slot_ranges: dict[SlotRange, EndpointSlots]
    shapes: set[Shape]
    affinity_lists: dict[int, AffinityList]
    """The endpoint lists with session affinity, by their numbers."""


class PortCompiler:
    """Compiles the ports of one family."""

    def __init__(self, layout: NftablesLayout) -> None:
        self._layout = layout
        self._parse = data_type(layout.address).parse
        self._masquerade = layout.facts.masquerade_mark
        self._shortcut = "shortcut" if layout.facts.masquerade_all else "cluster"
        self.marks = AffinityMarks(self._masquerade)
        self._verdicts: dict[Shape, Verdict] = {}
        self._node_ports: dict[tuple[str, int], bytes] = {}
        """Cached keys by protocol and port."""

    def compile(self, port_slots: PortSlots, owned: frozenset[FrontendKey]) -> Compiled:
        """The elements, slots and shapes for the frontends of a port that its Service owns (``owned``)."""
        out = Compiled({}, {}, set(), {})
        port = port_slots.port
        internal, *external = self.frontends(port)
        for name, key in self.shared(port):
            self._put(out, name, key, PRESENT)
        if internal in owned:
            self._internal(out, port_slots, internal)
        for frontend in external:
            if frontend in owned:
                self._external(out, port_slots, frontend)
        if port.source_ranges:
            for frontend in (self._address_frontend(address, port) for address in port.load_balancer_ips):
                if frontend in owned:
                    for name, key, element in self._layout.guarded(port, frontend.key):
                        self._put(out, name, key, element)
        return out

    def shared(self, port: ResolvedPort) -> Iterator[tuple[str, bytes]]:
        """Set and key of the elements that several Services may need."""
        yield "cluster-ips", self._parse(port.cluster_ip)
        for endpoint in chain(port.cluster_endpoints, port.local_endpoints):
            if endpoint.local:
                address = self._parse(endpoint.address)
                yield "hairpin", address + address

    def add_elements(self, compiled: Compiled, into: Elements) -> None:
        """Adds all elements of a compiled port to ``into``."""
        for name, entries in compiled.elements.items():
            into[name].update(entries)
        for slot_range, endpoint_slots in compiled.slot_ranges.items():
            entries, frontend, first = into[slot_range.map], slot_range.frontend.key, slot_range.first
            if endpoint_slots.affinity_list is None:
                for number, endpoint in enumerate(endpoint_slots.endpoints, first):
                    entries[frontend + number.to_bytes(4, HOST_ORDER)] = Element(self.target(endpoint))
                continue
            for slot in range(len(endpoint_slots.endpoints)):
                entries[slot_key(slot_range.frontend, first + slot)] = self.in_slot(endpoint_slots, slot)
        for affinity_list in compiled.affinity_lists.values():
            for endpoint in affinity_list.endpoints:
                into["affinity-endpoints"].update(self.mark_elements(affinity_list, endpoint))

    def in_slot(self, endpoint_slots: EndpointSlots, slot: int) -> Element:
        """The element of a slot: the endpoint, or with session affinity the mark of the endpoint."""
        endpoint = endpoint_slots.endpoints[slot]
        if endpoint_slots.affinity_list is None:
            return Element(self.target(endpoint))
        mark = self.marks.mark(endpoint_slots.affinity_list.number, endpoint_slots.affinity_list.endpoints[endpoint])
        return Element(mark.to_bytes(4, HOST_ORDER))

    def mark_elements(self, affinity_list: AffinityList, endpoint: ResolvedEndpoint) -> Iterator[tuple[bytes, Element]]:
        """The elements from the mark of an endpoint to the endpoint, with and without the masquerade bit."""
        mark = self.marks.mark(affinity_list.number, affinity_list.endpoints[endpoint])
        target = Element(self.target(endpoint))
        for marked in (mark, mark | self._masquerade):
            yield marked.to_bytes(4, HOST_ORDER), target

    def frontends(self, port: ResolvedPort) -> tuple[FrontendKey, ...]:
        """The cluster address, then the frontends for clients outside the cluster."""
        addresses = dict.fromkeys((*port.external_ips, *port.load_balancer_ips))
        keys = [
            self._address_frontend(port.cluster_ip, port),
            *(self._address_frontend(address, port) for address in addresses),
        ]
        if port.node_port:
            keys.append(FrontendKey(self._node_port(port.protocol, port.node_port), True))
        return tuple(keys)

    def _address_frontend(self, address: str, port: ResolvedPort) -> FrontendKey:
        return FrontendKey(self._parse(address) + self._node_port(port.protocol, port.port), False)

    def _node_port(self, protocol: str, number: int) -> bytes:
        key = self._node_ports.get((protocol, number))
        if key is None:
            key = self._node_ports[protocol, number] = pack(("inet_proto", "inet_service"), (protocol, str(number)))
        return key

    def _put(self, out: Compiled, name: str, key: bytes, element: Element) -> None:
        out.elements.setdefault(name, {})[key] = element

    def target(self, endpoint: ResolvedEndpoint) -> bytes:
        """An endpoint as data of a map element."""
        return self._parse(endpoint.address) + endpoint.port.to_bytes(2, "big") + b"\0\0"

    def _internal(self, out: Compiled, port_slots: PortSlots, frontend: FrontendKey) -> None:
        port = port_slots.port
        if not port_slots.internal.endpoints:
            self._unreachable(out, port, frontend, drop=port.has_endpoints)
            return
        shape = Shape("cluster", port_slots.internal.capacity, False, port.affinity_s)
        self._serve(out, (frontend, port, shape), port_slots.internal)

    def _external(self, out: Compiled, port_slots: PortSlots, frontend: FrontendKey) -> None:
        port = port_slots.port
        if not port.has_endpoints:
            self._unreachable(out, port, frontend, drop=False)
            return
        kind = self._shortcut if port.external_local else "external"
        if port_slots.cluster.endpoints:
            shape = Shape(kind, port_slots.cluster.capacity, frontend.node_port, port.affinity_s)
            self._serve(out, (frontend, port, shape), port_slots.cluster)
        if not port.external_local:
            return
        if port_slots.local.endpoints:
            shape = Shape("local", port_slots.local.capacity, frontend.node_port, port.affinity_s)
            self._serve(out, (frontend, port, shape), port_slots.local)
        else:
            drop = Element(verdict=_DROP, comment=port.name)
            self._put(out, f"local-{frontend.suffix}", frontend.key, drop)

    def _unreachable(self, out: Compiled, port: ResolvedPort, frontend: FrontendKey, *, drop: bool) -> None:
        element = Element(verdict=_DROP if drop else _REFUSE, comment=port.name)
        self._put(out, f"refused-{frontend.suffix}", frontend.key, element)

    def _serve(
        self, out: Compiled, dispatch: tuple[FrontendKey, ResolvedPort, Shape], endpoint_slots: EndpointSlots
    ) -> None:
        frontend, port, shape = dispatch
        out.shapes.add(shape)
        prefix = "local-" if shape.kind == "local" else ""
        verdict = self._verdicts.get(shape)
        if verdict is None:
            verdict = self._verdicts[shape] = Verdict("goto", shape.chain)
        element = Element(verdict=verdict, comment=port.name)
        self._put(out, prefix + frontend.suffix, frontend.key, element)
        first = LOCAL_SLOT if shape.kind == "local" else 0
        out.slot_ranges[SlotRange(slot_map(frontend, affinity=bool(shape.affinity_s)), frontend, first)] = (
            endpoint_slots
        )
        if endpoint_slots.affinity_list is not None:
            out.affinity_lists[endpoint_slots.affinity_list.number] = endpoint_slots.affinity_list
