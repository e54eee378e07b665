"""What engines refuse of one kind of objects: which object is the cause, and what is served in its place.

Each translation begins with a choice of versions (:mod:`podwire.gateway.acceptance`). When all engines have answered
for what followed from it, their answers are taken once; they may ask for another translation.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

from podwire.gateway.acceptance import Acceptance, ObjectKey, ResourceRefusal, ServedObjects
from podwire.gateway.causes import contributors, owns
from podwire.gateway.engines import EngineFeed
from podwire.gateway.envoy.resources import SECRET
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.snapshot import ResourceKey
from podwire.gateway.routes import GatewayEntry
from podwire.gateway.served import ServedCertificates

T = TypeVar("T")


class RefusalSearch(Generic[T]):
    """Publishes the entries of one part, and learns from the answers."""

    def __init__(self, feed: EngineFeed, part: str) -> None:
        self._feed = feed
        self._part = part
        self._acceptance = Acceptance[T]()
        self._published = 0
        self._learned: tuple[int, dict[ResourceKey, str]] = (0, {})
        self.certificates = ServedCertificates()

    @property
    def searching(self) -> bool:
        """Whether a cause is looked for."""
        return self._acceptance.searching

    @property
    def refused(self) -> dict[ObjectKey, str]:
        """What engines said about each object that they refuse, Secrets among them."""
        return self._acceptance.refused | self.certificates.refused

    def choose(self, objects: Mapping[ObjectKey, T]) -> ServedObjects[T]:
        """What to serve of the newest versions of all objects."""
        return self._acceptance.choose(objects)

    def publish(self, entry: GatewayEntry, settings: EngineSettings) -> None:
        """Hands over the entry that follows from the last choice."""
        self._feed.publish(self._part, entry, settings)
        self._published += 1

    def answered(self) -> bool:
        """Takes the answers to what was published last, once all engines have answered; whether to translate again."""
        refused = self._feed.refused()
        entry = self._feed.entries.get(self._part)
        if refused is None or entry is None or (self._published, refused) == self._learned:
            return False
        self._learned = (self._published, refused)
        own = {key: message for key, message in refused.items() if owns(entry, *key)}
        names = {name: message for (kind, name), message in own.items() if kind == SECRET}
        is_new = self.certificates.learn(entry.certificates.values(), names)
        refusals = [
            ResourceRefusal(objects, message) for key, message in own.items() if (objects := contributors(entry, *key))
        ]
        was_searching = self._acceptance.searching
        return self._acceptance.learn(refusals) or is_new or was_searching
