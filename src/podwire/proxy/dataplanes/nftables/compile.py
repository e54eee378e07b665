"""What one port of one Service puts into which set and map (pure).

Verdicts, addresses and source ranges are few and are made whole (``frame``). Endpoints may be thousands, so where they
go is described (``runs``: which list stands in which map under which frontend), and elements are made of the slots
that differ.
"""

from collections.abc import Iterator
from itertools import chain

import msgspec

from podwire.proxy.dataplanes.nftables.affinity import AffinityList, AffinityMarks
from podwire.proxy.dataplanes.nftables.layout import LOCAL_SLOT, NftablesLayout, Shape
from podwire.proxy.dataplanes.nftables.slots import EndpointSlots
from podwire.proxy.nft_frame import FrontendKey
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort
from podwire.state.nft import Element
from podwire.state.nft_rules import Verdict
from podwire.state.nft_types import HOST_ORDER, data_type, pack

Elements = dict[str, dict[bytes, Element]]
"""Elements by the name of their set."""

_REFUSE = Verdict("goto", "refuse")
_DROP = Verdict("drop")
PRESENT = Element()
"""An element that is just there."""


def slot_map(frontend: FrontendKey, *, affinity: bool) -> str:
    """The name of the map that holds the slots of a frontend."""
    if affinity:
        return "affinity-node-port-slots" if frontend.node_port else "affinity-slots"
    return "node-port-endpoints" if frontend.node_port else "endpoints"


def slot_key(frontend: FrontendKey, number: int) -> bytes:
    """The key of one slot of a frontend."""
    return frontend.key + number.to_bytes(4, HOST_ORDER)


class PortSlots(msgspec.Struct, frozen=True, gc=False):
    """A port with its two lists."""

    port: ResolvedPort
    cluster: EndpointSlots = EndpointSlots()
    local: EndpointSlots = EndpointSlots()

    @property
    def internal(self) -> EndpointSlots:
        """Who serves the cluster address."""
        return self.local if self.port.internal_local else self.cluster


class SlotRange(msgspec.Struct, frozen=True, gc=False):
    """A list of endpoints in a map: its slots under a frontend, counted from ``first``."""

    map: str
    frontend: FrontendKey
    first: int


