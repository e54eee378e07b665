"""Keeps the objects of one kind, ServiceL2Status or ServiceBGPStatus, as one node announces Services.

Guarantees: 1. before the first value nothing is written, so a restart of the agent changes no object; 2. an object that
is wanted no longer, changed or deleted by somebody, or left by a predecessor, is put right within :data:`_QUIET_S`;
writes that fail are tried again after 0.5 s to 30 s, also where the API does not serve the kind; 3. objects of a Node
that is deleted go with it; those of a node that is dead go when this node takes over an address of the Service.

Cost: one watch for the own objects; two writes for each new object, one for each change.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from podwire.errors import AlreadyExists, ApiError, ApiUnreachable, NotFound, ProtocolError
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import Json, Resource
from podwire.loadbalancer.servicestatus import (
    NAMESPACE_LABEL,
    NODE_LABEL,
    SERVICE_LABEL,
    node_label,
    status_labels,
    status_name,
)
from podwire.loadbalancer.view import BalancerView
from podwire.model.metallb import METALLB_NAMESPACE, ServiceAnnouncement, ServiceStatusObject
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff

_QUIET_S = 0.1
_FAILURES = (ApiError, ApiUnreachable, ProtocolError)


class StatusObjects:
    """The objects of one kind that a node writes."""

    def __init__(self, view: BalancerView, node: str, resource: Resource[ServiceStatusObject]) -> None:
        self._client = view.client
        self._nodes = view.nodes
        self._node = node
        self._resource = resource
        self._desired: Mapping[str, ServiceAnnouncement] | None = None
        self._takeovers: dict[str, frozenset[str]] = {}
        """The Services that this node has taken over, with the nodes that are alive."""
        self._changed = asyncio.Event()
        self._log = Log("loadbalancer")
        self._informer: Informer[ServiceStatusObject] = Informer(
            self._client,
            resource,
            namespace=METALLB_NAMESPACE,
            label_selector=f"{NODE_LABEL}={node_label(node)}",
        )
        self._informer.subscribe(lambda *_: self._changed.set())

    def show(self, statuses: Mapping[str, ServiceAnnouncement]) -> None:
        """Sets what the objects are to say, by Service."""
        if statuses != self._desired:
            self._desired = statuses
            self._changed.set()

    def take_over(self, services: Iterable[str], alive: frozenset[str]) -> None:
        """Requests that objects of dead nodes are deleted: ``services`` are announced by this node now."""
        self._takeovers |= dict.fromkeys(services, alive)
        self._changed.set()

    def tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to run, by name."""
        plural = self._resource.plural
        return {
            f"load balancer {plural}": lambda: follow_when_served(self._client, self._informer),
            f"load balancer {plural} of this node": self.run,
        }

    async def run(self) -> None:
        """Keeps the objects current until cancelled."""
        await self._informer.synced.wait()
        await self._nodes.synced.wait()
        backoff = Backoff(0.5, 30.0)
        while True:
            self._changed.clear()
            if failure := await self._write():
                self._log.debug("cannot write where Services are announced", problem=failure)
                await self._client.clock.sleep(backoff.next_delay_s())
                continue
            backoff.reset()
            await self._changed.wait()
            await self._client.clock.sleep(_QUIET_S)

    async def _write(self) -> Exception | None:
        """Makes the objects as they are desired; the last failure, None for none."""
        if self._desired is None:
            return None
        known = {item.metadata.name: item for item in self._informer.objects.values()}
        desired = {status_name(status): status for status in self._desired.values()}
        writes: list[Callable[[], Awaitable[None]]]
        writes = [partial(self._delete, name) for name in known if name not in desired]
        writes += [
            partial(self._put, name, status, exists=name in known)
            for name, status in desired.items()
            if name not in known or known[name].status != status
        ]
        writes += [partial(self._delete_of_dead, service) for service in self._takeovers]
        failed: Exception | None = None
        for write in writes:
            try:
                await write()
            except _FAILURES as failure:
                failed = failure
        return failed

    async def _put(self, name: str, status: ServiceAnnouncement, *, exists: bool) -> None:
        if not exists:
            body: Json = {"apiVersion": self._resource.api_version, "kind": self._resource.kind}
            metadata = {"name": name, "labels": status_labels(status), "ownerReferences": self._owners()}
            try:
                await self._client.create(self._resource, body | {"metadata": metadata, "spec": {}}, METALLB_NAMESPACE)
            except AlreadyExists:
                pass
        patch = {"status": msgspec.to_builtins(status)}
        await self._client.patch(self._resource, name, patch, METALLB_NAMESPACE, subresource="status")

    async def _delete(self, name: str) -> None:
        try:
            await self._client.delete(self._resource, name, METALLB_NAMESPACE)
        except NotFound:
            pass

    async def _delete_of_dead(self, service: str) -> None:
        alive = self._takeovers[service]
        namespace, _, name = service.partition("/")
        selector = f"{SERVICE_LABEL}={name},{NAMESPACE_LABEL}={namespace}"
        page = await self._client.list(self._resource, METALLB_NAMESPACE, label_selector=selector)
        for item in page.items:
            if item.status.node not in (self._node, *alive):
                await self._delete(item.metadata.name)
        self._takeovers.pop(service, None)

    def _owners(self) -> list[dict[str, Any]]:
        node = self._nodes.objects.get(self._node)
        if node is None or not node.metadata.uid:
            return []
        return [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}]
