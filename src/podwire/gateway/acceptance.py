"""Which object engines refuse, and what is served in its place.

Engines refuse whole resources: a table with the routes of many objects, a listener. The object that is the cause is
found by trying: of the objects that changed, half is served as it was before; when the engines accept that, the cause
is in that half. Every object is served in its newest version or in the one before, so that no trial takes away what
worked. The object that is found stays in its last accepted version (or is left out, where it has none) until it
changes, and all other objects continue to be served as they are.

Cost of a wrong object among n that changed at once: about log2(n) trials, each a translation and an answer.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

ObjectKey = tuple[str, str]
"""The kind of an object, and its namespace and name."""
T = TypeVar("T")


class ResourceRefusal(msgspec.Struct, frozen=True):
    """A resource that engines refuse: the objects that contribute to it, and what the engine said."""

    objects: frozenset[ObjectKey]
    message: str


class ServedObjects(msgspec.Struct, Generic[T], frozen=True):
    """The version of each object to serve; ``withheld`` are those of which none can be served."""

    objects: dict[ObjectKey, T]
    withheld: frozenset[ObjectKey]


class Acceptance(Generic[T]):
    """Follows what engines accept; objects are compared by equality."""

    def __init__(self) -> None:
        self._accepted: dict[ObjectKey, T] = {}
        self._earlier: dict[ObjectKey, T] = {}
        """What was accepted before that."""
        self._refused: dict[ObjectKey, tuple[T, str]] = {}
        self._waiting: list[tuple[ObjectKey, ...]] = []
        """Groups that are held back while another one is tried; the last is the next."""
        self._tried: tuple[ObjectKey, ...] = ()
        self._served: dict[ObjectKey, T] = {}

    @property
    def searching(self) -> bool:
        """Whether a cause is looked for."""
        return bool(self._tried or self._waiting)

    @property
    def refused(self) -> dict[ObjectKey, str]:
        """What engines said about each object that they refuse."""
        return {key: message for key, (_, message) in self._refused.items()}

    def choose(self, objects: Mapping[ObjectKey, T]) -> ServedObjects[T]:
        """What to serve of the newest versions of all objects."""
        self._refused = {key: entry for key, entry in self._refused.items() if objects.get(key) == entry[0]}
        for known in (self._accepted, self._earlier):
            for key in [key for key in known if key not in objects]:
                del known[key]
        held = {key for group in self._waiting for key in group}
        if self.searching:
            fresh = tuple(
                key
                for key, value in objects.items()
                if key not in held
                and key not in self._tried
                and key not in self._refused
                and self._accepted.get(key) != value
            )
            if fresh:
                self._waiting.insert(0, fresh)
                held.update(fresh)
        held.update(self._refused)
        self._served = {
            key: self._accepted[key] if key in held else value
            for key, value in objects.items()
            if key not in held or key in self._accepted
        }
        return ServedObjects(objects=self._served, withheld=frozenset(objects.keys() - self._served.keys()))

    def learn(self, refusals: Iterable[ResourceRefusal]) -> bool:
        """Takes the answer of the engines to the last choice; whether another one has to be made."""
        entries = list(refusals)
        contributors = frozenset(key for entry in entries for key in entry.objects if key in self._served)
        suspects = self._suspects(contributors)
        for key, value in self._served.items():
            accepted = self._accepted.get(key)
            if accepted is not value and key not in suspects and accepted != value and key not in contributors:
                if key in self._accepted:
                    self._earlier[key] = self._accepted[key]
                self._accepted[key] = value
        if not suspects:
            for key in self._tried:
                if key in self._served:
                    self._accepted[key] = self._served[key]
            return self._next()
        ordered = tuple(sorted(suspects))
        if len(ordered) == 1:
            (key,) = ordered
            message = next(entry.message for entry in entries if key in entry.objects)
            self._refused[key] = (self._served[key], message)
            self._next()
            return True
        middle = len(ordered) // 2
        self._waiting.append(ordered[middle:])
        self._tried = ordered[:middle]
        return True

    def _suspects(self, contributors: frozenset[ObjectKey]) -> frozenset[ObjectKey]:
        """Contributors that engines have not accepted; where all were, they were taken for accepted too early."""
        if not contributors:
            return frozenset()
        changed = frozenset(key for key in contributors if self._accepted.get(key) != self._served[key])
        changed = changed.intersection(self._tried) or changed
        if changed:
            return changed
        suspects = contributors - self._refused.keys()
        for key in suspects:
            if key in self._earlier and self._earlier[key] != self._served[key]:
                self._accepted[key] = self._earlier[key]
            else:
                self._accepted.pop(key, None)
        return suspects

    def _next(self) -> bool:
        self._tried = self._waiting.pop() if self._waiting else ()
        return bool(self._tried)
