"""Assigns endpoints to slots, and chooses the number of slots that a chain draws from (pure).

The kernel draws a random slot from 0 to ``capacity - 1``; when the slot is empty, it draws again. The capacity is a
power of two, and at least half of the slots are in use. So most draws find an endpoint, and most changes of endpoints
keep the capacity. A changed capacity means another chain in the map ``services``, and for an element that names a chain
the kernel walks through the elements of all such maps (1 ms with 10,000 Services; other elements take 0.05 ms). When
exactly half of the slots are in use, the capacity stays, so that it does not change when a Service gets and loses one
endpoint in turn. The smallest capacity is four, because most Services have at most four endpoints.

Endpoints keep their slots: the slot of a removed endpoint gets an added endpoint, or the last endpoint.
"""

import msgspec

from podwire.proxy.dataplanes.nftables.affinity import AffinityList
from podwire.proxy.servicemap import ResolvedEndpoint

MIN_CAPACITY = 4
"""The smallest capacity; at least one of its slots is in use."""


class EndpointSlots(msgspec.Struct, frozen=True, gc=False):
    """One endpoint list of a Service port, in the order of the slots in the kernel."""

    endpoints: tuple[ResolvedEndpoint, ...] = ()
    """The endpoints, in the order of their slots."""
    capacity: int = MIN_CAPACITY
    affinity_list: AffinityList | None = None
    """The numbers of the endpoints, with session affinity."""

    def with_endpoints(self, endpoints: tuple[ResolvedEndpoint, ...]) -> "EndpointSlots":
        """The slots for these endpoints, without affinity numbers."""
        slots = keep_slots(self.endpoints, endpoints)
        capacity = keep_capacity(self.capacity, len(slots))
        return NO_ENDPOINTS if not slots and capacity == MIN_CAPACITY else EndpointSlots(slots, capacity)


NO_ENDPOINTS = EndpointSlots()
"""Slots without endpoints; most ports have no endpoint on this node."""


def keep_slots(
    before: tuple[ResolvedEndpoint, ...], after: tuple[ResolvedEndpoint, ...]
) -> tuple[ResolvedEndpoint, ...]:
    """``after`` in an order in which as many endpoints of ``before`` as possible keep their position."""
    if not before or before == after:
        return after
    missing = {endpoint: endpoint for endpoint in after}
    slots: list[ResolvedEndpoint | None] = [None] * len(after)
    for slot, endpoint in enumerate(before[: len(after)]):
        slots[slot] = missing.pop(endpoint, None)
    unplaced = iter(missing)
    return tuple(endpoint if endpoint is not None else next(unplaced) for endpoint in slots)


def keep_capacity(before: int, count: int) -> int:
    """The number of slots to draw from for ``count`` endpoints; ``before`` is the current number."""
    minimum = max(MIN_CAPACITY, 1 << max(0, count - 1).bit_length())
    return before if before == 2 * minimum and count == minimum else minimum
