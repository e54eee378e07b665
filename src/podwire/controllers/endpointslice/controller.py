"""The loop that keeps EndpointSlices: finds the Services that a change affects and writes the planned changes.

Guarantees: 1. the first change of a Service is planned at once, further ones at most every 0.1 s, so a hundred pods
that become ready cause some tens of writes; 2. Endpoints follow at most every 0.5 s; 3. no plan is made before the
informers show the writes of the last plan; 4. changes of pods that no slice shows cause no plan; 5. Endpoints that were
written here are deleted with their Service, also when the Service was deleted while no controller ran; 6. when hints by
size appear or disappear, the Service gets an Event with Kubernetes' reason.

Label pairs lead from a pod to its Services, so a pod costs its labels and not all Services of the cluster.
"""

import contextlib

import msgspec

from podwire.controllers.endpointslice import mirror
from podwire.controllers.endpointslice.endpoints import Desired, address_types, desired
from podwire.controllers.endpointslice.plan import MANAGED_BY, MANAGER, of_service, plan
from podwire.controllers.endpointslice.trigger import TriggerTimes
from podwire.controllers.endpointslice.writing import write
from podwire.controllers.endpointslice.zones import automatic, with_hints
from podwire.errors import AlreadyExists, NotFound
from podwire.kube.controller import Environment
from podwire.kube.events import reference
from podwire.kube.index import Index
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import ENDPOINTS, ENDPOINTSLICES, NODES, PODS, SERVICES
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.service import SERVICE_NAME_LABEL, Endpoints, EndpointSlice, Service
from podwire.runtime.supervise import Supervisor

_INTERVAL_S = 0.1
_MIRROR_INTERVAL_S = 0.5
_HINTS = "Topology Aware Hints has been"
_ENABLED, _DISABLED = "TopologyAwareHintsEnabled", "TopologyAwareHintsDisabled"


