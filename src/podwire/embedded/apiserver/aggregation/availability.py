"""Checks extension API servers, writes the condition ``Available`` of their APIServices, and fetches their documents.

One loop for each extension, with these guarantees:

1. A change of the APIService, its Service or an EndpointSlice of the Service is followed by a check at once.
2. Without a change there is a check every 30 s; after a failure first after 1 s, then after twice the time.
3. A status is written only when it changes.

Source: ``k8s.io/kube-aggregator/pkg/controllers/status/remote`` (reasons and messages).
"""

import asyncio
from typing import Any, NamedTuple

import msgspec

from podwire.embedded.apiserver.aggregation.client import ExtensionClient, FetchedDocument, describe_failure
from podwire.embedded.apiserver.aggregation.documents import openapi_of
from podwire.embedded.apiserver.aggregation.extensions import Extension, ExtensionDocuments, Extensions
from podwire.embedded.apiserver.aggregation.status import TABLE
from podwire.embedded.apiserver.deletion import set_condition
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject
from podwire.errors import ApiError, Disconnected
from podwire.runtime.clock import Clock, rfc3339
from podwire.runtime.tasks import TaskSet

Object = dict[str, Any]

_SERVICES = "/services"
_SLICES = "discovery.k8s.io/endpointslices"
_SERVICE_LABEL = "kubernetes.io/service-name"
_PERIOD_S = 30.0
_RETRY_S = 1.0
_CHECK_S = 6.0
_JSON = "application/json"


class Availability(NamedTuple):
    """The condition ``Available``: status, reason and message."""

    status: str
    reason: str
    message: str


PASSED = Availability("True", "Passed", "all checks passed")


class _Watched(NamedTuple):
    """A running loop: what it checks, its task, and the event that starts the next check."""

    extension: Extension
    task: asyncio.Task[Any]
    wake: asyncio.Event


