"""Keeps a data plane of Services equal to the API: changed objects come in, changed Services go out.

Guarantees:

1. Nothing is written before Services, EndpointSlices and the Node (for 30 s at most) are known, so a start never
   removes what is in force.
2. After a quiet period, a change is committed within 2 ms, with all changes of that time. After a commit the next one
   waits four times as long as the commit took (1 s at most). So under a stream of changes commits take a fifth of the
   time, and an expensive commit carries more changes.
3. Only Services that a changed object names are resolved again. A changed node (zone, addresses, pod ranges) means all.
4. A refused commit is tried again after a backoff from 0.1 s to 10 s, with all that changed meanwhile, and never ends
   the loop.
5. What another program changed is restored in two steps, also while the next commit waits. What the kernel's
   notifications name is written at once, in a thread where the data plane needs longer for it. Then the whole state is
   read and compared. Only the step before of the same kind delays a step, so that each uses at most half of the time.
   After each step, flows that began while rules were missing, before the start too, are deleted, so that packets that
   are sent again reach a Service.
6. After a change of UDP endpoints (on request of TCP too), flows to endpoints that no longer serve are deleted, also
   when no endpoint is left.
7. Health checks, metrics and flows of a refused commit follow when the commit succeeds.
8. An unexpected exception loses nothing: the next run loads everything.
"""

import asyncio
from collections import ChainMap
from collections.abc import Mapping
from typing import Protocol

import msgspec

from podwire.cluster.podnetworks import further_ranges
from podwire.dataplane.follower import Follower, Source
from podwire.dataplane.plane import Repairing, Restoring
from podwire.errors import KernelError
from podwire.model.node import Node
from podwire.model.service import EndpointSlice, Service
from podwire.observe.log import Log
from podwire.proxy.dataplane import ServiceDataPlane
from podwire.proxy.flows import FlowCleaner
from podwire.proxy.resolve import resolve, service_of
from podwire.proxy.servicemap import NodeFacts, ResolvedPort, ServiceMap, take_over
from podwire.runtime.clock import Clock
from podwire.runtime.workqueue import wait_first

_GATHER_S = 0.002
_REST = 4
_REST_MOST_S = 1.0
_AT_ONCE = 200
"""Services that are resolved without a pause: 5 ms."""
_NODE_S = 30.0  # as kube-proxy


class Reporter(Protocol):
    """Receives the events of the proxy; see ``proxy.report``."""

    def service_changed(self) -> None:
        """A Service changed."""
        ...

    def endpoints_changed(self, endpoint_slice: EndpointSlice) -> None:
        """An EndpointSlice was added, changed or removed."""
        ...

    def begin(self) -> None:
        """A commit begins."""
        ...

    def committed(self, changed: ServiceMap, *, full: bool) -> None:
        """The commit took effect; ``changed`` are the Services that differ from before."""
        ...

    def refused(self, failure: KernelError) -> None:
        """The kernel refused the commit."""
        ...

    def flows_forgotten(self, counts: Mapping[str, int], duration_s: float) -> None:
        """Stale flows were searched and deleted."""
        ...


class Sources(msgspec.Struct, frozen=True):
    """The collections of API objects that the proxy follows."""

    services: Source[Service]
    slices: Source[EndpointSlice]
    nodes: Source[Node]


