"""Slots, capacities and numbers of a port in the kernel's table, so that a restart changes nothing (pure)."""

from collections.abc import Mapping

from podwire.proxy.dataplanes.nftables.affinity import ENDPOINTS, AffinityList
from podwire.proxy.dataplanes.nftables.compile import PortCompiler, slot_key, slot_map
from podwire.proxy.dataplanes.nftables.layout import LOCAL_SLOT, capacity_of
from podwire.proxy.dataplanes.nftables.slots import EndpointSlots
from podwire.proxy.nft_frame import FrontendKey
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort
from podwire.state.nft import Element, Table
from podwire.state.nft_types import HOST_ORDER

_NOBODY = ResolvedEndpoint("", 0)


class AdoptedTable:
    """The slots and numbers of a table that was read from the kernel."""

    def __init__(self, table: Table, compiler: PortCompiler) -> None:
        self._sets: dict[str, Mapping[bytes, Element]] = {each.name: each.elements for each in table.sets}
        self._compiler = compiler

    def lists(self) -> set[int]:
        """The numbers of all lists with session affinity."""
        return {self._split(mark)[0] for mark in self._sets.get("affinity-endpoints", {})}

    def spreads(self, port: ResolvedPort) -> tuple[EndpointSlots, EndpointSlots]:
        """The lists of a port: of all endpoints, and of this node's."""
        frontends = self._compiler.frontends(port)
        internal, outside = frontends[0], frontends[min(1, len(frontends) - 1)]
        if port.internal_local:
            return self._spread(outside, port, "cluster"), self._spread(internal, port, "cluster")
        return self._spread(internal, port, "cluster"), self._spread(outside, port, "local")

    def _spread(self, frontend: FrontendKey, port: ResolvedPort, kind: str) -> EndpointSlots:
        prefix, first = ("local-", LOCAL_SLOT) if kind == "local" else ("", 0)
        verdict = self._sets.get(prefix + frontend.suffix, {}).get(frontend.key)
        if verdict is None or verdict.verdict is None:
            return EndpointSlots()
        wanted = (*port.cluster_endpoints, *port.local_endpoints)
        found = {self._compiler.target(endpoint): endpoint for endpoint in wanted}
        entries = self._sets.get(slot_map(frontend, affinity=bool(port.affinity_s)), {})
        data: list[bytes] = []
        while (entry := entries.get(slot_key(frontend, first + len(data)))) is not None:
            data.append(entry.data)
        capacity = capacity_of(verdict.verdict.chain)
        if not port.affinity_s:
            return EndpointSlots(tuple(found.get(each, _NOBODY) for each in data), capacity)
        answers = self._sets.get("affinity-endpoints", {})
        slots = tuple(found.get(answers[each].data if each in answers else b"", _NOBODY) for each in data)
        return EndpointSlots(slots, capacity, self._numbered(data, slots))

    def _numbered(self, marks: list[bytes], slots: tuple[ResolvedEndpoint, ...]) -> AffinityList | None:
        if not marks:
            return None
        split = [self._split(mark) for mark in marks]
        number = split[0][0]
        endpoints = {
            endpoint: given
            for (listed, given), endpoint in zip(split, slots, strict=True)
            if listed == number and endpoint is not _NOBODY
        }
        return AffinityList(number, endpoints, max(given for _, given in split) % ENDPOINTS + 1)

    def _split(self, mark: bytes) -> tuple[int, int]:
        return self._compiler.marks.split(int.from_bytes(mark, HOST_ORDER))