class AvailabilityChecks:
    """The loops of all extensions."""

    def __init__(
        self, store: Store, extensions: Extensions, client: ExtensionClient, tasks: TaskSet, clock: Clock
    ) -> None:
        self._store = store
        self._extensions = extensions
        self._client = client
        self._tasks = tasks
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    def start(self) -> None:
        """Starts the loops, and follows changes from then on."""
        self._extensions.on_change.append(self._follow)
        for table in (_SERVICES, _SLICES):
            self._store.table(table).listeners[self._committed] = None
        self._follow()

    def _follow(self) -> None:
        extensions = {extension.name: extension for extension in self._extensions.all()}
        for name, watched in tuple(self._watched.items()):
            if extensions.get(name) != watched.extension:
                watched.task.cancel()
                del self._watched[name]
        for name, extension in extensions.items():
            if name not in self._watched:
                wake = asyncio.Event()
                task = self._tasks.start(f"checks of {name}", self._check_periodically(extension, wake))
                self._watched[name] = _Watched(extension, task, wake)

    def _committed(self, changes: list[ObjectChange]) -> None:
        if not self._watched:
            return
        touched = {(change.entry.namespace, _service_of(change.entry)) for change in changes}
        for watched in self._watched.values():
            service = watched.extension.service
            if (service.namespace, service.name) in touched:
                watched.wake.set()

    async def _check_periodically(self, extension: Extension, wake: asyncio.Event) -> None:
        failures, anew = 0, True
        while True:
            wake.clear()
            availability = await self._check(extension, anew=anew)
            self._report(extension, availability)
            failures = 0 if availability.status == "True" else failures + 1
            delay_s = min(_RETRY_S * 2 ** min(failures - 1, 10), _PERIOD_S) if failures else _PERIOD_S
            try:
                async with asyncio.timeout(delay_s):
                    await wake.wait()
                failures, anew = 0, True
            except TimeoutError:
                anew = bool(failures)

    async def _check(self, extension: Extension, *, anew: bool) -> Availability:
        """The condition. Reads the extension's documents when ``anew`` is true or its resources have changed."""
        missing = self._missing(extension)
        if missing is not None:
            return missing
        url = f"https://{extension.service.host}:{extension.service.port}/{extension.path}"
        try:
            async with asyncio.timeout(_CHECK_S):
                reply = await self._client.ask(extension, "GET", f"/{extension.path}", _JSON)
        except TimeoutError:
            return Availability("False", "FailedDiscoveryCheck", f"timed out waiting for {url}")
        except (OSError, ValueError, ApiError, Disconnected) as failure:
            problem = f'failing or missing response from {url}: Get "{url}": {describe_failure(failure)}'
            return Availability("False", "FailedDiscoveryCheck", problem)
        if not 200 <= reply.status < 300:
            problem = f"failing or missing response from {url}: bad status from {url}: {reply.status}"
            return Availability("False", "FailedDiscoveryCheck", problem)
        resources, known = _resources(reply), self._extensions.documents(extension)
        if anew or resources != known.resources:
            v3 = await self._document(extension, f"/openapi/v3/{extension.path}")
            v2 = await self._document(extension, "/openapi/v2")
            self._extensions.learn(extension, ExtensionDocuments(resources, *openapi_of(extension.path, v3, v2)))
        return PASSED

    def _missing(self, extension: Extension) -> Availability | None:
        """The condition when the Service of an extension is missing, or lacks the port or an endpoint; else None."""
        service = extension.service
        noun = f'service/{service.name} in "{service.namespace}"'
        entry = self._store.get(_SERVICES, service.namespace, service.name)
        if entry is None:
            return Availability("False", "ServiceNotFound", f"{noun} is not present")
        spec = entry.object().get("spec") or {}
        if spec.get("type") != "ClusterIP":
            return None
        names = [port.get("name") or "" for port in spec.get("ports") or () if port["port"] == service.port]
        if not names:
            return Availability("False", "ServicePortError", f"{noun} is not listening on port {service.port}")
        slices = [
            found_entry.object()
            for found_entry in self._store.entries(_SLICES, service.namespace)
            if found_entry.labels.get(_SERVICE_LABEL) == service.name
        ]
        if not slices:
            return Availability("False", "EndpointsNotFound", f"cannot find endpointslices for {noun}")
        if not any(_has_endpoint(endpoint_slice, names[0]) for endpoint_slice in slices):
            problem = f'endpointslices for {noun} have no addresses with port name "{names[0]}"'
            return Availability("False", "MissingEndpoints", problem)
        return None

    async def _document(self, extension: Extension, target: str) -> Object:
        """A document; empty when there is none."""
        try:
            async with asyncio.timeout(_CHECK_S):
                reply = await self._client.ask(extension, "GET", target, _JSON)
        except (OSError, ValueError, ApiError, Disconnected):
            return {}
        return _object(reply.body) if reply.status == 200 else {}

    def _report(self, extension: Extension, availability: Availability) -> None:
        entry = self._store.get(TABLE, "", extension.name)
        if entry is None:
            return
        obj = entry.object()
        before = (obj.get("status") or {}).get("conditions") or []
        status = obj.setdefault("status", {})
        set_condition(
            status,
            "Available",
            availability.status,
            (availability.reason, availability.message),
            rfc3339(self._clock.now()),
        )
        if status["conditions"] != before:
            self._store.put(TABLE, obj)


def _service_of(entry: StoredObject) -> str:
    return entry.name if entry.table == _SERVICES else entry.labels.get(_SERVICE_LABEL, "")


def _has_endpoint(endpoint_slice: Object, port: str) -> bool:
    """Whether a slice has a ready endpoint of a port."""
    if not any((item.get("name") or "") == port and item.get("port") for item in endpoint_slice.get("ports") or ()):
        return False
    return any(
        (item.get("conditions") or {}).get("ready") is not False for item in endpoint_slice.get("endpoints") or ()
    )


def _object(body: bytes) -> Object:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _resources(listed: FetchedDocument) -> tuple[Object, ...]:
    listed_resources = _object(listed.body).get("resources")
    return (
        tuple(item for item in listed_resources if isinstance(item, dict)) if isinstance(listed_resources, list) else ()
    )
