"""Reading one's own writes from an informer.

An informer lags behind the API. A controller that counts pods in it right after creating some would create
them again. After each write the controller notes the resourceVersion that the write was answered with; it acts
again for the same owner when the informer has come that far. A pod that was deleted counts as terminating
from the moment the API accepted it. Cost: two dictionary entries per owner; no waiting.
Source: Kubernetes API concepts, "Resource versions" (comparable as integers since 1.35).
"""

from typing import Any

from podwire.kube.informer import Informer


class OwnWrites:
    """What this process wrote to one collection, by owner."""

    def __init__(self, informer: Informer[Any]) -> None:
        self._informer = informer
        self._versions: dict[str, int] = {}
        self._deleted: set[str] = set()
        informer.subscribe(self._change)

    def wrote(self, owner: str, answer: dict[str, Any]) -> None:
        """Notes the API's answer to a create, update or patch made for ``owner``."""
        version = number(answer.get("metadata", {}).get("resourceVersion", ""))
        self._versions[owner] = max(version, self._versions.get(owner, 0))

    def deleted(self, uid: str) -> None:
        """Notes that the object with ``uid`` was told to go."""
        self._deleted.add(uid)

    def not_deleted(self, uid: str) -> None:
        """Notes that the object could not be told to go after all."""
        self._deleted.discard(uid)

    def is_deleted(self, uid: str) -> bool:
        """Whether the object was told to go and is still in the informer."""
        return uid in self._deleted

    def seen(self, owner: str) -> bool:
        """Whether the informer shows everything that was written for ``owner``."""
        version = self._versions.get(owner)
        if version is None:
            return True
        if version > number(self._informer.resource_version):
            return False
        del self._versions[owner]
        return True

    def _change(self, _key: str, old: Any, new: Any) -> None:
        if new is None and self._deleted and old is not None:
            self._deleted.discard(old.metadata.uid)


def number(version: str) -> int:
    """A resourceVersion as an integer; 0 when it is none."""
    return int(version) if version.isdigit() else 0
