"""The numbers by which session affinity identifies endpoints (pure).

An affinity of a client is one entry of the map ``affinity-clients``: client and *list* to endpoint. A list is what one
port of one Service spreads its connections over, so every frontend that uses the list shares the affinity: cluster
address, node port, load balancer and external addresses. (A port with policy Local has two lists: all endpoints and
those of this node.)

List and endpoint travel in one packet mark, since nft 1.0.6 can list a masked mark in the key of an update, but not a
map's answer::

    bit 30     set in every number, and in no other mark of ours
    16 bits    the list, in what is left of the mark above ...
    14 bits    the endpoint within its list, from 1; the bit that asks for masquerade is left out

So the candidate that a slot yields carries its list with it, and ``meta mark & mask`` is the list alone, which is no
endpoint's number. Numbers are assigned in turn and reused only after all others, so that an affinity entry of a removed
endpoint does not match a new endpoint. After a restart they are read from the kernel.
"""

from collections.abc import Collection, Iterable

import msgspec

from podwire.proxy.servicemap import ResolvedEndpoint

AFFINITY_BIT = 0x40000000
"""Set in every number, and in no other mark of ours."""
LISTS = 1 << 16
"""Lists that can be told apart."""
ENDPOINTS = (1 << 14) - 1
"""Endpoints of one list that can be told apart."""

_ROOM = ENDPOINTS + 1


class AffinityMarks:
    """Numbers as packet marks that leave the bit ``masquerade_mark`` alone."""

    def __init__(self, masquerade_mark: int) -> None:
        self._low = masquerade_mark - 1
        self.mask = self._spread((LISTS - 1) * _ROOM) | AFFINITY_BIT
        """The bits of the list."""

    def _spread(self, number: int) -> int:
        """30 bits over a mark without the two that are not free."""
        free = (number & ~self._low) << 1 | number & self._low
        return (free & AFFINITY_BIT) << 1 | free & (AFFINITY_BIT - 1)

    def mark(self, number: int, endpoint: int) -> int:
        """The mark of an endpoint of a list."""
        return self._spread(number * _ROOM + endpoint) | AFFINITY_BIT

    def split(self, mark: int) -> tuple[int, int]:
        """List and endpoint of a mark."""
        free = (mark & AFFINITY_BIT << 1) >> 1 | mark & (AFFINITY_BIT - 1)
        return divmod((free >> 1) & ~self._low | free & self._low, _ROOM)


class AffinityList(msgspec.Struct, frozen=True):
    """A list with its number, and the numbers of its endpoints."""

    number: int
    endpoints: dict[ResolvedEndpoint, int] = {}
    following: int = 1
    """Where the search for a free number goes on."""

    def follow(self, wanted: Collection[ResolvedEndpoint]) -> "AffinityList":
        """The list with these endpoints; those that stay keep their numbers. At most ``ENDPOINTS`` are wanted."""
        if self.endpoints.keys() == set(wanted):
            return self
        kept = {endpoint: number for endpoint in wanted if (number := self.endpoints.get(endpoint)) is not None}
        taken = set(kept.values())
        following = self.following
        for endpoint in wanted:
            if endpoint not in kept:
                while following in taken:
                    following = following % ENDPOINTS + 1
                kept[endpoint] = following
                taken.add(following)
                following = following % ENDPOINTS + 1
        return AffinityList(self.number, kept, following)


class AffinityNumbers:
    """Which numbers of lists are in use."""

    def __init__(self, reserved: Iterable[int] = ()) -> None:
        """``reserved`` numbers are given only on request, until :meth:`open`."""
        self._reserved = frozenset(reserved)
        self._taken: set[int] = set()
        self._following = 0

    def open(self) -> None:
        """Ends all reservations."""
        self._reserved = frozenset()

    def take(self, wished: int | None = None) -> int | None:
        """Takes a number, the wished one if it is free; None when all are in use."""
        number = self._next() if wished is None or wished in self._taken else wished
        if number is not None:
            self._taken.add(number)
        return number

    def _next(self) -> int | None:
        for step in range(LISTS):
            number = (self._following + step) % LISTS
            if number not in self._taken and number not in self._reserved:
                self._following = (number + 1) % LISTS
                return number
        return None

    def release(self, number: int) -> None:
        """Gives a number back."""
        self._taken.discard(number)