class Compiled(msgspec.Struct, frozen=True):
    """What a port puts into the table."""

    frame: Elements
    runs: dict[SlotRange, EndpointSlots]
    shapes: set[Shape]
    lists: dict[int, AffinityList]
    """Lists that clients are remembered for, by their numbers."""


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
        """Keys made once: protocol and port."""

    def compile(self, placed: PortSlots, owned: frozenset[FrontendKey]) -> Compiled:
        """What the ``owned`` frontends of a port need."""
        out = Compiled({}, {}, set(), {})
        port = placed.port
        internal, *external = self.frontends(port)
        for name, key in self.shared(port):
            self._put(out, name, key, PRESENT)
        if internal in owned:
            self._internal(out, placed, internal)
        for frontend in external:
            if frontend in owned:
                self._external(out, placed, frontend)
        if port.source_ranges:
            for frontend in (self._address_frontend(address, port) for address in port.load_balancer_ips):
                if frontend in owned:
                    for name, key, element in self._layout.guarded(port, frontend.key):
                        self._put(out, name, key, element)
        return out

    def shared(self, port: ResolvedPort) -> Iterator[tuple[str, bytes]]:
        """Set and key of the elements that other Services may put in too."""
        yield "cluster-ips", self._parse(port.cluster_ip)
        for endpoint in chain(port.cluster_endpoints, port.local_endpoints):
            if endpoint.local:
                address = self._parse(endpoint.address)
                yield "hairpin", address + address

    def elements(self, compiled: Compiled, into: Elements) -> None:
        """Puts every element of a compiled port there."""
        for name, entries in compiled.frame.items():
            into[name].update(entries)
        for run, spread in compiled.runs.items():
            entries = into[run.map]
            for slot in range(len(spread.endpoints)):
                entries[slot_key(run.frontend, run.first + slot)] = self.in_slot(spread, slot)
        for listed in compiled.lists.values():
            for endpoint in listed.endpoints:
                into["affinity-endpoints"].update(self.answers(listed, endpoint))

    def in_slot(self, spread: EndpointSlots, slot: int) -> Element:
        """What a slot yields: the endpoint, or the mark that stands for it."""
        endpoint = spread.endpoints[slot]
        if spread.numbered is None:
            return Element(self.target(endpoint))
        mark = self.marks.mark(spread.numbered.number, spread.numbered.endpoints[endpoint])
        return Element(mark.to_bytes(4, HOST_ORDER))

    def answers(self, listed: AffinityList, endpoint: ResolvedEndpoint) -> Iterator[tuple[bytes, Element]]:
        """The elements that lead from the mark of an endpoint to it, with and without the bit for masquerade."""
        mark = self.marks.mark(listed.number, listed.endpoints[endpoint])
        target = Element(self.target(endpoint))
        for marked in (mark, mark | self._masquerade):
            yield marked.to_bytes(4, HOST_ORDER), target

    def frontends(self, port: ResolvedPort) -> tuple[FrontendKey, ...]:
        """The cluster address, then everything that is reached from outside."""
        addresses = dict.fromkeys((*port.external_ips, *port.load_balancer_ips))
        found = [
            self._address_frontend(port.cluster_ip, port),
            *(self._address_frontend(address, port) for address in addresses),
        ]
        if port.node_port:
            found.append(FrontendKey(self._node_port(port.protocol, port.node_port), True))
        return tuple(found)

    def _address_frontend(self, address: str, port: ResolvedPort) -> FrontendKey:
        return FrontendKey(self._parse(address) + self._node_port(port.protocol, port.port), False)

    def _node_port(self, protocol: str, number: int) -> bytes:
        key = self._node_ports.get((protocol, number))
        if key is None:
            key = self._node_ports[protocol, number] = pack(("inet_proto", "inet_service"), (protocol, str(number)))
        return key

    def _put(self, out: Compiled, name: str, key: bytes, element: Element) -> None:
        out.frame.setdefault(name, {})[key] = element

    def target(self, endpoint: ResolvedEndpoint) -> bytes:
        """An endpoint as the data of a map."""
        return self._parse(endpoint.address) + endpoint.port.to_bytes(2, "big") + b"\0\0"

    def _internal(self, out: Compiled, placed: PortSlots, frontend: FrontendKey) -> None:
        port = placed.port
        if not placed.internal.endpoints:
            self._unreachable(out, port, frontend, drop=port.has_endpoints)
            return
        shape = Shape("cluster", placed.internal.capacity, False, port.affinity_s)
        self._serve(out, (frontend, port, shape), placed.internal)

    def _external(self, out: Compiled, placed: PortSlots, frontend: FrontendKey) -> None:
        port = placed.port
        if not port.has_endpoints:
            self._unreachable(out, port, frontend, drop=False)
            return
        kind = self._shortcut if port.external_local else "external"
        if placed.cluster.endpoints:
            shape = Shape(kind, placed.cluster.capacity, frontend.node_port, port.affinity_s)
            self._serve(out, (frontend, port, shape), placed.cluster)
        if not port.external_local:
            return
        if placed.local.endpoints:
            shape = Shape("local", placed.local.capacity, frontend.node_port, port.affinity_s)
            self._serve(out, (frontend, port, shape), placed.local)
        else:
            drop = Element(verdict=_DROP, comment=port.name)
            self._put(out, f"local-{frontend.suffix}", frontend.key, drop)

    def _unreachable(self, out: Compiled, port: ResolvedPort, frontend: FrontendKey, *, drop: bool) -> None:
        element = Element(verdict=_DROP if drop else _REFUSE, comment=port.name)
        self._put(out, f"refused-{frontend.suffix}", frontend.key, element)

    def _serve(self, out: Compiled, dispatch: tuple[FrontendKey, ResolvedPort, Shape], spread: EndpointSlots) -> None:
        frontend, port, shape = dispatch
        out.shapes.add(shape)
        prefix = "local-" if shape.kind == "local" else ""
        verdict = self._verdicts.get(shape)
        if verdict is None:
            verdict = self._verdicts[shape] = Verdict("goto", shape.chain)
        element = Element(verdict=verdict, comment=port.name)
        self._put(out, prefix + frontend.suffix, frontend.key, element)
        first = LOCAL_SLOT if shape.kind == "local" else 0
        out.runs[SlotRange(slot_map(frontend, affinity=bool(shape.affinity_s)), frontend, first)] = spread
        if spread.numbered is not None:
            out.lists[spread.numbered.number] = spread.numbered
