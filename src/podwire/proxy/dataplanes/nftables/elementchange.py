"""The elements that one change of Services removes and adds (pure)."""

from collections.abc import Iterable
from itertools import zip_longest

from podwire.proxy.dataplanes.nftables.affinity import AffinityList
from podwire.proxy.dataplanes.nftables.compile import (
    Compiled,
    Elements,
    PortCompiler,
    SlotRange,
    slot_key,
)
from podwire.proxy.dataplanes.nftables.slots import NO_ENDPOINTS, EndpointSlots
from podwire.state.nft import Element

_SHARED = frozenset(("cluster-ips", "hairpin"))


class ElementDelta:
    """Removed and added elements; an element that is removed and added again is no change."""

    def __init__(self) -> None:
        self.removed: Elements = {}
        self.added: Elements = {}

    def remove(self, name: str, key: bytes, element: Element) -> None:
        """Records a removed element."""
        self._record(self.added, self.removed, name, (key, element))

    def add(self, name: str, key: bytes, element: Element) -> None:
        """Records an added element."""
        self._record(self.removed, self.added, name, (key, element))

    def _record(self, opposite: Elements, own: Elements, name: str, entry: tuple[bytes, Element]) -> None:
        key, element = entry
        if opposite.get(name, {}).get(key) == element:
            del opposite[name][key]
        else:
            own.setdefault(name, {})[key] = element


class ElementChange:
    """Collects the removed and added elements; an element that several Services need is removed with the last one."""

    def __init__(self, compiler: PortCompiler, counts: dict[tuple[str, bytes], int]) -> None:
        """``counts`` are the numbers of Services that need each shared element, and change with the elements."""
        self._compiler = compiler
        self._counts = counts
        self.delta = ElementDelta()

    def swap(self, old: list[Compiled], new: list[Compiled]) -> None:
        """Replaces the elements of a Service."""
        self._swap_elements(old, new)
        self._swap_slots(old, new)
        self._swap_affinity(old, new)

    def _swap_elements(self, old: list[Compiled], new: list[Compiled]) -> None:
        before, after = _all_elements(old), _all_elements(new)
        for name, entries in before.items():
            fresh = after.get(name, {})
            for key, element in entries.items():
                if fresh.get(key) != element:
                    self._remove(name, key, element)
        for name, entries in after.items():
            stale = before.get(name, {})
            for key, element in entries.items():
                if stale.get(key) != element:
                    self._add(name, key, element)

    def _swap_slots(self, old: list[Compiled], new: list[Compiled]) -> None:
        before, after = _all_slot_ranges(old), _all_slot_ranges(new)
        for slot_range in before | after:
            stale, fresh = before.get(slot_range, NO_ENDPOINTS), after.get(slot_range, NO_ENDPOINTS)
            for slot in _differing(stale, fresh):
                key = slot_key(slot_range.frontend, slot_range.first + slot)
                if slot < len(stale.endpoints):
                    self.delta.remove(slot_range.map, key, self._compiler.in_slot(stale, slot))
                if slot < len(fresh.endpoints):
                    self.delta.add(slot_range.map, key, self._compiler.in_slot(fresh, slot))

    def _swap_affinity(self, old: list[Compiled], new: list[Compiled]) -> None:
        before, after = _affinity_lists(old), _affinity_lists(new)
        for number in before | after:
            stale, fresh = before.get(number, AffinityList(number)), after.get(number, AffinityList(number))
            if stale is fresh:
                continue
            for endpoint in stale.endpoints:
                if fresh.endpoints.get(endpoint) != stale.endpoints[endpoint]:
                    for key, element in self._compiler.mark_elements(stale, endpoint):
                        self.delta.remove("affinity-endpoints", key, element)
            for endpoint in fresh.endpoints:
                if stale.endpoints.get(endpoint) != fresh.endpoints[endpoint]:
                    for key, element in self._compiler.mark_elements(fresh, endpoint):
                        self.delta.add("affinity-endpoints", key, element)

    def _remove(self, name: str, key: bytes, element: Element) -> None:
        if name in _SHARED:
            self._counts[name, key] -= 1
            if self._counts[name, key]:
                return
            del self._counts[name, key]
        self.delta.remove(name, key, element)

    def _add(self, name: str, key: bytes, element: Element) -> None:
        if name in _SHARED:
            self._counts[name, key] = self._counts.get((name, key), 0) + 1
            if self._counts[name, key] > 1:
                return
        self.delta.add(name, key, element)


def _all_elements(compiled: Iterable[Compiled]) -> Elements:
    elements: Elements = {}
    for port in compiled:
        for name, entries in port.elements.items():
            elements.setdefault(name, {}).update(entries)
    return elements


def _all_slot_ranges(compiled: Iterable[Compiled]) -> dict[SlotRange, EndpointSlots]:
    return {slot_range: endpoint_slots for port in compiled for slot_range, endpoint_slots in port.slot_ranges.items()}


def _affinity_lists(compiled: Iterable[Compiled]) -> dict[int, AffinityList]:
    return {number: affinity_list for port in compiled for number, affinity_list in port.affinity_lists.items()}


def _differing(old: EndpointSlots, new: EndpointSlots) -> Iterable[int]:
    """The slots whose elements differ."""
    before = None if old.affinity_list is None else old.affinity_list.number
    after = None if new.affinity_list is None else new.affinity_list.number
    if before != after:
        return range(max(len(old.endpoints), len(new.endpoints)))
    if old.endpoints is new.endpoints:
        return ()
    pairs = zip_longest(old.endpoints, new.endpoints)
    return (slot for slot, (stale, fresh) in enumerate(pairs) if stale is not fresh and stale != fresh)
