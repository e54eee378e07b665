"""Writes the Services of Gateways and the status of all objects; only the leader of several gateways does.

Guarantees: 1. a Service is made for a Gateway that can be served and removed with it; 2. of a route, only the entries
of our controller are touched; 3. a status that is right is not written; 4. an object that the API refuses keeps no
other one from being written.
"""

from collections.abc import Iterator
from typing import Any

from podwire.errors import AlreadyExists, ApiError, Conflict, NotFound
from podwire.gateway.api.controller import GatewayApiController
from podwire.gateway.api.listenersets import waiting_set
from podwire.gateway.api.services import (
    PortsOfGateways,
    TrafficPolicy,
    allocate_ports,
    desired_service,
    differs,
    engine_ports,
    gateway_services,
    needed_ports,
)
from podwire.gateway.api.written import (
    ancestors_json,
    class_json,
    gateway_json,
    merged_ancestors,
    merged_parents,
    parents_json,
    set_json,
    timed_class,
    timed_gateway,
    timed_set,
)
from podwire.kube.client import MERGE_PATCH
from podwire.kube.controller import Environment
from podwire.kube.resources import (
    BACKENDTLSPOLICIES,
    GATEWAYCLASSES,
    GATEWAYS,
    LISTENERSETS,
    SERVICES,
    Resource,
)
from podwire.model.backendtls import BackendTlsStatus
from podwire.model.gatewayapi import HttpRouteStatus, ListenerSetStatus
from podwire.model.meta import ObjectMeta
from podwire.model.service import Service
from podwire.runtime.clock import rfc3339
from podwire.runtime.supervise import Supervisor

StaleStatus = tuple[Resource[Any], ObjectMeta, dict[str, Any]]
"""The kind and metadata of an object, and the status that it should have."""
_SERVICES, _STATUS = "services", "status"
_INTERVAL_S = 0.1


