"""Objects of an informer by a value other than their name: pods by node, pods by owner.

The informer's notifications keep an index current; a look-up costs one dictionary access.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from podwire.kube.informer import Informer

T = TypeVar("T")


class Index(Generic[T]):
    """``of(value)`` are the objects for which ``values_of(object)`` holds ``value``."""

    def __init__(self, informer: Informer[T], values_of: Callable[[T], Iterable[str]]) -> None:
        self._values_of = values_of
        self._entries: dict[str, dict[str, T]] = {}
        informer.subscribe(self._change)

    def of(self, value: str) -> dict[str, T]:
        """The objects by key; the caller must not change the dictionary."""
        return self._entries.get(value, {})

    def values(self) -> Iterable[str]:
        """All values that at least one object has."""
        return self._entries.keys()

    def _change(self, key: str, old: T | None, new: T | None) -> None:
        if old is not None:
            for value in self._values_of(old):
                entries = self._entries.get(value)
                if entries is not None:
                    entries.pop(key, None)
                    if not entries:
                        del self._entries[value]
        if new is not None:
            for value in self._values_of(new):
                self._entries.setdefault(value, {})[key] = new
