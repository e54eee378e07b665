"""The addresses of one family in order, to find those within a range without looking at all of them (pure)."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

from podwire.policy.blocks import number_of

_MANY = 256
"""From this number of changed addresses on, sorting everything costs less than inserting each."""


class AddressOrder:
    """Addresses, sorted when they are asked for; a change costs two searches and a move of memory."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._texts: dict[int, set[str]] = {}
        """An address of IPv6 may have several texts."""
        self._changed: set[str] = set()

    def change(self, addresses: Iterable[str]) -> None:
        """Notes that addresses may have come or gone."""
        self._changed.update(addresses)

    def within(self, first: int, last: int, known: Callable[[str], bool]) -> list[str]:
        """The addresses from ``first`` to ``last``; ``known`` says whether a changed address still exists."""
        if self._changed:
            self._settle(known)
        numbers = self._numbers[bisect_left(self._numbers, first) : bisect_right(self._numbers, last)]
        return [text for number in numbers for text in self._texts[number]]

    def _settle(self, known: Callable[[str], bool]) -> None:
        insert = len(self._changed) < _MANY
        for text in self._changed:
            number = number_of(text)
            texts = self._texts.get(number)
            if known(text):
                if texts is None:
                    self._texts[number] = {text}
                    if insert:
                        self._numbers.insert(bisect_left(self._numbers, number), number)
                else:
                    texts.add(text)
            elif texts is not None:
                texts.discard(text)
                if not texts:
                    del self._texts[number]
                    if insert:
                        del self._numbers[bisect_left(self._numbers, number)]
        if not insert:
            self._numbers = sorted(self._texts)
        self._changed.clear()
