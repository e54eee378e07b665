"""The addresses of one family in order, to find those in a range without looking at all of them (pure)."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from podwire.policy.blocks import number_of

_MANY = 256
"""From this number of changes on, sorting everything costs less than moving the rest of the list for each."""


class AddressOrder:
    """Addresses, sorted by number, each under itself or under the other addresses by which blocks match it.

    Changes are sorted in at the next look-up.
    """

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        """``entries`` are pairs of an address and the address under which it is listed."""
        self._entries = sorted({(number_of(place), address) for address, place in entries})
        self._changed: set[str] = set()

    def change(self, address: str) -> None:
        """Records that an address, which is listed under itself, may have come or gone."""
        self._changed.add(address)

    def within(self, first: int, last: int, known: Callable[[str], bool]) -> list[str]:
        """The addresses that are listed from ``first`` to ``last``; ``known``: whether a changed address exists."""
        if self._changed:
            self._settle(known)
        low, high = bisect_left(self._entries, (first, "")), bisect_left(self._entries, (last + 1, ""))
        return [address for _, address in self._entries[low:high]]

    def _settle(self, known: Callable[[str], bool]) -> None:
        if len(self._changed) >= _MANY:
            present = {(number_of(address), address) for address in self._changed if known(address)}
            unchanged = (entry for entry in self._entries if entry[1] not in self._changed)
            self._entries = sorted((*unchanged, *present))
        else:
            for address in self._changed:
                entry = (number_of(address), address)
                place = bisect_left(self._entries, entry)
                listed = place < len(self._entries) and self._entries[place] == entry
                if known(address) and not listed:
                    insort(self._entries, entry)
                elif listed and not known(address):
                    del self._entries[place]
        self._changed.clear()
