"""Keeps a zone current from the API: Services, EndpointSlices, Namespaces and, if configured, Pods.

Objects are reduced to the fields that answers need, before they are kept and recorded in the snapshot.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from podwire.dns.imports import service_of, slice_of
from podwire.dns.programming import ProgrammingTimes
from podwire.dns.snapshot import Snapshot
from podwire.dns.zone import Zone
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer, OnChange
from podwire.kube.resources import ENDPOINTSLICES, NAMESPACES, PODS, SERVICEIMPORTS, SERVICES
from podwire.model.meta import Object, ObjectMeta
from podwire.model.pod import Pod, PodStatus
from podwire.model.service import SERVICE_NAME_LABEL, Endpoint, EndpointSlice, Service, ServiceSpec, ServiceStatus
from podwire.model.serviceimport import IMPORT_NAME_LABEL, SOURCE_CLUSTER_LABEL, ServiceImport
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.supervise import Supervisor

_CONTACT_EVERY_S = 1.0
_LABELS = (SERVICE_NAME_LABEL, IMPORT_NAME_LABEL, SOURCE_CLUSTER_LABEL)


class ZoneWatch:
    """Applies changes to a zone and reports when an answer changed; an undecodable object gets an Event."""

    def __init__(
        self, zone: Zone, client: Client, changed: Callable[[], None], *, pods: bool, snapshot: Snapshot | None = None
    ) -> None:
        self._zone = zone
        self._snapshot = snapshot
        self._restored = False
        self.programming = ProgrammingTimes(client.clock.now())
        """How long changed endpoints take to be answered."""
        self._clock: Clock = client.clock
        self._log = Log("dns.watch")
        self._changed = changed
        self._services = Informer(client, SERVICES)
        self._slices = Informer(client, ENDPOINTSLICES)
        self._namespaces = Informer(client, NAMESPACES)
        self._pods = Informer(client, PODS) if pods else None
        self._imports = Informer(client, SERVICEIMPORTS) if zone.imported is not None else None
        self._services.trim = _trim_service
        self._slices.trim = self._trim_slice
        self._namespaces.trim = lambda item: Object(metadata=ObjectMeta(name=item.metadata.name))
        if self._pods is not None:
            self._pods.trim = _trim_pod
        self._services.subscribe(self._on_service)
        self._slices.subscribe(self._on_slice)
        self._namespaces.subscribe(self._on_namespace)
        if self._pods is not None:
            self._pods.subscribe(self._on_pod)
        if self._imports is not None:
            self._imports.subscribe(self._on_import)
        self._events = EventRecorder(client, "podwire-dns")
        self._events.follow_rejected(*self._informers())

    def start(self, supervisor: Supervisor) -> None:
        """Starts from the snapshot, then lists and watches."""
        self._restore()
        for informer in self._informers():
            if self._snapshot is not None:
                informer.subscribe(self._recorder(informer.resource.plural, self._snapshot), replay=False)
        for informer in self._informers():
            supervisor.start(f"watch {informer.resource.plural}", informer.run)
        supervisor.start("wait for lists", self._wait_synced)
        supervisor.start("events", self._events.run)
        if self._snapshot is not None:
            supervisor.start("age of the snapshot", self._note_contact)

    def _restore(self) -> None:
        """Answers from the objects of the last worker; missing names do not exist if it had listed all of them."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        types = {informer.resource.plural: informer.resource.type for informer in self._informers()}
        restored = snapshot.restore(types)
        for informer in self._informers():
            informer.restore(restored[informer.resource.plural])
        self._changed()
        if snapshot.collections < len(self._informers()):
            return
        self._mark_synced()
        self._restored = True
        self._log.info(
            "answering from the snapshot of the last process",
            age_s=f"{self.age_s():.1f}",
            objects=sum(map(len, restored.values())),
        )

    @staticmethod
    def _recorder(plural: str, snapshot: Snapshot) -> OnChange[Any]:
        return lambda key, _old, new: snapshot.record(plural, key, new)

    async def _note_contact(self) -> None:
        snapshot = self._snapshot
        while snapshot is not None:
            if all(informer.connected for informer in self._informers()):
                snapshot.mark_heard(self._clock.now().timestamp())
            await self._clock.sleep(_CONTACT_EVERY_S)

    def age_s(self) -> float:
        """For how long the zone was not compared with the API, in seconds; 0 while it is watched."""
        if self._snapshot is None or all(informer.connected for informer in self._informers()):
            return 0.0
        heard_s = self._snapshot.heard_s
        return max(0.0, self._clock.now().timestamp() - heard_s) if heard_s else 0.0

    def unsynced(self) -> tuple[str, ...]:
        """The collections that were never listed, neither by this process nor by the one before."""
        return () if self._restored else tuple(i.resource.plural for i in self._informers() if not i.synced.is_set())

    def _informers(
        self,
    ) -> tuple[
        Informer[Service] | Informer[EndpointSlice] | Informer[Object] | Informer[Pod] | Informer[ServiceImport], ...
    ]:
        optional = tuple(informer for informer in (self._pods, self._imports) if informer is not None)
        return (self._services, self._slices, self._namespaces, *optional)

    async def synced(self, within_s: float) -> None:
        """Returns when all collections were listed or restored, or after ``within_s`` seconds."""
        if self._restored:
            return
        try:
            async with asyncio.timeout(within_s):
                for informer in self._informers():
                    await informer.synced.wait()
        except TimeoutError:
            return

    async def _wait_synced(self) -> None:
        for informer in self._informers():
            await informer.synced.wait()
        self._mark_synced()
        self._changed()
        if self._snapshot is not None:
            self._snapshot.mark_complete(len(self._informers()))

    def _mark_synced(self) -> None:
        self._zone.index.mark_synced()
        if self._zone.imported is not None:
            self._zone.imported.index.mark_synced()

    def _trim_slice(self, endpoint_slice: EndpointSlice) -> EndpointSlice:
        if self._slices.synced.is_set():
            # What was listed first had changed before this process could answer it.
            self.programming.arrived(endpoint_slice.metadata)
        return _trim_slice(endpoint_slice, zonal=self._zone.zonal)

    def _now_s(self) -> int:
        return int(self._clock.now().timestamp())

    def _on_service(self, key: str, _old: Service | None, new: Service | None) -> None:
        self._report(self._zone.index.set_service(key, new, self._now_s()))

    def _on_slice(self, key: str, _old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        index = self._zone.index
        changed = index.set_slice(key, new, self._now_s())
        records = (
            index.records.get((new.metadata.namespace, new.metadata.labels.get(SERVICE_NAME_LABEL, "")))
            if new is not None
            else None
        )
        self.programming.answered(key, self._clock.now(), headless=records is not None and records.headless)
        if self._zone.imported is not None:
            imported = slice_of(new) if new is not None else None
            changed = self._zone.imported.index.set_slice(key, imported, self._now_s()) or changed
        self._report(changed)

    def _on_import(self, key: str, _old: ServiceImport | None, new: ServiceImport | None) -> None:
        if self._zone.imported is not None:
            service = service_of(new) if new is not None else None
            self._report(self._zone.imported.index.set_service(key, service, self._now_s()))

    def _on_namespace(self, key: str, _old: Object | None, new: Object | None) -> None:
        if self._zone.imported is not None:
            self._zone.imported.index.set_namespace(key, present=new is not None)
        self._report(self._zone.index.set_namespace(key, present=new is not None))

    def _on_pod(self, key: str, _old: Pod | None, new: Pod | None) -> None:
        self._report(self._zone.index.set_pod(key, new))

    def _report(self, changed: bool) -> None:
        if changed:
            self._changed()


def _meta(meta: ObjectMeta) -> ObjectMeta:
    labels = {name: meta.labels[name] for name in _LABELS if name in meta.labels}
    return ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        resource_version=meta.resource_version,
        deletion_timestamp=meta.deletion_timestamp,
        labels=labels,
    )


