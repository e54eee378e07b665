"""Writes the Services and the status of Gateways, classes and routes; only the leader of several gateways does.

Guarantees: 1. a Service is made for a Gateway that can be served and removed with it; 2. of a route, only the entries
of our controller are touched; 3. a status that is right is not written.
"""

from collections.abc import Mapping
from typing import Any

from podwire.errors import AlreadyExists
from podwire.gateway.api.controller import GatewayApiController
from podwire.gateway.api.services import (
    PortsOfGateways,
    allocate_ports,
    desired_service,
    differs,
    engine_ports,
    gateway_services,
)
from podwire.gateway.api.written import (
    class_json,
    gateway_json,
    merged_parents,
    parents_json,
    timed_class,
    timed_gateway,
)
from podwire.kube.client import MERGE_PATCH
from podwire.kube.controller import Environment
from podwire.kube.resources import GATEWAYCLASSES, GATEWAYS, HTTPROUTES, SERVICES, Resource
from podwire.model.gatewayapi import Gateway, HttpRouteStatus
from podwire.model.meta import ObjectMeta
from podwire.model.service import Service
from podwire.runtime.clock import rfc3339
from podwire.runtime.supervise import Supervisor

_SERVICES, _STATUS = "services", "status"
_INTERVAL_S = 0.1


class GatewayApiWriter:
    """Writes what the newest translation says."""

    def __init__(self, environment: Environment, controller: GatewayApiController) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._log = environment.log
        self._controller = controller
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
        controller = self._controller
        now = rfc3339(self._clock.now())
        translation = controller.translation
        for name, status in translation.classes.items():
            value = controller.classes.get(name)
            if value is not None:
                fresh = timed_class(status, value.status, now)
                if fresh != value.status:
                    await self._patch(GATEWAYCLASSES, value.metadata, class_json(fresh))
        for key, gateway_status in translation.gateways.items():
            gateway = controller.gateways.get(key)
            if gateway is not None:
                timed_status = timed_gateway(gateway_status, gateway.status, now)
                if timed_status != gateway.status:
                    await self._patch(GATEWAYS, gateway.metadata, gateway_json(timed_status))
        for key, route in list(controller.routes.objects.items()):
            own = translation.routes.get(key, ())
            parents = merged_parents(own, route.status.parents, controller.controller, now)
            if HttpRouteStatus(parents=parents) != route.status:
                await self._patch(HTTPROUTES, route.metadata, parents_json(parents))

    async def _patch(self, resource: Resource[Any], meta: ObjectMeta, status: dict[str, Any]) -> None:
        """Writes a status; a conflict says that the object changed since, and comes again."""
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": status}
        await self._client.patch(
            resource.raw, meta.name, patch, meta.namespace, subresource="status", patch_type=MERGE_PATCH
        )

    async def _write_services(self) -> None:
        controller = self._controller
        services = gateway_services(self._services.objects.values(), controller.namespace)
        gateways = controller.translation.gateways
        for key, service in services.items():
            if key not in gateways:
                await self._client.delete_unchanged(SERVICES, service.metadata)
        own = engine_ports(services)
        self._allocated = {key: own.get(key, ports) for key, ports in self._allocated.items() if key in gateways}
        ports = self._allocated | own
        for key, served in controller.translation.ports.items():
            gateway = controller.gateways.get(key)
            if gateway is None or (key not in ports and not served):
                continue
            named = {listener.port for listener in gateway.spec.listeners}
            needed = {*served, *(port for port in ports.get(key, {}) if port in named)}
            reserved = {target for known in ports.values() for target in known.values()}
            ports[key] = self._allocated[key] = allocate_ports(needed, ports.get(key, {}), reserved)
            if len(ports[key]) < len(needed):
                self._log.warning("no port of the engines is free for a gateway", gateway=key)
            if ports[key]:
                await self._write_service(gateway, ports[key], services.get(key))

    async def _write_service(self, gateway: Gateway, ports: Mapping[int, int], existing: Service | None) -> None:
        namespace = self._controller.namespace
        desired = desired_service(gateway, namespace, ports, existing)
        if existing is None:
            try:
                await self._client.create(SERVICES.raw, desired, namespace)
            except AlreadyExists:
                return  # the informer has it soon, and then it is compared
        elif differs(existing, desired):
            desired["metadata"]["resourceVersion"] = existing.metadata.resource_version
            name = existing.metadata.name
            await self._client.patch(SERVICES.raw, name, desired, namespace, patch_type=MERGE_PATCH)
