"""ReplicaSet and ReplicationController: a number of equal pods.

``plan`` counts active pods and decides how many to create or which to delete. Guarantees:

1. No plan is made before the informer shows the writes of the previous plan.
2. At least 20 ms pass between two runs for one object, so 100 pods that become ready cost only a few status writes.
3. A status is written only when it has changed.

Source: ``k8s.io/kubernetes/pkg/controller/replicaset``.
"""

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from podwire.embedded.workloads.podstate import active, available_in_s, victims
from podwire.embedded.workloads.podwriter import OwnerPods, PodWriter
from podwire.embedded.workloads.statuswriter import write_status
from podwire.embedded.workloads.template import PodOwner, pod_of
from podwire.errors import NotFound
from podwire.kube.controller import Environment
from podwire.kube.index import Index
from podwire.kube.resources import PODS, REPLICASETS, REPLICATIONCONTROLLERS, Resource
from podwire.model.meta import Condition, controller_of
from podwire.model.pod import Pod
from podwire.model.selector import LabelSelector
from podwire.model.workload import (
    ReplicaSet,
    ReplicaSetStatus,
    ReplicationController,
    Template,
    changed_status,
)
from podwire.runtime.clock import rfc3339
from podwire.runtime.supervise import Supervisor

_INTERVAL_S = 0.02
_BURST = 500


class Replicated(msgspec.Struct, frozen=True):
    """The fields that a ReplicaSet and a ReplicationController have in common."""

    owner: PodOwner
    replicas: int
    selector: LabelSelector
    template: Template
    min_ready_s: int
    status: ReplicaSetStatus


class ReplicaSetPlan(msgspec.Struct, frozen=True):
    """The number of pods to create, pods to delete, the status, seconds until the next plan (None: on change)."""

    create: int
    delete: tuple[Pod, ...]
    status: ReplicaSetStatus
    again_s: float | None


def plan(view: Replicated, pods: tuple[Pod, ...], now: datetime.datetime) -> ReplicaSetPlan:
    """The plan for an object and all pods that it owns; while the object is being deleted, the plan changes no pods."""
    alive = tuple(pod for pod in pods if active(pod))
    surplus = len(alive) - view.replicas
    deleting = view.owner.meta.deletion_timestamp is not None
    waits = [available_in_s(pod, view.min_ready_s, now) for pod in alive]
    labels = (view.template.get("metadata") or {}).get("labels") or {}
    status = ReplicaSetStatus(
        replicas=len(alive),
        fully_labeled_replicas=sum(labels.items() <= pod.metadata.labels.items() for pod in alive),
        ready_replicas=sum(pod.ready for pod in alive),
        available_replicas=sum(wait == 0.0 for wait in waits),
        terminating_replicas=sum(pod.metadata.deletion_timestamp is not None for pod in pods),
        observed_generation=view.owner.meta.generation,
        conditions=view.status.conditions,
    )
    return ReplicaSetPlan(
        create=0 if deleting else max(0, -surplus),
        delete=victims(alive, surplus) if surplus > 0 and not deleting else (),
        status=status,
        again_s=min((wait for wait in waits if wait), default=None),
    )


def replicaset_view(item: ReplicaSet) -> Replicated:
    """The common fields of a ReplicaSet."""
    return Replicated(
        PodOwner("apps/v1", "ReplicaSet", item.metadata),
        item.spec.replicas,
        item.spec.selector or LabelSelector(),
        item.spec.template,
        item.spec.min_ready_seconds,
        item.status,
    )


def controller_view(item: ReplicationController) -> Replicated:
    """The common fields of a ReplicationController."""
    return Replicated(
        PodOwner("v1", "ReplicationController", item.metadata),
        item.spec.replicas,
        LabelSelector(match_labels=item.spec.selector),
        item.spec.template,
        item.spec.min_ready_seconds,
        item.status,
    )


