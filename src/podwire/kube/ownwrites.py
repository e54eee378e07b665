"""Tracks whether an informer already shows the writes of this process.

An informer lags behind the API. A controller that counts pods in it right after it created pods would create them
again. After each write the controller records the resourceVersion of the answer; it acts for the same owner again when
the informer has reached that version. A pod counts as terminating from the moment at which the API accepted its
deletion. Cost: two dictionary entries per owner; no waiting. Source: Kubernetes API concepts, "Resource versions"
(comparable as integers since 1.35).
"""

from typing import Any

from podwire.kube.informer import Informer


class OwnWrites:
    """The writes of this process to one collection, by owner."""

    def __init__(self, informer: Informer[Any]) -> None:
        self._informer = informer
        self._versions: dict[str, int] = {}
        self._deleted: set[str] = set()
        informer.subscribe(self._change)

    def wrote(self, owner: str, answer: dict[str, Any]) -> None:
        """Records the API's answer to a create, update or patch for ``owner``."""
        version = number(answer.get("metadata", {}).get("resourceVersion", ""))
        self._versions[owner] = max(version, self._versions.get(owner, 0))

    def deleted(self, uid: str) -> None:
        """Records that the API was asked to delete the object with ``uid``."""
        self._deleted.add(uid)

    def not_deleted(self, uid: str) -> None:
        """Records that the deletion failed."""
        self._deleted.discard(uid)

    def is_deleted(self, uid: str) -> bool:
        """Whether a deletion was recorded for the object and the informer still has the object."""
        return uid in self._deleted

    def caught_up(self, owner: str) -> bool:
        """Whether the informer has reached every recorded write for ``owner``."""
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
    """A resourceVersion as an integer; 0 when it is not a number."""
    return int(version) if version.isdigit() else 0