class GatewayApiWriter:
    """Writes what the newest translation says."""

    def __init__(
        self, environment: Environment, controller: GatewayApiController, traffic_policy: TrafficPolicy = "Local"
    ) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._log = environment.log
        self._controller = controller
        self._traffic_policy: TrafficPolicy = traffic_policy
        self._own_sets: dict[str, ListenerSetStatus] = {}
        """The status that was written to ListenerSets, by key; no other one is taken away."""
        self._services = environment.of(SERVICES)
        self._loop = environment.loop("gateway-api status", self._reconcile, interval_s=_INTERVAL_S)
        self._allocated: PortsOfGateways = {}
        """What was written last, which the informer may not have yet."""
        controller.on_translated = self._touch

    def start(self, supervisor: Supervisor) -> None:
        """Starts to write."""
        self._touch()
        self._loop.start(supervisor, workers=2)

    def _touch(self) -> None:
        self._loop.touch(_SERVICES)
        self._loop.touch(_STATUS)

    async def _reconcile(self, key: str) -> None:
        if not self._controller.translated:
            return
        if key == _SERVICES:
            await self._write_services()
        else:
            await self._write_status()

    async def _write_status(self) -> None:
        """Writes each status that is not right.

        Raises: ApiError for the last object that the API refused, after all others.
        """
        failure: ApiError | None = None
        for resource, meta, status in self._stale(rfc3339(self._clock.now())):
            try:
                await self._patch(resource, meta, status)
            except ApiError as problem:
                failure = self._reported(problem, resource, meta.namespace, meta.name)
        if failure is not None:
            raise failure

    def _reported(self, problem: ApiError, resource: Resource[Any], namespace: str, name: str) -> ApiError:
        if not isinstance(problem, Conflict | NotFound):
            self._log.warning(
                "not written", kind=resource.kind, object=f"{namespace}/{name}".strip("/"), problem=problem
            )
        return problem

    def _stale(self, now: str) -> Iterator[StaleStatus]:
        """What has to be written."""
        controller = self._controller
        translation = controller.translation
        for name, status in translation.classes.items():
            value = controller.classes.get(name)
            if value is not None:
                fresh = timed_class(status, value.status, now)
                if fresh != value.status:
                    yield GATEWAYCLASSES, value.metadata, class_json(fresh)
        for key, gateway_status in translation.gateways.items():
            gateway = controller.gateways.get(key)
            if gateway is not None:
                timed_status = timed_gateway(gateway_status, gateway.status, now)
                if timed_status != gateway.status:
                    yield GATEWAYS, gateway.metadata, gateway_json(timed_status)
        yield from self._stale_sets(now)
        yield from self._stale_parents(now)
        yield from self._stale_ancestors(now)

    def _stale_sets(self, now: str) -> Iterator[StaleStatus]:
        """The status of ListenerSets; one whose Gateway is ours no more waits for another controller."""
        controller = self._controller
        own = controller.translation.sets
        for key, status in own.items():
            value = controller.sets.get(key)
            if value is not None:
                fresh = timed_set(status, value.status, now)
                self._own_sets[key] = fresh
                if fresh != value.status:
                    yield LISTENERSETS, value.metadata, set_json(fresh)
        for key in self._own_sets.keys() - own.keys():
            value = controller.sets.get(key)
            if value is None or value.status != self._own_sets[key]:
                del self._own_sets[key]
                continue
            yield (
                LISTENERSETS,
                value.metadata,
                set_json(timed_set(waiting_set(value.metadata.generation), value.status, now)),
            )

    def _stale_parents(self, now: str) -> Iterator[StaleStatus]:
        """The status of routes."""
        controller = self._controller
        for informer in controller.routes:
            for key, route in list(informer.objects.items()):
                own = controller.translation.routes.get((informer.resource.kind, key), ())
                parents = merged_parents(own, route.status.parents, controller.controller, now)
                if HttpRouteStatus(parents=parents) != route.status:
                    yield informer.resource, route.metadata, parents_json(parents)

    def _stale_ancestors(self, now: str) -> Iterator[StaleStatus]:
        """The status of policies."""
        controller = self._controller
        for key, policy in list(controller.policies.objects.items()):
            own = controller.translation.policies.get(key, ())
            ancestors = merged_ancestors(own, policy.status.ancestors, controller.controller, now)
            if BackendTlsStatus(ancestors=ancestors) != policy.status:
                yield BACKENDTLSPOLICIES, policy.metadata, ancestors_json(ancestors)

    async def _patch(self, resource: Resource[Any], meta: ObjectMeta, status: dict[str, Any]) -> None:
        """Writes a status; a conflict says that the object changed since, and comes again."""
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": status}
        await self._client.patch(
            resource.raw, meta.name, patch, meta.namespace, subresource="status", patch_type=MERGE_PATCH
        )

    async def _write_services(self) -> None:
        """Makes, changes and removes Services.

        Raises: ApiError for the last one that the API refused, after all others.
        """
        controller = self._controller
        failure: ApiError | None = None
        services = gateway_services(self._services.objects.values(), controller.namespace)
        gateways = controller.translation.gateways
        for key, service in services.items():
            if key not in gateways:
                try:
                    await self._client.delete_unchanged(SERVICES, service.metadata)
                except ApiError as problem:
                    failure = self._reported(problem, SERVICES, service.metadata.namespace, service.metadata.name)
        own = engine_ports(services)
        self._allocated = {key: own.get(key, ports) for key, ports in self._allocated.items() if key in gateways}
        ports = self._allocated | own
        for key, served in controller.translation.ports.items():
            gateway = controller.gateways.get(key)
            if gateway is None or (key not in ports and not served):
                continue
            existing = services.get(key)
            needed = needed_ports(served, controller.named_ports(gateway), existing)
            reserved = {target for known in ports.values() for target in known.values()}
            numbers = {port for port, _ in needed}
            ports[key] = self._allocated[key] = allocate_ports(numbers, ports.get(key, {}), reserved)
            if len(ports[key]) < len(numbers):
                self._log.warning(
                    "cannot serve a gateway: all ports of the engines (10000 to 19999) are in use", gateway=key
                )
            if ports[key]:
                desired = desired_service(
                    gateway, controller.namespace, ports[key], needed, existing, self._traffic_policy
                )
                try:
                    await self._write_service(desired, existing)
                except ApiError as problem:
                    failure = self._reported(problem, SERVICES, controller.namespace, desired["metadata"]["name"])
        if failure is not None:
            raise failure

    async def _write_service(self, desired: dict[str, Any], existing: Service | None) -> None:
        namespace = self._controller.namespace
        if existing is None:
            try:
                await self._client.create(SERVICES.raw, desired, namespace)
            except AlreadyExists:
                return  # the informer has it soon, and then it is compared
        elif differs(existing, desired):
            desired["metadata"]["resourceVersion"] = existing.metadata.resource_version
            name = existing.metadata.name
            await self._client.patch(SERVICES.raw, name, desired, namespace, patch_type=MERGE_PATCH)