class EndpointSliceController:
    """EndpointSlices and Endpoints of all Services with a selector."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._services = environment.of(SERVICES)
        self._nodes = environment.of(NODES)
        self._mirrors = environment.of(ENDPOINTS)
        slices = environment.of(ENDPOINTSLICES)
        self._own, self._own_mirrors = OwnWrites(slices), OwnWrites(self._mirrors)
        self._triggers, self._mirror_triggers = TriggerTimes(), TriggerTimes()
        self._hinted: dict[str, dict[str, str]] = {}
        """Services with hints by size: by address type the reason why there are no hints."""
        self._events = environment.recorder("endpoint-slice-controller")
        self._slices: Index[EndpointSlice] = Index(slices, _managed_for)
        self._pods: Index[Pod] = Index(environment.of(PODS), _pod_pairs)
        self._by_pair: Index[Service] = Index(self._services, _service_pairs)
        self._loop = environment.loop("endpointslice", self._reconcile, interval_s=_INTERVAL_S)
        self._mirror_loop = environment.loop("endpoints", self._mirror, interval_s=_MIRROR_INTERVAL_S)
        self._services.subscribe(lambda key, _old, _new: self._touch(key))
        environment.of(PODS).subscribe(self._pod_changed)
        slices.subscribe(self._slice_changed)
        self._nodes.subscribe(self._node_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts both loops."""
        for key, item in self._mirrors.objects.items():
            if mirror.MANAGED_BY in item.metadata.labels and self._services.get(key) is None:
                self._mirror_loop.touch(key)
        self._loop.start(supervisor)
        self._mirror_loop.start(supervisor, workers=1)

    def _touch(self, key: str) -> None:
        self._loop.touch(key)
        self._mirror_loop.touch(key)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and _shown(old) == _shown(new):
            return
        for pod in (old, new):
            if pod is not None and pod.addresses:
                for key in self._selecting(pod):
                    self._touch(key)

    def _selecting(self, pod: Pod) -> set[str]:
        labels = pod.metadata.labels
        keys: set[str] = set()
        for pair in _pod_pairs(pod):
            for key, service in self._by_pair.of(pair).items():
                if service.spec.selector.items() <= labels.items():
                    keys.add(key)
        return keys

    def _slice_changed(self, _key: str, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        # Own writes arrive here too; the plan then has no changes.
        for item in (old, new):
            if item is not None:
                for key in _managed_for(item):
                    self._loop.touch(key)

    def _node_changed(self, key: str, old: Node | None, new: Node | None) -> None:
        """Labels affect every Service, readiness and size only those with hints by size."""
        if _labels(old) == _labels(new) and _size(old) == _size(new):
            return
        for service_key, service in self._services.objects.items():
            if service.spec.selector and (automatic(service) or _labels(old) != _labels(new)):
                self._loop.touch(service_key)

    def _selected(self, service: Service) -> list[Pod]:
        namespace, selector = service.metadata.namespace, service.spec.selector
        candidates = [self._pods.of(f"{namespace}/{key}={value}") for key, value in selector.items()]
        fewest = min(candidates, key=len)
        return [pod for pod in fewest.values() if selector.items() <= pod.metadata.labels.items()]

    async def _reconcile(self, key: str) -> None:
        service = self._services.get(key)
        if service is None:
            self._triggers.forget(key)
            self._hinted.pop(key, None)
        if service is None or service.metadata.deletion_timestamp is not None or not service.spec.selector:
            return
        if not self._own.caught_up(key):
            self._loop.queue.add_after(key, 1.0)
            return
        every = self._slices.of(key).values()
        slices = tuple(item for item in every if _owned_by(item, service))
        external = service.spec.type == "ExternalName"
        pods = [] if external else self._selected(service)
        families = () if external else address_types(service)
        desired_endpoints = self._with_hints(key, service, desired(service, pods, self._nodes.objects))
        trigger = self._triggers.since(key, service, pods, has_slices=bool(slices))
        changes = plan(of_service(service), desired_endpoints, slices, families, trigger)
        changes.delete += [item.metadata.name for item in every if not _owned_by(item, service)]
        await write(self._client, self._own, key, changes)
        self._triggers.record(key, pods)

    def _with_hints(self, key: str, service: Service, desired_endpoints: Desired) -> Desired:
        """The endpoints, with hints by size if the Service requests them; a change of hints is an Event."""
        before = self._hinted.pop(key, {})
        reasons: dict[str, str] = {}
        if automatic(service):
            desired_endpoints, reasons = with_hints(desired_endpoints, self._nodes.objects)
            self._hinted[key] = reasons
        subject = reference("v1", "Service", service.metadata)
        for family in sorted(before.keys() | reasons.keys()):
            old, new = before.get(family), reasons.get(family)
            if new == "" and old != "":
                self._events.event(subject, "Normal", _ENABLED, f"{_HINTS} enabled, addressType: {family}")
            elif new and new != old:
                self._events.event(subject, "Warning", _DISABLED, f"{new}, addressType: {family}")
            elif new is None and old == "":
                self._events.event(subject, "Warning", _DISABLED, f"{_HINTS} disabled, addressType: {family}")
        return desired_endpoints

    async def _mirror(self, key: str) -> None:
        if not self._own_mirrors.caught_up(key):
            self._mirror_loop.queue.add_after(key, _MIRROR_INTERVAL_S)
            return
        service, present = self._services.get(key), self._mirrors.get(key)
        if service is None:
            self._mirror_triggers.forget(key)
        if service is None and present is not None:
            await self._remove(present)
        if service is None or service.metadata.deletion_timestamp is not None or not service.spec.selector:
            return
        if service.spec.type == "ExternalName":
            return
        pods = self._selected(service)
        endpoints = mirror.render(service, desired(service, pods, self._nodes.objects), address_types(service)[0])
        trigger = self._mirror_triggers.since(key, service, pods, has_slices=present is not None)
        namespace, name = service.metadata.namespace, service.metadata.name
        if present is None:
            try:
                written = await self._client.create(ENDPOINTS, mirror.stamped(endpoints, trigger), namespace)
                self._own_mirrors.wrote(key, written)
            except AlreadyExists:
                self._mirror_loop.queue.add_after(key, _MIRROR_INTERVAL_S)
        elif (update := mirror.overlay(endpoints, present, trigger)) is not None:
            body = msgspec.to_builtins(update)
            body.setdefault("subsets", [])
            self._own_mirrors.wrote(key, await self._client.update(ENDPOINTS, body, namespace, name=name))
        self._mirror_triggers.record(key, pods)

    async def _remove(self, endpoints: Endpoints) -> None:
        """Deletes the Endpoints of a deleted Service."""
        meta = endpoints.metadata
        with contextlib.suppress(NotFound):
            await self._client.delete(ENDPOINTS, meta.name, meta.namespace, uid=meta.uid)


def _shown(pod: Pod) -> tuple[object, ...]:
    """The fields of a pod that its endpoint shows."""
    spec, meta = pod.spec, pod.metadata
    gone = meta.deletion_timestamp is not None
    return pod.addresses, pod.ready, pod.finished, gone, meta.labels, spec.node_name, spec.hostname


def _labels(node: Node | None) -> dict[str, str] | None:
    return node.metadata.labels if node is not None else None


def _size(node: Node | None) -> tuple[bool, str]:
    return (node.ready, node.status.allocatable.get("cpu", "")) if node is not None else (False, "")


def _pod_pairs(pod: Pod) -> tuple[str, ...]:
    return tuple(f"{pod.metadata.namespace}/{key}={value}" for key, value in pod.metadata.labels.items())


def _service_pairs(service: Service) -> tuple[str, ...]:
    """One pair of the selector is enough to find the Service from its pods."""
    selector = service.spec.selector
    if not selector:
        return ()
    key = min(selector)
    return (f"{service.metadata.namespace}/{key}={selector[key]}",)


def _managed_for(item: EndpointSlice) -> tuple[str, ...]:
    labels = item.metadata.labels
    if labels.get(MANAGED_BY) != MANAGER or SERVICE_NAME_LABEL not in labels:
        return ()
    return (f"{item.metadata.namespace}/{labels[SERVICE_NAME_LABEL]}",)


def _owned_by(item: EndpointSlice, service: Service) -> bool:
    """Slices of a deleted Service of the same name are not owned: their endpoints are those of another Service."""
    owners = item.metadata.owner_references
    return not owners or any(owner.uid == service.metadata.uid for owner in owners)
