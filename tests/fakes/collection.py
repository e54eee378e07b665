"""Objects of the API by key, changed by hand; stands for an informer."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
OnChange = Callable[[str, T | None, T | None], None]
"""Called with key, object before (None: new) and object after (None: deleted)."""


class Collection(Generic[T]):
    """Calls its subscribers in order, once for each change, after ``objects`` changed."""

    def __init__(self) -> None:
        self.objects: dict[str, T] = {}
        self.synced = asyncio.Event()
        self._callbacks: list[OnChange[T]] = []

    def subscribe(self, callback: OnChange[T], *, replay: bool = True) -> None:
        """Calls ``callback`` on each change from now on; with ``replay`` first for each object that is there."""
        if replay:
            for key, value in self.objects.items():
                callback(key, None, value)
        self._callbacks.append(callback)

    def get(self, key: str) -> T | None:
        """The object of a key, or None."""
        return self.objects.get(key)

    def put(self, key: str, value: T | None) -> None:
        """Stores an object, or deletes it (None)."""
        old = self.objects.pop(key, None)
        if value is not None:
            self.objects[key] = value
        for callback in self._callbacks:
            callback(key, old, value)