def _trim_service(service: Service) -> Service:
    spec = service.spec
    reduced = ServiceSpec(
        type=spec.type,
        ports=spec.ports,
        cluster_ip=spec.cluster_ip,
        cluster_ips=spec.cluster_ips,
        external_name=spec.external_name,
        external_ips=spec.external_ips,
    )
    return Service(
        metadata=_meta(service.metadata),
        spec=reduced,
        status=ServiceStatus(load_balancer=service.status.load_balancer),
    )


def _trim_slice(endpoint_slice: EndpointSlice, *, zonal: bool) -> EndpointSlice:
    endpoints = tuple(
        Endpoint(
            addresses=e.addresses,
            conditions=e.conditions,
            hostname=e.hostname,
            target_ref=e.target_ref,
            zone=e.zone if zonal else None,
        )
        for e in endpoint_slice.endpoints or ()
    )
    return EndpointSlice(
        metadata=_meta(endpoint_slice.metadata),
        address_type=endpoint_slice.address_type,
        endpoints=endpoints,
        ports=endpoint_slice.ports,
    )


def _trim_pod(pod: Pod) -> Pod:
    status = PodStatus(phase=pod.status.phase, pod_ip=pod.status.pod_ip, pod_ips=pod.status.pod_ips)
    return Pod(metadata=_meta(pod.metadata), status=status)
