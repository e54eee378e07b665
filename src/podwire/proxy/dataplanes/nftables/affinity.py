"""The numbers by which session affinity identifies endpoints (pure).

The affinity of a client is one entry of the map ``affinity-clients``, from client and *list* to endpoint. A list is an
endpoint list of one port of one Service. All frontends that use the list share the affinity: cluster address, node
port, load balancer and external addresses. A port with traffic policy Local has two lists: all endpoints, and the
endpoints of this node.

One packet mark holds the numbers of list and endpoint, because nft 1.0.6 can print a masked mark in the key of an
update statement, but not a map lookup::

    bit 30     set in every number, and in no other mark of podwire
    16 bits    the list, in the free bits above ...
    14 bits    the endpoint within its list, from 1; the bit that asks for masquerade is not used

So the value of a slot contains the list, and ``meta mark & mask`` is the list alone, which is never the number of an
endpoint. Numbers are assigned in turn and reused only after all others, so that an affinity entry of a removed
endpoint does not match a new endpoint. After a restart they are read from the kernel.
"""

from collections.abc import Collection, Iterable

import msgspec

from podwire.proxy.servicemap import ResolvedEndpoint

AFFINITY_BIT = 0x40000000
"""Set in every number, and in no other mark of podwire."""
LISTS = 1 << 16
"""The number of possible lists."""
ENDPOINTS = (1 << 14) - 1
"""The maximum number of endpoints in one list."""

_ENDPOINT_NUMBERS = ENDPOINTS + 1


class AffinityMarks:
    """Numbers as packet marks that do not use the bit ``masquerade_mark``."""

    def __init__(self, masquerade_mark: int) -> None:
        self._low = masquerade_mark - 1
        self.mask = self._to_mark_bits((LISTS - 1) * _ENDPOINT_NUMBERS) | AFFINITY_BIT
        """The bits of the list."""

    def _to_mark_bits(self, number: int) -> int:
        """Distributes 30 bits over the bits of a mark that are free."""
        free = (number & ~self._low) << 1 | number & self._low
        return (free & AFFINITY_BIT) << 1 | free & (AFFINITY_BIT - 1)

    def mark(self, number: int, endpoint: int) -> int:
        """The mark of an endpoint of a list."""
        return self._to_mark_bits(number * _ENDPOINT_NUMBERS + endpoint) | AFFINITY_BIT

    def split(self, mark: int) -> tuple[int, int]:
        """The numbers of list and endpoint in a mark."""
        free = (mark & AFFINITY_BIT << 1) >> 1 | mark & (AFFINITY_BIT - 1)
        return divmod((free >> 1) & ~self._low | free & self._low, _ENDPOINT_NUMBERS)


class AffinityList(msgspec.Struct, frozen=True):
    """A list with its number, and the numbers of its endpoints."""

    number: int
    endpoints: dict[ResolvedEndpoint, int] = {}
    next_number: int = 1
    """Where the search for a free number continues."""

    def with_endpoints(self, endpoints: Collection[ResolvedEndpoint]) -> "AffinityList":
        """The list with these endpoints, at most ``ENDPOINTS``; endpoints that stay keep their numbers."""
        if self.endpoints.keys() == set(endpoints):
            return self
        numbers = {endpoint: number for endpoint in endpoints if (number := self.endpoints.get(endpoint)) is not None}
        numbers_in_use = set(numbers.values())
        next_number = self.next_number
        for endpoint in endpoints:
            if endpoint not in numbers:
                while next_number in numbers_in_use:
                    next_number = next_number % ENDPOINTS + 1
                numbers[endpoint] = next_number
                numbers_in_use.add(next_number)
                next_number = next_number % ENDPOINTS + 1
        return AffinityList(self.number, numbers, next_number)


class AffinityNumbers:
    """The list numbers that are in use."""

    def __init__(self, reserved: Iterable[int] = ()) -> None:
        """``reserved`` numbers are assigned only on request, until :meth:`end_reservations`."""
        self._reserved = frozenset(reserved)
        self._in_use: set[int] = set()
        self._next_number = 0

    def end_reservations(self) -> None:
        """Ends all reservations."""
        self._reserved = frozenset()

    def take(self, preferred: int | None = None) -> int | None:
        """Takes a number, the preferred number if it is free; None when all are in use."""
        number = self._next() if preferred is None or preferred in self._in_use else preferred
        if number is not None:
            self._in_use.add(number)
        return number

    def _next(self) -> int | None:
        for step in range(LISTS):
            number = (self._next_number + step) % LISTS
            if number not in self._in_use and number not in self._reserved:
                self._next_number = (number + 1) % LISTS
                return number
        return None

    def release(self, number: int) -> None:
        """Releases a number."""
        self._in_use.discard(number)
