"""Finds out which owners of objects, stored by extension API servers, are gone.

An owner is looked up by its name, in the namespace of its dependent. It is gone when the extension answers NotFound or
returns an object with another uid. After any other answer, when the extension is unavailable, or when the extension
does not list the kind, the owner counts as existing, and is looked up again.

1. An owner is looked up at once when its first dependent is found, after a client has deleted something of an
   extension, and when an extension becomes available.
2. Otherwise all owners are looked up every 30 s: their deletion by others is not watched.

Source: Kubernetes' ``pkg/controller/garbagecollector`` (``attemptToDeleteItem``, ``isDangling``).
"""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from podwire.embedded.apiserver.aggregation.client import ExtensionClient
from podwire.embedded.apiserver.aggregation.extensions import Extension, Extensions
from podwire.errors import ApiError, Disconnected
from podwire.runtime.tasks import TaskSet

Object = dict[str, Any]

_PERIOD_S = 30.0
_ANSWER_S = 10.0


class ForeignOwner(msgspec.Struct, frozen=True):
    """A reference to an owner; ``namespace`` is that of its dependent, empty for a cluster-scoped dependent."""

    uid: str
    api_version: str
    kind: str
    name: str
    namespace: str


class ForeignOwners:
    """Looks owners up for the garbage collector."""

    def __init__(self, extensions: Extensions, client: ExtensionClient, tasks: TaskSet) -> None:
        self._extensions = extensions
        self._client = client
        self._tasks = tasks
        self._known: dict[str, ForeignOwner] = {}
        self._wake = asyncio.Event()
        self._running = False
        self.has_dependents: Callable[[str], bool] = lambda _: False
        """Whether objects name a uid as their owner."""
        self.on_gone: Callable[[str], None] = lambda _: None
        """Called with the uid of an owner that is gone."""
        client.on_deletion = self._wake.set
        extensions.on_change.append(self._wake.set)

    def serves(self, api_version: str) -> bool:
        """Whether an extension serves ``GROUP/VERSION``."""
        return self._extensions.serves(api_version)

    def follow(self, owner: ForeignOwner) -> None:
        """Looks an owner up from now on, as long as it has dependents."""
        if owner.uid in self._known:
            return
        self._known[owner.uid] = owner
        self._wake.set()
        if not self._running:
            self._running = True
            self._tasks.start("owners in extension API servers", self._check_periodically())

    async def _check_periodically(self) -> None:
        try:
            while self._known:
                try:
                    async with asyncio.timeout(_PERIOD_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
                for owner in tuple(self._known.values()):
                    if not self.has_dependents(owner.uid):
                        del self._known[owner.uid]
                    elif await self._is_gone(owner):
                        del self._known[owner.uid]
                        self.on_gone(owner.uid)
        finally:
            self._running = False

    async def _is_gone(self, owner: ForeignOwner) -> bool:
        group, _, version = owner.api_version.partition("/")
        extension = self._extensions.serving(group, version)
        path = self._path(extension, owner) if extension is not None else ""
        if extension is None or not path:
            return False
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await self._client.ask(extension, "GET", path, "application/json")
            document = msgspec.json.decode(answer.body)
        except (OSError, ValueError, TimeoutError, RecursionError, ApiError, Disconnected):
            return False
        if not isinstance(document, dict):
            return False
        if answer.status == 404:
            return (document.get("kind"), document.get("reason")) == ("Status", "NotFound")
        meta = document.get("metadata")
        uid = meta.get("uid") if isinstance(meta, dict) else None
        return answer.status == 200 and isinstance(uid, str) and bool(uid) and uid != owner.uid

    def _path(self, extension: Extension, owner: ForeignOwner) -> str:
        """The API path of an owner; empty while the extension or the kind is unknown."""
        if not self._extensions.is_available(extension):
            return ""
        for resource in self._extensions.documents(extension).resources:
            name = str(resource.get("name") or "/")
            if resource.get("kind") == owner.kind and "/" not in name and "get" in (resource.get("verbs") or ()):
                prefix = f"namespaces/{quote(owner.namespace)}/" if resource.get("namespaced") else ""
                if resource.get("namespaced") and not owner.namespace:
                    return ""
                return f"/{extension.path}/{prefix}{name}/{quote(owner.name)}"
        return ""
