"""The controller of addresses: from IPAddressPools to the status of Services of type LoadBalancer.

Guarantees: 1. an address is in the record of its holder (``loadbalancer.blocks``) before a Service shows it, and a
Service stops showing it before the record is free: nothing is handed out twice, also with several controllers at once
and with one that has lost its lease; 2. a change is followed at once, later changes within :data:`_QUIET_S`; 3. a
Service keeps its addresses as long as they are valid, over restarts of the controller too; 4. a Service without an
address gets an Event with the reason, and waits: it is tried again when an address is freed, a pool changes, or it
changes itself; 5. a pool that is wrong gets an Event, and its last good form stays.

The Events have MetalLB's reasons. A Service with another ``loadBalancerClass`` is not touched.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from podwire.cluster.names import LOAD_BALANCER_BLOCK
from podwire.controllers.loadbalancer.plan import (
    AddressDecision,
    Patch,
    decide,
    metadata_patch,
    rebuild,
    shown_addresses,
    status_patch,
    touch_patch,
    wants,
)
from podwire.controllers.loadbalancer.poolstatus import PoolStatuses
from podwire.controllers.loadbalancer.records import Records
from podwire.errors import ConfigError, Conflict, NotFound
from podwire.kube.controller import API_FAILURES, Environment
from podwire.kube.events import reference
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import CONFIGMAPS, IPADDRESSPOOLS, NAMESPACES, SERVICES
from podwire.loadbalancer.allocation import Allocator
from podwire.loadbalancer.blocks import Holder
from podwire.loadbalancer.pools import BalancerPool, read_pools
from podwire.loadbalancer.request import FROM_POOL
from podwire.model.configmap import ConfigMap
from podwire.model.metallb import METALLB_NAMESPACE, IpAddressPool
from podwire.model.service import Service
from podwire.runtime.supervise import Supervisor
from podwire.runtime.workqueue import in_parallel

COMPONENT = "podwire-loadbalancer"
_QUIET_S = 0.02
_RETRY_S = 1.0
_BATCH = 256
_AT_ONCE = 16


class LoadBalancerController:
    """The addresses of one cluster."""

    def __init__(self, environment: Environment, namespace: str, load_balancer_class: str = "") -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._log = environment.log
        self._class = load_balancer_class
        self._services = environment.of(SERVICES)
        self._own = OwnWrites(self._services)
        self._namespaces = environment.of(NAMESPACES)
        self._events = environment.recorder(COMPONENT)
        self._pools: Informer[IpAddressPool] = Informer(self._client, IPADDRESSPOOLS, namespace=METALLB_NAMESPACE)
        blocks: Informer[ConfigMap] = Informer(
            self._client, CONFIGMAPS, namespace=namespace, label_selector=LOAD_BALANCER_BLOCK, decode_as=ConfigMap
        )
        self._records = Records(self._client, blocks, namespace, self._records_changed)
        self._allocator = Allocator()
        self._statuses = PoolStatuses(self._client, self._pools)
        self._last_good: dict[str, BalancerPool] = {}
        self._reported: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._dirty: dict[str, None] = {}
        """The Services to decide about, in order."""
        self._waiting: dict[str, None] = {}
        """The Services that have no address."""
        self._stale = True
        """Whether pools or records differ from what the allocator has."""
        self._events.follow_rejected(self._pools)
        self._services.subscribe(self._service_changed)
        for informer in (self._pools, self._namespaces):
            informer.subscribe(lambda *_: self._records_changed())

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        supervisor.start("address pools", lambda: follow_when_served(self._client, self._pools))
        supervisor.start("address records", self._records.informer.run)
        supervisor.start("load balancer addresses", self._run)
        supervisor.start("pool statuses", lambda: self._statuses.run(self._allocator))

    def _service_changed(self, key: str, _old: Service | None, new: Service | None) -> None:
        if new is None or wants(new, self._class) or FROM_POOL in new.metadata.annotations or key in self._waiting:
            self._dirty[key] = None
            self._changed.set()

    def _records_changed(self) -> None:
        self._stale = True
        self._changed.set()

    async def _run(self) -> None:
        await self._pools.synced.wait()
        await self._records.informer.synced.wait()
        self._dirty = dict.fromkeys(sorted(self._services.objects, key=self._order))
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._round()
            except API_FAILURES as failure:
                self._log.debug("cannot write the addresses of Services; trying again", problem=failure)
                self._records_changed()
                await self._clock.sleep(_RETRY_S)
            await self._clock.sleep(_QUIET_S)

    def _order(self, key: str) -> tuple[bool, str, str]:
        """Services that show an address come first: nobody else gets it. Then the oldest."""
        service = self._services.objects[key]
        return not shown_addresses(service), service.metadata.creation_timestamp or "", key

    async def _round(self) -> None:
        if self._stale:
            self._read()
        while self._dirty and not self._stale:
            keys = list(self._dirty)[:_BATCH]
            for key in keys:
                del self._dirty[key]
            try:
                await self._batch(keys)
            except API_FAILURES:
                self._dirty = dict.fromkeys(keys) | self._dirty
                raise

    def _read(self) -> None:
        """Takes over pools and records; every Service with or without an address is looked at again."""
        self._stale = False
        pools = read_pools(self._pools.objects.values(), self._last_good)
        self._last_good = dict(pools.by_name)
        self._report_problems(pools.problems)
        labels = {name: item.metadata.labels for name, item in self._namespaces.objects.items()}
        self._allocator.configure(pools, labels)
        rebuild(self._allocator, self._records.holders(), self._services.objects)
        shown = (key for key, service in self._services.objects.items() if wants(service, self._class))
        held = {key for keys in self._allocator.in_use().values() for key in keys}
        again = sorted({*shown, *held} & self._services.objects.keys(), key=self._order)
        gone = sorted(held - self._services.objects.keys())
        self._dirty = dict.fromkeys([*again, *gone, *self._dirty])

    def _report_problems(self, problems: Mapping[str, ConfigError]) -> None:
        texts = {name: str(problem) for name, problem in problems.items()}
        for item in self._pools.objects.values():
            text = texts.get(item.metadata.name, "")
            if text and self._reported.get(item.metadata.name) != text:
                unchanged = "; the last good form stays in force" if item.metadata.name in self._last_good else ""
                subject = reference(IPADDRESSPOOLS.api_version, IPADDRESSPOOLS.kind, item.metadata)
                self._events.event(subject, "Warning", "ObjectRefused", text + unchanged)
        self._reported = texts

    async def _batch(self, keys: Iterable[str]) -> None:
        """Decides about Services and writes the decisions, in the order that the guarantees need."""
        decisions = []
        for key in keys:
            if not self._own.caught_up(key):
                self._later(key)
                continue
            service = self._services.get(key)
            if service is None and await self._exists(key):
                self._later(key)
                continue
            decisions.append(decide(key, service, self._allocator, self._class))
        await self._in_parallel(self._clear, [item for item in decisions if item.clear])
        changed = [item for item in decisions if set(item.before) != set(item.addresses) or item.addresses]
        holders = ((Holder(item.key, item.uid), item.addresses) for item in changed)
        if not await self._records.write(holders):
            self._dirty = dict.fromkeys([item.key for item in decisions]) | self._dirty
            self._records_changed()
            return
        await self._in_parallel(self._show, [item for item in decisions if item.addresses])
        for item in decisions:
            self._conclude(item)

    async def _in_parallel(
        self, write: Callable[[AddressDecision], Awaitable[None]], decisions: Sequence[AddressDecision]
    ) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def limited(decision: AddressDecision) -> None:
            async with gate:
                await write(decision)

        failures = await in_parallel([limited(decision) for decision in decisions])
        if failures:
            self._records_changed()
            raise failures[0]

    def _later(self, key: str) -> None:
        """Leaves a Service until the informer has its present form, which makes it dirty again."""
        self._dirty.pop(key, None)

    async def _exists(self, key: str) -> bool:
        """Whether the API has a Service that the informer does not have (yet)."""
        if not self._allocator.addresses_of(key):
            return False
        namespace, _, name = key.partition("/")
        try:
            await self._client.get(SERVICES, name, namespace)
        except NotFound:
            return False
        return True

    async def _clear(self, decision: AddressDecision) -> None:
        """Empties the status of a Service; its former addresses may be handed out then."""
        service = self._services.get(decision.key)
        if service is None:
            return
        version = service.metadata.resource_version
        patch = status_patch(service, (), version)
        if patch is not None:
            version = await self._write(service, patch, "status")
        pool = decision.allocation.pool if decision.allocation is not None else None
        patch = metadata_patch(service, pool, version)
        if patch is None and decision.before and version == service.metadata.resource_version:
            patch = touch_patch(decision.before, version)
        if patch is not None:
            await self._write(service, patch)

    async def _show(self, decision: AddressDecision) -> None:
        service, allocation = self._services.get(decision.key), decision.allocation
        if service is None or allocation is None or not self._own.caught_up(decision.key):
            return
        version = service.metadata.resource_version
        patch = metadata_patch(service, allocation.pool, version)
        if patch is not None:
            version = await self._write(service, patch)
        patch = status_patch(service, allocation.addresses, version)
        if patch is not None:
            await self._write(service, patch, "status")
            shown = ",".join(str(address) for address in allocation.addresses)
            self._event(service, "Normal", "IPAllocated", f'Assigned IP ["{shown}"]')

    def _conclude(self, decision: AddressDecision) -> None:
        service = self._services.get(decision.key)
        freed = set(decision.before) - set(decision.addresses)
        if decision.problem and service is not None:
            self._event(service, "Warning", "AllocationFailed", decision.problem)
        if decision.addresses or service is None or not wants(service, self._class):
            self._waiting.pop(decision.key, None)
        else:
            self._waiting[decision.key] = None
        if freed and self._waiting:
            self._dirty |= {key: None for key in self._waiting if key != decision.key}
            self._changed.set()

    async def _write(self, service: Service, patch: Patch, subresource: str = "") -> str:
        """The version of the Service after a patch. Raises: Conflict when the Service has changed since."""
        meta = service.metadata
        try:
            answer = await self._client.patch(SERVICES, meta.name, patch, meta.namespace, subresource=subresource)
        except NotFound as failure:
            raise Conflict(failure.code, failure.reason, failure.message) from failure
        self._own.wrote(f"{meta.namespace}/{meta.name}", answer)
        version: str = answer["metadata"]["resourceVersion"]
        return version

    def _event(self, service: Service, severity: str, reason: str, text: str) -> None:
        subject = reference("v1", "Service", service.metadata)
        self._events.event(subject, "Warning" if severity == "Warning" else "Normal", reason, text)
