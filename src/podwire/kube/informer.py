"""A local copy of a collection, kept current by list and watch.

Guarantees: 1. after ``synced`` is set, ``objects`` is a state that the API had, and stays so: while the API is
away the last state is kept; 2. a broken watch goes on from the last resourceVersion seen (bookmarks included),
410 Gone lists again and reports the difference only; 3. between two tries lies a backoff from 0.05 s to 2 s
with jitter; 4. subscribers are called in order, once for each change, from the loop, after ``objects`` changed; a
subscriber that fails on an object is logged, and the other subscribers and objects go on; 5. a list that lacks at least
nine of ten of many known objects is believed only when all lists of the next 30 s say the same: an API server that was
restored from a wrong backup does not empty the kernel at once (docs/adr/0013).

Cost: one connection, one task; 20 us per event plus the subscribers. Source: Kubernetes API concepts,
"Efficient detection of changes".
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast, overload

from podwire.errors import ApiError, ApiUnreachable, Gone, ProtocolError
from podwire.kube.client import ApiRequest, Client, failure_of
from podwire.kube.decode import Identity, WatchEvent, decode_event, decode_object, identity, split_lines
from podwire.kube.resources import Resource
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.supervise import contained

T = TypeVar("T")
OnChange = Callable[[str, T | None, T | None], None]
"""Called with key, object before (None: new), object after (None: deleted)."""

_WATCH_S = 300
_WATCH_GRACE_S = 30.0
_PAGE = 2000
_MANY = 10
"""From so many known objects on, a list that lacks nearly all of them must be confirmed."""
_LOST_SHARE = 0.9
"""Not 1: an API server with an empty store makes a few objects at once, such as the Service ``kubernetes``."""
_CONFIRM_S = 30.0
_CONFIRM_EVERY_S = 5.0


class Informer(Generic[T]):
    """One collection, filtered by namespace and selectors; ``run`` keeps it, the rest reads it."""

    @overload
    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> None: ...

    @overload
    def __init__(
        self,
        client: Client,
        resource: Resource[Any],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        decode_as: type[T],
    ) -> None: ...

    def __init__(
        self,
        client: Client,
        resource: Resource[Any],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        decode_as: type[Any] | None = None,
    ) -> None:
        self.trim: Callable[[T], T] | None = None
        """Makes of an object what is kept of it; set before ``run`` where there are many and little of each is read."""
        self.resource: Resource[T] = resource if decode_as is None else _retyped(resource, decode_as)
        self.objects: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.connected = False
        self.resource_version = ""
        self._client = client
        self._namespace = namespace
        self._selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._subscribers: list[OnChange[T]] = []
        self._versions: dict[str, str] = {}
        self._away = False
        self._log = Log(f"informer.{resource.plural}")

    @property
    def versions(self) -> Mapping[str, str]:
        """The resourceVersion of each object, by its key."""
        return self._versions

    def subscribe(self, callback: OnChange[T], *, replay: bool = True) -> None:
        """Calls ``callback`` on each change from now on; with ``replay`` first for what is there already."""
        if replay:
            for key, value in self.objects.items():
                callback(key, None, value)
        self._subscribers.append(callback)

    def get(self, key: str) -> T | None:
        """The object of ``namespace/name`` (or ``name``), or None."""
        return self.objects.get(key)

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        # Two backoffs: an API that comes back and says Gone is not an API that is away.
        away, gone = Backoff(0.05, 2.0), Backoff(0.05, 5.0)
        while True:
            delay_s = 0.0
            try:
                if not self.resource_version:
                    await self._list()
                    away.reset()
                if await self._watch():
                    gone.reset()
                else:
                    delay_s = gone.next_delay_s()
                away.reset()
            except Gone:
                self.resource_version = ""
                delay_s = gone.next_delay_s()
            except (ApiUnreachable, ApiError, ProtocolError) as failure:
                if self.connected:
                    away.reset()
                if isinstance(failure, ApiError):
                    # An API that refuses the version (its state was replaced) is asked for all of it.
                    self.resource_version = ""
                delay_s = away.next_delay_s()
                self._report(failure, delay_s)
            finally:
                self.connected = False
            if delay_s:
                await self._client.clock.sleep(delay_s)

    async def _list(self) -> None:
        clock = self._client.clock
        items, versions, resource_version = await self._read()
        if self._nearly_all_gone(items):
            self._log.warning(
                "the API server lists nearly none of the known objects; they are kept until this is confirmed",
                known=len(self.objects),
                listed=len(items),
                confirm_s=_CONFIRM_S,
            )
            believed = clock.monotonic() + _CONFIRM_S
            while self._nearly_all_gone(items) and clock.monotonic() < believed:
                await clock.sleep(_CONFIRM_EVERY_S)
                items, versions, resource_version = await self._read()
        self.resource_version = resource_version
        self._replace(items, versions)
        self._here()
        self.synced.set()

    def _nearly_all_gone(self, items: Mapping[str, T]) -> bool:
        known = len(self.objects)
        return known >= _MANY and len(self.objects.keys() - items.keys()) >= _LOST_SHARE * known

    async def _read(self) -> tuple[dict[str, T], dict[str, str], str]:
        """All objects and their versions by key, and the version of the list."""
        items: dict[str, T] = {}
        versions: dict[str, str] = {}
        token = ""
        while True:
            page = await self._client.list(
                self.resource,
                self._namespace,
                label_selector=self._selectors["labelSelector"],
                field_selector=self._selectors["fieldSelector"],
                limit=_PAGE,
                continue_=token,
            )
            for problem in page.rejected:
                self._log.warning("skipped an object that cannot be decoded", problem=problem)
            for item in page.items:
                key, version = _key_and_version(item)
                items[key], versions[key] = self._kept(item), version
            token = page.continue_
            if not token:
                return items, versions, page.resource_version

    def _replace(self, items: dict[str, T], versions: dict[str, str]) -> None:
        before, had = dict(self.objects), self._versions
        self.objects.clear()  # in place: readers hold on to this dictionary
        self.objects.update(items)
        self._versions = versions
        for key, old in before.items():
            if key not in items:
                self._tell(key, old, None)
        for key, new in items.items():
            if had.get(key) != versions[key]:
                self._tell(key, before.get(key), new)

    async def _watch(self) -> bool:
        """Watches until the server ends it; whether anything came."""
        timeout_s = _WATCH_S + random.randrange(_WATCH_S)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        query |= {key: value for key, value in self._selectors.items() if value}
        request = ApiRequest("GET", self.resource.path(self._namespace), query)
        came = False
        try:
            async with asyncio.timeout(timeout_s + _WATCH_GRACE_S), self._client.stream(request) as stream:
                self._here()
                rest = b""
                async for piece in stream.chunks():
                    lines, rest = split_lines(rest, piece)
                    for line in lines:
                        self._take(decode_event(line))
                        came = True
        except TimeoutError:
            return True
        return came

    def _take(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise failure_of(_code_of(bytes(event.object)), bytes(event.object))
        if event.type == "BOOKMARK":
            self.resource_version = identity(event.object).metadata.resource_version or self.resource_version
            return
        try:
            new = decode_object(event.object, self.resource.type)
        except ProtocolError as failure:
            # The last good form of the object stays in force.
            self._log.warning("skipped an object that cannot be decoded", problem=str(failure))
            self.resource_version = identity(event.object).metadata.resource_version or self.resource_version
            return
        key, version = _key_and_version(new)
        self.resource_version = version or self.resource_version
        if event.type == "DELETED":
            self._versions.pop(key, None)
            old = self.objects.pop(key, None)
            if old is not None:
                self._tell(key, old, None)
            return
        old, new = self.objects.get(key), self._kept(new)
        self.objects[key], self._versions[key] = new, version
        self._tell(key, old, new)

    def _kept(self, item: T) -> T:
        return item if self.trim is None else self.trim(item)

    def _tell(self, key: str, old: T | None, new: T | None) -> None:
        for callback in self._subscribers:
            if failure := contained(callback, key, old, new):
                self._log.error("a part of this process failed on an object", object=key, failure=failure)

    def _here(self) -> None:
        self.connected = True
        if self._away:
            self._away = False
            self._log.info("watch resumed", resource_version=self.resource_version)

    def _report(self, failure: Exception, delay_s: float) -> None:
        """Says that the API is away once, not at every try."""
        say = self._log.debug if self._away else self._log.warning
        self._away = True
        say("watch interrupted", problem=failure, retry_s=f"{delay_s:.2f}")


def _retyped(resource: Resource[Any], kind: type[T]) -> Resource[T]:
    return Resource(resource.group, resource.version, resource.plural, resource.kind, resource.namespaced, kind)


def _key_and_version(item: Any) -> tuple[str, str]:
    if isinstance(item, dict):
        meta = item.get("metadata", {})
        name, namespace = meta.get("name", ""), meta.get("namespace", "")
        version = meta.get("resourceVersion", "")
    else:
        meta = cast(Identity, item).metadata
        name, namespace, version = meta.name, meta.namespace, meta.resource_version
    return (f"{namespace}/{name}" if namespace else name), version


def _code_of(status: bytes) -> int:
    return int(decode_object(status, dict).get("code") or 500)
