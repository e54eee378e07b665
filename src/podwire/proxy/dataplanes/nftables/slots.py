"""Which endpoint is in which slot, and how many slots a chain draws from (pure).

The kernel draws a slot from 0 to ``capacity - 1``; where nobody is, it draws again. The capacity is a power of two of
which at least half is in use, so that most draws find somebody, and so that endpoints come and go without another
capacity: another one means another chain in the map ``services``, and for an element that names a chain the kernel
goes through the elements of all such maps (1 ms at 10,000 Services, against 0.05 ms for one that does not). At exactly
half the capacity stays as it is, so that a Service that grows by one and shrinks by one keeps it; four is the least,
for the many with up to four endpoints.

Endpoints keep their slots: one that leaves is replaced by one that comes, or by the last one.
"""

import msgspec

from podwire.proxy.dataplanes.nftables.affinity import AffinityList
from podwire.proxy.servicemap import ResolvedEndpoint

LEAST = 4
"""The smallest capacity; of its slots one at least is in use."""


class EndpointSlots(msgspec.Struct, frozen=True, gc=False):
    """One list of endpoints of a Service port as it is programmed."""

    endpoints: tuple[ResolvedEndpoint, ...] = ()
    """In the order of their slots."""
    capacity: int = LEAST
    numbered: AffinityList | None = None
    """Their numbers, with session affinity."""

    def follow(self, wanted: tuple[ResolvedEndpoint, ...]) -> "EndpointSlots":
        """The list with these endpoints, without numbers."""
        slots = keep_slots(self.endpoints, wanted)
        capacity = keep_capacity(self.capacity, len(slots))
        return NOBODY if not slots and capacity == LEAST else EndpointSlots(slots, capacity)


NOBODY = EndpointSlots()
"""A list without endpoints; most ports have none of this node's."""


def keep_slots(
    before: tuple[ResolvedEndpoint, ...], wanted: tuple[ResolvedEndpoint, ...]
) -> tuple[ResolvedEndpoint, ...]:
    """``wanted`` in an order that leaves as many endpoints of ``before`` in their places as possible."""
    if not before or before == wanted:
        return wanted
    missing = {endpoint: endpoint for endpoint in wanted}
    slots: list[ResolvedEndpoint | None] = [None] * len(wanted)
    for place, endpoint in enumerate(before[: len(wanted)]):
        slots[place] = missing.pop(endpoint, None)
    rest = iter(missing)
    return tuple(endpoint if endpoint is not None else next(rest) for endpoint in slots)


def keep_capacity(before: int, count: int) -> int:
    """How many slots to draw from for ``count`` endpoints."""
    least = max(LEAST, 1 << max(0, count - 1).bit_length())
    return before if before == 2 * least and count == least else least
