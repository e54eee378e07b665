"""Reads slots, capacities and affinity numbers from the kernel's table, so that a restart changes nothing (pure)."""

from collections.abc import Mapping

from podwire.proxy.dataplanes.nftables.affinity import ENDPOINTS, AffinityList
from podwire.proxy.dataplanes.nftables.compile import PortCompiler, slot_key, slot_map
from podwire.proxy.dataplanes.nftables.layout import LOCAL_SLOT, capacity_of
from podwire.proxy.dataplanes.nftables.slots import EndpointSlots
from podwire.proxy.nft_layout import FrontendKey
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort
from podwire.state.nft import Element, Table
from podwire.state.nft_types import HOST_ORDER

_UNKNOWN = ResolvedEndpoint("", 0)
"""Stands for an endpoint in the table that the Service does not have any more."""


class AdoptedTable:
    """The slots and affinity numbers of a table that was read from the kernel."""

    def __init__(self, table: Table, compiler: PortCompiler) -> None:
        self._sets: dict[str, Mapping[bytes, Element]] = {held.name: held.elements for held in table.sets}
        self._compiler = compiler

    def lists(self) -> set[int]:
        """The numbers of all affinity lists in the table."""
        return {self._split(mark)[0] for mark in self._sets.get("affinity-endpoints", {})}

    def endpoint_slots_of(self, port: ResolvedPort) -> tuple[EndpointSlots, EndpointSlots]:
        """The slots of a port: those of all endpoints, and those of this node's endpoints."""
        frontends = self._compiler.frontends(port)
        internal, outside = frontends[0], frontends[min(1, len(frontends) - 1)]
        if port.internal_local:
            return self._read_slots(outside, port, "cluster"), self._read_slots(internal, port, "cluster")
        return self._read_slots(internal, port, "cluster"), self._read_slots(outside, port, "local")

    def _read_slots(self, frontend: FrontendKey, port: ResolvedPort, kind: str) -> EndpointSlots:
        prefix, first = ("local-", LOCAL_SLOT) if kind == "local" else ("", 0)
        dispatch = self._sets.get(prefix + frontend.suffix, {}).get(frontend.key)
        if dispatch is None or dispatch.verdict is None:
            return EndpointSlots()
        endpoints = (*port.cluster_endpoints, *port.local_endpoints)
        by_target = {self._compiler.target(endpoint): endpoint for endpoint in endpoints}
        entries = self._sets.get(slot_map(frontend, affinity=bool(port.affinity_s)), {})
        data: list[bytes] = []
        while (entry := entries.get(slot_key(frontend, first + len(data)))) is not None:
            data.append(entry.data)
        capacity = capacity_of(dispatch.verdict.chain)
        if not port.affinity_s:
            return EndpointSlots(tuple(by_target.get(target, _UNKNOWN) for target in data), capacity)
        targets = self._sets.get("affinity-endpoints", {})
        slots = tuple(by_target.get(targets[mark].data if mark in targets else b"", _UNKNOWN) for mark in data)
        return EndpointSlots(slots, capacity, self._read_affinity_list(data, slots))

    def _read_affinity_list(self, marks: list[bytes], slots: tuple[ResolvedEndpoint, ...]) -> AffinityList | None:
        if not marks:
            return None
        split = [self._split(mark) for mark in marks]
        number = split[0][0]
        endpoints = {
            endpoint: endpoint_number
            for (list_number, endpoint_number), endpoint in zip(split, slots, strict=True)
            if list_number == number and endpoint is not _UNKNOWN
        }
        return AffinityList(number, endpoints, max(endpoint_number for _, endpoint_number in split) % ENDPOINTS + 1)

    def _split(self, mark: bytes) -> tuple[int, int]:
        return self._compiler.marks.split(int.from_bytes(mark, HOST_ORDER))