class ReplicaController:
    """Creates and deletes pods so that each object of one resource has its number of pods."""

    def __init__(self, environment: Environment, resource: Resource[Any], view: Callable[[Any], Replicated]) -> None:
        self._environment = environment
        self._resource = resource
        self._view = view
        self._objects = environment.of(resource)
        self._pods = environment.pods_by_owner()
        self._orphans = orphans_of(environment)
        self._writer = PodWriter(environment, f"{resource.kind.lower()}-controller")
        self._loop = environment.loop(resource.kind.lower(), self._reconcile, interval_s=_INTERVAL_S)
        self._objects.subscribe(lambda key, _old, _new: self._loop.touch(key))
        environment.of(PODS).subscribe(self._pod_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the reconcile loop."""
        self._loop.start(supervisor, workers=8)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        for key in claimants(self._resource.kind, self._objects.objects, self._matches, old, new):
            self._loop.touch(key)

    def _matches(self, item: Any) -> Callable[[Pod], bool]:
        selector = self._view(item).selector
        if not selector.match_labels and not selector.match_expressions:
            return lambda pod: False
        return lambda pod: selector.matches(pod.metadata.labels)

    async def _reconcile(self, key: str) -> None:
        item = self._objects.get(key)
        if item is None:
            return
        view = self._view(item)
        uid = view.owner.meta.uid
        if not self._writer.own.caught_up(uid):
            self._loop.queue.add_after(key, 1.0)
            return
        pods = OwnerPods(
            tuple(pod for pod in self._pods.of(uid).values() if not self._writer.own.is_deleted(pod.metadata.uid)),
            tuple(self._orphans.of(view.owner.meta.namespace).values()),
        )
        claimed = await self._writer.claim(view.owner, self._matches(item), pods)
        chosen = plan(view, claimed, self._environment.clock.now())
        new = [pod_of(view.template, view.owner) for _ in range(min(chosen.create, _BURST))]
        failure = await self._writer.create_many(view.owner, new)
        failure = await self._writer.delete_many(view.owner, chosen.delete[:_BURST]) or failure
        await self._write_status(view, self._with_failure(chosen.status, failure))
        if failure is not None:
            raise failure
        if chosen.again_s is not None:
            self._loop.queue.add_after(key, chosen.again_s)

    def _with_failure(self, status: ReplicaSetStatus, failure: BaseException | None) -> ReplicaSetStatus:
        other_conditions = tuple(c for c in status.conditions if c.type != "ReplicaFailure")
        if failure is None:
            return msgspec.structs.replace(status, conditions=other_conditions)
        before = next((c for c in status.conditions if c.type == "ReplicaFailure"), None)
        since = before.last_transition_time if before else rfc3339(self._environment.clock.now())
        condition = Condition(
            type="ReplicaFailure",
            status="True",
            reason="FailedCreate",
            message=str(failure),
            last_transition_time=since,
        )
        return msgspec.structs.replace(status, conditions=(*other_conditions, condition))

    async def _write_status(self, view: Replicated, status: ReplicaSetStatus) -> None:
        patch = changed_status(view.status, status)
        try:
            await write_status(self._environment.client, self._resource, view.owner.meta, patch)
        except NotFound:
            return


class ReplicaSetController(ReplicaController):
    """The controller of ReplicaSets."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment, REPLICASETS, replicaset_view)


class ReplicationControllerController(ReplicaController):
    """The controller of ReplicationControllers."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment, REPLICATIONCONTROLLERS, controller_view)


def orphans_of(environment: Environment) -> Index[Pod]:
    """The pods without a controller, by namespace."""

    def namespaces(pod: Pod) -> tuple[str, ...]:
        return () if controller_of(pod.metadata) else (pod.metadata.namespace,)

    return Index(environment.of(PODS), namespaces)


def owner_keys(kind: str, old: Pod | None, new: Pod | None) -> set[str]:
    """The keys of a pod's controllers of ``kind``, before and after a change of the pod."""
    owners = [(pod.metadata.namespace, controller_of(pod.metadata)) for pod in (old, new) if pod is not None]
    return {f"{namespace}/{owner.name}" for namespace, owner in owners if owner is not None and owner.kind == kind}


def claimants(
    kind: str,
    objects: Mapping[str, Any],
    matches: Callable[[Any], Callable[[Pod], bool]],
    old: Pod | None,
    new: Pod | None,
) -> set[str]:
    """The result of :func:`owner_keys`, and the keys of ``objects`` that would adopt a pod without a controller."""
    keys = owner_keys(kind, old, new)
    if new is not None and controller_of(new.metadata) is None:
        prefix = f"{new.metadata.namespace}/"
        keys |= {key for key, item in objects.items() if key.startswith(prefix) and matches(item)(new)}
    return keys
