"""Keeps a zone current from the API: Services, EndpointSlices, Namespaces and, if configured, Pods."""

import asyncio
from collections.abc import Callable

from podwire.dns.zone import Zone
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.resources import ENDPOINTSLICES, NAMESPACES, PODS, SERVICES
from podwire.model.meta import Object
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service
from podwire.runtime.clock import Clock
from podwire.runtime.supervise import Supervisor


class ZoneWatch:
    """Applies changes to a zone and reports when an answer changed; an undecodable object gets an Event."""

    def __init__(self, zone: Zone, client: Client, changed: Callable[[], None], *, pods: bool) -> None:
        self._zone = zone
        self._clock: Clock = client.clock
        self._changed = changed
        self._services = Informer(client, SERVICES)
        self._slices = Informer(client, ENDPOINTSLICES)
        self._namespaces = Informer(client, NAMESPACES)
        self._pods = Informer(client, PODS) if pods else None
        self._services.subscribe(self._on_service)
        self._slices.subscribe(self._on_slice)
        self._namespaces.subscribe(self._on_namespace)
        if self._pods is not None:
            self._pods.subscribe(self._on_pod)
        self._events = EventRecorder(client, "podwire-dns")
        self._events.follow_rejected(*self._informers())

    def start(self, supervisor: Supervisor) -> None:
        """Starts listing and watching."""
        for informer in self._informers():
            supervisor.start(f"watch {informer.resource.plural}", informer.run)
        supervisor.start("wait for lists", self._wait_synced)
        supervisor.start("events", self._events.run)

    def unsynced(self) -> tuple[str, ...]:
        """The collections that were not listed yet."""
        return tuple(i.resource.plural for i in self._informers() if not i.synced.is_set())

    def _informers(
        self,
    ) -> tuple[Informer[Service] | Informer[EndpointSlice] | Informer[Object] | Informer[Pod], ...]:
        always = (self._services, self._slices, self._namespaces)
        return always if self._pods is None else (*always, self._pods)

    async def synced(self, within_s: float) -> None:
        """Returns when all collections were listed, or after ``within_s`` seconds."""
        try:
            async with asyncio.timeout(within_s):
                for informer in self._informers():
                    await informer.synced.wait()
        except TimeoutError:
            return

    async def _wait_synced(self) -> None:
        for informer in self._informers():
            await informer.synced.wait()
        self._zone.index.mark_synced()
        self._changed()

    def _now_s(self) -> int:
        return int(self._clock.now().timestamp())

    def _on_service(self, key: str, _old: Service | None, new: Service | None) -> None:
        self._report(self._zone.index.set_service(key, new, self._now_s()))

    def _on_slice(self, key: str, _old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        self._report(self._zone.index.set_slice(key, new, self._now_s()))

    def _on_namespace(self, key: str, _old: Object | None, new: Object | None) -> None:
        self._report(self._zone.index.set_namespace(key, present=new is not None))

    def _on_pod(self, key: str, _old: Pod | None, new: Pod | None) -> None:
        self._report(self._zone.index.set_pod(key, new))

    def _report(self, changed: bool) -> None:
        if changed:
            self._changed()
