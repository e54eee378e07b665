"""Events on objects, as ``kubectl describe`` and ``kubectl get events`` show them.

``event`` only puts a value into a bounded queue, so a controller does not wait until an Event is stored; ``run`` writes
the Events one after the other. Guarantees: 1. an event equal to one of the last ten minutes increases the count of that
Event; 2. an object gets at most 25 events at once and then one every five seconds, further events are dropped; 3. when
the queue is full or the API is unreachable, events are dropped; ``event`` never blocks or raises.
Source: ``k8s.io/client-go/tools/record/events_cache.go``, whose refill of one event in five minutes would hide too many
events of a small cluster.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from podwire.errors import ApiError, ApiUnreachable, ProtocolError
from podwire.kube.client import Client
from podwire.kube.decode import Rejected
from podwire.kube.informer import Informer
from podwire.kube.resources import EVENTS, Json, Resource
from podwire.model.meta import ObjectMeta, ObjectReference
from podwire.observe.log import Log
from podwire.runtime.clock import Clock, rfc3339

Severity = Literal["Normal", "Warning"]

_BURST = 25.0
_REFILL_PER_S = 0.2
_SAME_S = 600.0
_REMEMBERED = 4096
_QUEUE = 2000


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An event on one object."""

    subject: ObjectReference
    severity: Severity
    reason: str
    message: str


@dataclass(slots=True)
class _Written:
    name: str
    count: int
    first: str
    at: float


def reference(api_version: str, kind: str, meta: ObjectMeta) -> ObjectReference:
    """A reference to an object with this metadata."""
    return ObjectReference(
        api_version=api_version,
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


class RateLimit:
    """A token bucket for each object; pure."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, subject: str, now_s: float) -> bool:
        """Whether one more event of ``subject`` may be written at ``now_s``."""
        tokens, at = self._buckets.pop(subject, (_BURST, now_s))
        tokens = min(_BURST, tokens + (now_s - at) * _REFILL_PER_S)
        allowed = tokens >= 1.0
        self._buckets[subject] = (tokens - 1.0 if allowed else tokens, now_s)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return allowed


class EventRecorder:
    """Writes Events for one component; ``host`` is the node it runs on, if any."""

    def __init__(self, client: Client, component: str, *, host: str = "") -> None:
        self._client = client
        self._clock: Clock = client.clock
        self._component = component
        self._host = host
        self._queue: asyncio.Queue[Occurrence] = asyncio.Queue(_QUEUE)
        self._written: OrderedDict[Occurrence, _Written] = OrderedDict()
        self._rate_limit = RateLimit()
        self._serial = 0
        self._log = Log("events")

    def event(self, subject: ObjectReference, severity: Severity, reason: str, message: str) -> None:
        """Queues an event; returns at once."""
        if not self._rate_limit.allows(subject.uid or f"{subject.namespace}/{subject.name}", self._clock.monotonic()):
            return
        try:
            self._queue.put_nowait(Occurrence(subject, severity, reason, message[:1024]))
        except asyncio.QueueFull:
            self._log.debug("event dropped", reason=reason, text=message)

    def follow_rejected(self, *informers: Informer[Any]) -> None:
        """Records an Event on each object that one of the informers cannot decode and leaves out."""
        for informer in informers:
            informer.on_rejected = partial(self._rejected, informer.resource)

    def _rejected(self, resource: Resource[Any], rejected: Rejected) -> None:
        meta = rejected.identity.metadata
        subject = ObjectReference(
            api_version=resource.api_version,
            kind=resource.kind,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
        text = f"{self._component} leaves out this form of the object, which cannot be decoded: {rejected.problem}"
        self.event(subject, "Warning", "InvalidObject", text)

    async def run(self) -> None:
        """Writes the queued events until cancelled."""
        while True:
            occurrence = await self._queue.get()
            try:
                await self._write(occurrence)
            except (ApiError, ApiUnreachable, ProtocolError) as failure:
                self._log.debug("event dropped", reason=occurrence.reason, problem=failure)

    async def _write(self, occurrence: Occurrence) -> None:
        subject = unversioned(occurrence.subject)
        same = Occurrence(subject, occurrence.severity, occurrence.reason, occurrence.message)
        namespace = subject.namespace or "default"
        now, stamp = self._clock.monotonic(), rfc3339(self._clock.now())
        earlier = self._written.pop(same, None)
        if earlier is not None and now - earlier.at < _SAME_S:
            patch = {"count": earlier.count + 1, "lastTimestamp": stamp}
            await self._client.patch(EVENTS, earlier.name, patch, namespace)
            self._written[same] = _Written(earlier.name, earlier.count + 1, earlier.first, now)
            return
        body = self._new(occurrence, namespace, stamp)
        await self._client.create(EVENTS, body, namespace)
        self._written[same] = _Written(body["metadata"]["name"], 1, stamp, now)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    def _new(self, occurrence: Occurrence, namespace: str, stamp: str) -> Json:
        subject = occurrence.subject
        self._serial += 1
        suffix = f"{int(self._clock.now().timestamp() * 1e6):x}{self._serial % 4096:03x}"
        involved = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "namespace": subject.namespace,
            "name": subject.name,
            "uid": subject.uid,
            "resourceVersion": subject.resource_version,
            "fieldPath": subject.field_path,
        }
        source = {"component": self._component} | ({"host": self._host} if self._host else {})
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{subject.name[:230]}.{suffix}", "namespace": namespace},
            "involvedObject": {key: value for key, value in involved.items() if value},
            "type": occurrence.severity,
            "reason": occurrence.reason,
            "message": occurrence.message,
            "source": source,
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }


def unversioned(subject: ObjectReference) -> ObjectReference:
    """The reference without its resourceVersion, which differs between equal events."""
    return ObjectReference(
        api_version=subject.api_version,
        kind=subject.kind,
        namespace=subject.namespace,
        name=subject.name,
        uid=subject.uid,
        field_path=subject.field_path,
    )
