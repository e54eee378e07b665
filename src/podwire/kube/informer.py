"""A local copy of a collection, kept current by list and watch.

Guarantees: 1. after ``synced`` is set, ``objects`` is a state that the API had; while the API is unreachable, the last
state is kept; 2. a broken watch resumes at the last received resourceVersion (bookmarks included); after 410 Gone the
informer lists again and notifies subscribers of the difference only; 3. retries have a backoff from 0.05 s to 2 s with
jitter, and wait at least as long as the API server asks for; 4. subscribers are called in order, once for each change,
from the event loop, after ``objects`` changed; when a subscriber fails on an object, this is logged, and the other
subscribers and objects are not affected; 5. a list that lacks at least nine of ten of many known objects is accepted
only when all lists of the next 30 s lack them too: an API server that was restored from a wrong backup does not empty
the kernel at once (docs/adr/0013); 6. an object that cannot be decoded is left out and reported once for each reason;
its last valid form stays until it is deleted.

Cost: one connection, one task; 20 us per event plus the subscribers. Source: Kubernetes API concepts,
"Efficient detection of changes".
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast, overload

from podwire.errors import ApiError, ApiUnreachable, Gone, ProtocolError
from podwire.kube.client import Client
from podwire.kube.decode import (
    Identity,
    Rejected,
    WatchEvent,
    decode_event,
    decode_failure,
    decode_object,
    identity,
    split_lines,
)
from podwire.kube.request import ApiRequest
from podwire.kube.resources import Resource
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.supervise import failure_of

T = TypeVar("T")
OnChange = Callable[[str, T | None, T | None], None]
"""Called with key, object before (None: new), object after (None: deleted)."""

_NOT_ABOUT_VERSIONS = (401, 403, 429, 503)
"""Answers after which a watch goes on where it was: credentials rotate, rights are not there yet, too many requests. A
list in place of a watch would make the last one worse."""
_WATCH_S = 300
_WATCH_GRACE_S = 30.0
_PAGE = 2000
_MANY = 10
"""With at least this many known objects, a list that lacks nearly all of them must be confirmed."""
_LOST_SHARE = 0.9
"""Less than 1: an API server with an empty store creates a few objects at once, such as the Service ``kubernetes``."""
_CONFIRM_S = 30.0
_CONFIRM_EVERY_S = 5.0


class Informer(Generic[T]):
    """One collection, filtered by namespace and selectors; ``run`` keeps it current."""

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
        """Reduces an object to the fields that are kept; set before ``run``, for large collections."""
        self.on_rejected: Callable[[Rejected], None] | None = None
        """Called with each object that cannot be decoded; ``kube.events`` records an Event on it."""
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
        self._rejected: dict[str, str] = {}
        """The reason why an object's present form is left out, by its key."""
        self._interrupted = False
        self._log = Log(f"informer.{resource.plural}")

    @property
    def versions(self) -> Mapping[str, str]:
        """The resourceVersion of each object, by its key."""
        return self._versions

    def subscribe(self, callback: OnChange[T], *, replay: bool = True) -> None:
        """Calls ``callback`` on each change from now on; with ``replay`` first for each object of the copy."""
        if replay:
            for key, value in self.objects.items():
                callback(key, None, value)
        self._subscribers.append(callback)

    def restore(self, objects: Mapping[str, T]) -> None:
        """Starts from the objects of an earlier run, before ``run``; the first list replaces them."""
        for key, value in objects.items():
            self.objects[key] = value
            self._notify(key, None, value)

    def get(self, key: str) -> T | None:
        """The object of ``namespace/name`` (or ``name``), or None."""
        return self.objects.get(key)

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        # Two backoffs: an API that answers Gone is reachable.
        unreachable, gone = Backoff(0.05, 2.0), Backoff(0.05, 5.0)
        while True:
            delay_s = 0.0
            try:
                if not self.resource_version:
                    await self._list()
                    unreachable.reset()
                if await self._watch():
                    gone.reset()
                else:
                    delay_s = gone.next_delay_s()
                unreachable.reset()
            except Gone:
                self.resource_version = ""
                delay_s = gone.next_delay_s()
            except (ApiUnreachable, ApiError, ProtocolError) as failure:
                if self.connected:
                    unreachable.reset()
                delay_s = unreachable.next_delay_s()
                if isinstance(failure, ApiError):
                    delay_s = max(delay_s, float(failure.details.get("retryAfterSeconds") or 0))
                    if failure.code not in _NOT_ABOUT_VERSIONS:
                        # The API refuses the version, for example because its storage was replaced: list again.
                        self.resource_version = ""
                self._report_interruption(failure, delay_s)
            finally:
                self.connected = False
            if delay_s:
                await self._client.clock.sleep(delay_s)

    async def _list(self) -> None:
        clock = self._client.clock
        items, versions, resource_version = await self._read_all()
        if self._nearly_all_gone(items):
            self._log.warning(
                "the API server lists nearly none of the known objects; they are kept until this is confirmed",
                known=len(self.objects),
                listed=len(items),
                confirm_s=_CONFIRM_S,
            )
            confirmed_at = clock.monotonic() + _CONFIRM_S
            while self._nearly_all_gone(items) and clock.monotonic() < confirmed_at:
                await clock.sleep(_CONFIRM_EVERY_S)
                items, versions, resource_version = await self._read_all()
        self.resource_version = resource_version
        self._replace(items, versions)
        self._mark_connected()
        self.synced.set()

    def _nearly_all_gone(self, items: Mapping[str, T]) -> bool:
        known = len(self.objects)
        return known >= _MANY and len(self.objects.keys() - items.keys()) >= _LOST_SHARE * known

    async def _read_all(self) -> tuple[dict[str, T], dict[str, str], str]:
        """All objects and their versions by key, and the version of the list."""
        items: dict[str, T] = {}
        versions: dict[str, str] = {}
        problems: dict[str, str] = {}
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
            for rejected in page.rejected:
                self._reject(rejected)
                key = rejected.identity.key
                problems[key] = rejected.problem
                if key in self.objects:
                    items[key], versions[key] = self.objects[key], self._versions.get(key, "")
            for item in page.items:
                key, version = _key_and_version(item)
                items[key], versions[key] = self._trimmed(item), version
            token = page.continue_
            if not token:
                self._rejected = problems
                return items, versions, page.resource_version

    def _replace(self, items: dict[str, T], versions: dict[str, str]) -> None:
        old_objects, old_versions = dict(self.objects), self._versions
        self.objects.clear()  # In place: readers keep a reference to this dictionary.
        self.objects.update(items)
        self._versions = versions
        for key, old in old_objects.items():
            if key not in items:
                self._notify(key, old, None)
        for key, new in items.items():
            if old_versions.get(key) != versions[key]:
                self._notify(key, old_objects.get(key), new)

    async def _watch(self) -> bool:
        """Watches until the server ends the watch; whether an event arrived."""
        timeout_s = _WATCH_S + random.randrange(_WATCH_S)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        query |= {key: value for key, value in self._selectors.items() if value}
        request = ApiRequest("GET", self.resource.path(self._namespace), query)
        received = False
        try:
            async with asyncio.timeout(timeout_s + _WATCH_GRACE_S), self._client.stream(request) as stream:
                self._mark_connected()
                incomplete = b""
                async for chunk in stream.chunks():
                    lines, incomplete = split_lines(incomplete, chunk)
                    for line in lines:
                        self._apply(decode_event(line))
                        received = True
        except TimeoutError:
            return True
        return received

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            raise decode_failure(_code_of(bytes(event.object)), bytes(event.object))
        if event.type == "BOOKMARK":
            self.resource_version = identity(event.object).metadata.resource_version or self.resource_version
            return
        if event.type == "DELETED":
            self._forget(identity(event.object))
            return
        try:
            new = decode_object(event.object, self.resource.type)
        except ProtocolError as failure:
            rejected = Rejected(identity(event.object), str(failure))
            self._reject(rejected)
            self.resource_version = rejected.identity.metadata.resource_version or self.resource_version
            return
        key, version = _key_and_version(new)
        self.resource_version = version or self.resource_version
        self._rejected.pop(key, None)
        old, new = self.objects.get(key), self._trimmed(new)
        self.objects[key], self._versions[key] = new, version
        self._notify(key, old, new)

    def _forget(self, deleted: Identity) -> None:
        """Removes a deleted object; its last form may be invalid."""
        self.resource_version = deleted.metadata.resource_version or self.resource_version
        self._versions.pop(deleted.key, None)
        self._rejected.pop(deleted.key, None)
        old = self.objects.pop(deleted.key, None)
        if old is not None:
            self._notify(deleted.key, old, None)

    def _reject(self, rejected: Rejected) -> None:
        """Reports an object that cannot be decoded, unless the same reason was reported before."""
        key = rejected.identity.key
        if key and self._rejected.get(key) == rejected.problem:
            return
        self._rejected[key] = rejected.problem
        self._log.warning("skipped an object that cannot be decoded", problem=rejected.problem)
        if self.on_rejected is not None and key:
            self.on_rejected(rejected)

    def _trimmed(self, item: T) -> T:
        return item if self.trim is None else self.trim(item)

    def _notify(self, key: str, old: T | None, new: T | None) -> None:
        for callback in self._subscribers:
            if failure := failure_of(callback, key, old, new):
                self._log.error("a subscriber failed on an object", object=key, failure=failure)

    def _mark_connected(self) -> None:
        self.connected = True
        if self._interrupted:
            self._interrupted = False
            self._log.info("watch resumed", resource_version=self.resource_version)

    def _report_interruption(self, failure: Exception, delay_s: float) -> None:
        """Logs an interruption; only the first one as a warning, until a watch works again."""
        log = self._log.debug if self._interrupted else self._log.warning
        self._interrupted = True
        log("watch interrupted", problem=failure, retry_s=f"{delay_s:.2f}")


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