class ServiceProxy:
    """The part of an agent that programs Services."""

    def __init__(
        self,
        sources: Sources,
        plane: ServiceDataPlane,
        facts: NodeFacts,
        clock: Clock,
        clean_flows: FlowCleaner | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self._sources = sources
        self._plane = plane
        self._facts = facts
        self._clock = clock
        self._clean_flows = clean_flows
        self._reporter = reporter
        self._slices: dict[str, dict[str, EndpointSlice]] = {}
        self._resolved: dict[str, tuple[ResolvedPort, ...]] = {}
        self._dirty: set[str] = set()
        self._full = True
        self._unfinished = False
        self._gap = True
        self._rested = self._repair_rested = self._restore_rested = 0.0
        self._writing = self._restored = False
        self._log = Log("proxy")
        self._follower = Follower(plane, clock, "Services are not programmed", self._refused, self._restore)
        self.programmed = self._follower.programmed
        """Set while the kernel holds the latest desired state."""
        self.loaded = self._follower.loaded
        """Set after the first successful commit."""
        sources.services.subscribe(self._service_changed)
        sources.slices.subscribe(self._slice_changed)
        sources.nodes.subscribe(self._node_changed)

    @property
    def problem(self) -> str:
        """Why Services do not work on this node; empty when they work, even while a change is being committed."""
        return self._follower.problem

    @property
    def services(self) -> ServiceMap:
        """The resolved Services as last programmed."""
        return self._resolved

    @property
    def facts(self) -> NodeFacts:
        """The latest facts of this node."""
        return self._facts

    def configure(self, facts: NodeFacts) -> None:
        """Loads everything again with other settings; zone, addresses and pod ranges of the node stay."""
        known = self._facts
        self._facts = msgspec.structs.replace(facts, zone=known.zone, addresses=known.addresses)
        self._node_changed(facts.name, None, self._sources.nodes.objects.get(facts.name))
        self._full = True
        self._follower.wake.set()

    async def run(self) -> None:
        """Programs Services until cancelled; the kernel keeps its rules."""
        await self._sources.services.synced.wait()
        await self._sources.slices.synced.wait()
        await self._wait_for_node()
        await self._follower.run(self._program, self._gather)

    async def _gather(self) -> None:
        """Waits for further changes, and until the last commit has rested; a repair does not wait for that.

        The usual wait of 2 ms is a plain sleep: waiting for two things at once costs 0.2 ms of CPU.
        """
        disturbed, rest_s = self._follower.disturbed, self._rested - self._clock.monotonic()
        if not disturbed.is_set() and rest_s <= _GATHER_S:
            await self._clock.sleep(_GATHER_S)
        elif not disturbed.is_set():
            await wait_first(disturbed, self._clock.sleep(rest_s))
        if disturbed.is_set():
            await self._clock.sleep(max(0.0, self._repair_rested - self._clock.monotonic()))

    def _restore(self) -> None:
        """Writes at once what notifications named, unless another thread writes, or it did so just before."""
        began = self._clock.monotonic()
        if self._writing or began < self._restore_rested or not isinstance(self._plane, Restoring):
            return
        self._restored = any(self._plane.restore()) or self._restored
        ended = self._clock.monotonic()
        self._restore_rested = ended + (ended - began)

    def _refused(self, failure: KernelError) -> None:
        if self._reporter is not None:
            self._reporter.refused(failure)
        self._log.error("cannot program Services", failure=failure, plane=self._plane.name)

    async def _wait_for_node(self) -> None:
        """Waits up to 30 s for this node's addresses and zone; without them a load would change correct rules."""
        try:
            async with asyncio.timeout(_NODE_S):
                await self._sources.nodes.synced.wait()
        except TimeoutError:
            self._log.warning(
                "this node's Node object is not known yet; node ports are programmed when it is", node=self._facts.name
            )

    def _service_changed(self, key: str, _old: Service | None, _new: Service | None) -> None:
        if self._reporter is not None:
            self._reporter.service_changed()
        self._mark(key)

    def _slice_changed(self, key: str, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        before = service_of(old) if old is not None else ""
        after = service_of(new) if new is not None else ""
        endpoint_slice = new or old
        if self._reporter is not None and endpoint_slice is not None and (before or after):
            self._reporter.endpoints_changed(endpoint_slice)
        if before and before != after:
            self._slices.get(before, {}).pop(key, None)
            self._mark(before)
        if after and new is not None:
            self._slices.setdefault(after, {})[key] = new
            self._mark(after)

    def _node_changed(self, key: str, _old: Node | None, new: Node | None) -> None:
        if key != self._facts.name or new is None:
            return
        facts = msgspec.structs.replace(self._facts, zone=new.zone, addresses=new.internal_ips)
        if facts.pod_cidrs_of_node:
            facts = msgspec.structs.replace(facts, pod_cidrs=(*new.pod_cidrs, *map(str, further_ranges(new))))
        if facts != self._facts:
            self._facts = facts
            self._full = True
            self._follower.wake.set()

    def _mark(self, key: str) -> None:
        self._dirty.add(key)
        self._follower.change()

    async def _program(self) -> None:
        began = self._clock.monotonic()
        follower = self._follower
        follower.wake.clear()
        dirty, self._dirty = self._dirty, set()
        full, self._full = self._full or self._unfinished, False
        self._unfinished = True
        keys = set(self._sources.services.objects) | set(self._resolved) if full else dirty
        changed = await self._resolve(keys)
        if self._reporter is not None:
            self._reporter.begin()
        follower.look()  # missing elements are restored first: the kernel refuses to change them
        disturbed = follower.disturbed.is_set()
        follower.disturbed.clear()
        self._gap = self._gap or disturbed
        self._writing = True
        try:
            wrote = await self._write(changed, full=full)
        finally:
            self._writing = False
        follower.look()  # a change that another program makes during a load does not make fileno() readable
        restored = wrote and (
            self._gap or follower.disturbed.is_set()
        )  # known only after the write, which may restore it
        before = {key: self._resolved.get(key, ()) for key in changed}
        take_over(self._resolved, changed)
        if self._reporter is not None:
            self._reporter.committed(changed, full=full)
        self._unfinished, self._gap, follower.refusal = False, False, ""
        if restored:
            await self._forget_flows({}, self._resolved, gap=True)
        await self._forget_flows(before, changed)
        self.loaded.set()
        if not self._dirty:
            self.programmed.set()
        took_s = self._clock.monotonic() - began
        rest_s = 0.0 if full else took_s if disturbed else _REST * took_s
        self._rested = began + took_s + min(rest_s, _REST_MOST_S)
        if disturbed:
            self._repair_rested = self._rested

    async def _write(self, changed: dict[str, tuple[ResolvedPort, ...]], *, full: bool) -> bool:
        """Writes the change; returns whether anything was written."""
        if full:
            everything = {key: ports for key, ports in (self._resolved | changed).items() if ports}
            wrote = any(await asyncio.to_thread(self._plane.load, everything, self._facts))
            wrote, self._restored = wrote or self._restored, False
            if wrote and self._gap and self.loaded.is_set():
                self._log_restored()
            return wrote
        if self._gap and isinstance(self._plane, Repairing):
            self._restored = any(await asyncio.to_thread(self._plane.repair)) or self._restored
        services = ChainMap(changed, self._resolved)
        if changed and self._plane.instant:
            self._plane.update(services, changed)
        elif changed:
            await asyncio.to_thread(self._plane.update, services, changed)
        if self._gap:
            if self._restored:
                await self._forget_flows({}, self._resolved, gap=True)
            healed = any(await asyncio.to_thread(self._plane.heal, services))
            restored, self._restored = self._restored or healed, False
            if restored:
                self._log_restored()
                return True
        return bool(changed)

    def _log_restored(self) -> None:
        self._log.warning("restored rules that another program changed", plane=self._plane.name)

    async def _resolve(self, keys: set[str]) -> dict[str, tuple[ResolvedPort, ...]]:
        """The Services of these keys whose resolved ports changed.

        With many Services other tasks run in between; changes during that time are marked for the next commit.
        """
        changed: dict[str, tuple[ResolvedPort, ...]] = {}
        for number, key in enumerate(keys, 1):
            if number % _AT_ONCE == 0:
                await self._clock.sleep(0)
            service = self._sources.services.objects.get(key)
            slices = self._slices.get(key, {})
            ports = resolve(service, slices.values(), self._facts) if service is not None else ()
            if ports != self._resolved.get(key, ()):
                changed[key] = ports
            if service is None and not slices:
                self._slices.pop(key, None)
        return changed

    async def _forget_flows(self, before: ServiceMap, after: ServiceMap, *, gap: bool = False) -> None:
        if self._clean_flows is None:
            return
        old, new = (tuple(p for ports in services.values() for p in ports) for services in (before, after))
        forget = self._clean_flows(old, new, gap=gap)
        if forget is None:
            return
        started = self._clock.monotonic()
        try:
            counts = await asyncio.to_thread(forget)
            if self._reporter is not None:
                self._reporter.flows_forgotten(counts, self._clock.monotonic() - started)
        except KernelError as failure:
            self._log.warning("cannot delete stale flows", problem=str(failure))
