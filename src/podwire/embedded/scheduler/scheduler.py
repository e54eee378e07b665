"""The loop of the scheduler: binds pending pods to nodes.

Pods without a node wait in order of priority and age. Each round takes up to 64 pods and decides on each with the state
in memory, which counts every decision at once; then the round binds the pods in parallel. A pod that no node can take
is parked until a change could help (of a node, of labels, or the end of a pod).

Guarantees:

1. A pod that a node can take costs one API write.
2. Decisions never wait for bindings.
3. When a binding fails, the state is corrected and the pod is tried again after a growing delay.
4. Parked pods are tried at most every 0.2 s after changes, and every 30 s without a change.
5. The same refusal is written to a pod once.
6. A pod that only the deletion of pods of lower priority can make fit is nominated for one node, where its victims are
   deleted gracefully; until they are gone, the room counts as taken for pods of the same or lower priority.
"""

import asyncio

from podwire.embedded.scheduler.decision import SchedulingDecision, choose
from podwire.embedded.scheduler.preemptor import Preemptor, Work
from podwire.embedded.scheduler.usage import PodDemand, SchedulerState, pod_demand
from podwire.embedded.scheduler.volumes import StorageObjects, volume_demand
from podwire.embedded.storage.binding import SELECTED_NODE
from podwire.embedded.storage.claims import claims_of
from podwire.errors import Conflict, NotFound
from podwire.kube.client import STRATEGIC_MERGE_PATCH
from podwire.kube.controller import API_FAILURES, Environment
from podwire.kube.resources import (
    NAMESPACES,
    NODES,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    PODS,
    STORAGECLASSES,
)
from podwire.model.meta import Condition, Object, ObjectMeta, ObjectReference, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.storage import PersistentVolumeClaim
from podwire.observe.log import Log
from podwire.runtime.clock import rfc3339
from podwire.runtime.supervise import Supervisor
from podwire.runtime.workqueue import WorkQueue, in_parallel

NAME = "default-scheduler"
_RETRY_S = 0.2
_AGAIN_S = 30.0
_BATCH = 64


class Scheduler:
    """Binds the pods whose ``schedulerName`` is empty or ``default-scheduler``."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._recorder = environment.recorder(NAME)
        self._log = Log("scheduler")
        self._pods = environment.of(PODS)
        self._state = SchedulerState()
        self._preemptor = Preemptor(environment, self._state, NAME)
        self._pending: dict[str, Pod] = {}
        self._parked: dict[str, Pod] = {}
        self._refusals: dict[str, tuple[str, str]] = {}
        """The last message and nominated node that were written, by the pod's uid."""
        self._queue: WorkQueue[str] = WorkQueue(environment.clock)
        self._wake = asyncio.Event()
        environment.of(NODES).subscribe(self._node_changed)
        environment.of(NAMESPACES).subscribe(self._namespace_changed)
        self._pods.subscribe(self._pod_changed)
        self._claims = environment.of(PERSISTENTVOLUMECLAIMS)
        self._volumes = environment.of(PERSISTENTVOLUMES)
        self._classes = environment.of(STORAGECLASSES)
        self._claims.subscribe(self._claim_changed)
        self._volumes.subscribe(lambda _key, _old, _new: self._unpark())
        self._classes.subscribe(lambda _key, _old, _new: self._unpark())

    def start(self, supervisor: Supervisor) -> None:
        """Starts the scheduling loop."""
        supervisor.start("scheduler", self._run)
        supervisor.start("scheduler delayed", self._queue.run_delayed)
        supervisor.start("scheduler retries", self._retry)

    def _namespace_changed(self, key: str, _old: Object | None, new: Object | None) -> None:
        if new is None:
            self._state.namespaces.pop(key, None)
        else:
            self._state.namespaces[key] = new.metadata.labels

    def _node_changed(self, key: str, old: Node | None, new: Node | None) -> None:
        if new is None:
            self._state.drop_node(key)
            return
        self._state.put_node(new)
        if old is None or _scheduling_fields(old) != _scheduling_fields(new):
            self._unpark()

    def _pod_changed(self, key: str, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            # While the watch was interrupted, a new pod of the same name has replaced the pod.
            self._pod_changed(key, old, None)
            old = None
        pod = new or old
        if pod is None:
            return
        uid = pod.metadata.uid
        if new is None or new.finished:
            self._forget(uid)
        elif new.spec.node_name:
            self._pending.pop(uid, None)
            self._parked.pop(uid, None)
            self._refusals.pop(uid, None)
            self._state.nominated.pop(uid, None)
            if old is None or self._state.node_of(uid) != new.spec.node_name or _changed(old, new):
                self._state.put_pod(pod_demand(new), new.spec.node_name)
                self._unpark()
        elif new.metadata.deletion_timestamp is not None:
            self._forget(uid)
        elif _ours(new) and not self._state.node_of(uid):
            constraints_changed = old is None or _changed(old, new) or old.spec != new.spec
            if uid not in self._parked or constraints_changed:
                self._parked.pop(uid, None)
                self._pending[uid] = new
                self._wake.set()
            if old is None and new.status.nominated_node_name:
                self._state.nominated[uid] = (new.status.nominated_node_name, pod_demand(new))

    def _claim_changed(self, key: str, _old: PersistentVolumeClaim | None, _new: PersistentVolumeClaim | None) -> None:
        """Tries the parked pods that use a claim at once, since a claim is bound soon after it is made."""
        namespace, _, name = key.partition("/")
        for uid, pod in list(self._parked.items()):
            if pod.metadata.namespace == namespace and name in claims_of(pod):
                self._pending[uid] = self._parked.pop(uid)
                self._wake.set()

    def _forget(self, uid: str) -> None:
        self._pending.pop(uid, None)
        self._parked.pop(uid, None)
        self._refusals.pop(uid, None)
        nominated = self._state.nominated.pop(uid, None) is not None
        if self._state.drop_pod(uid) or nominated:
            self._unpark()

    def _unpark(self) -> None:
        if self._parked:
            self._queue.add_after("parked", _RETRY_S)

    async def _retry(self) -> None:
        """Tries pods again: parked pods after a change, other pods after a failed binding."""
        while True:
            key = await self._queue.get()
            self._queue.done(key)
            if key == "parked":
                self._pending |= self._parked
                self._parked.clear()
            elif (pod := self._pods.get(key)) is None or pod.spec.node_name:
                self._queue.forget(key)
            elif _ours(pod) and pod.metadata.deletion_timestamp is None:
                self._pending[pod.metadata.uid] = pod
            self._wake.set()

    async def _run(self) -> None:
        while True:
            while self._pending:
                await self._round()
            self._wake.clear()
            await self._wake.wait()

    async def _round(self) -> None:
        batch = sorted(self._pending.values(), key=_order)[:_BATCH]
        work: list[Work] = []
        for pod in batch:
            self._pending.pop(pod.metadata.uid, None)
            demand = pod_demand(pod)
            with self._state.counting_nominated(demand):
                work += self._decide(demand)
        for failure in await in_parallel(work):
            if not isinstance(failure, API_FAILURES):
                raise failure

    def _decide(self, demand: PodDemand) -> list[Work]:
        """The API requests that one decision needs."""
        pod, storage = demand.pod, self._storage()
        claims = volume_demand(pod, storage)
        nominated, _ = self._state.nominated.get(pod.metadata.uid, ("", demand))
        volumes = storage.volumes.values() if claims.static else ()
        decision = choose(demand, self._state, claims, volumes, nominated)
        if decision.node and claims.delayed:
            self._park(pod)
            return [self._select_node(claim, decision.node) for claim in claims.delayed]
        if decision.node:
            self._state.put_pod(demand, decision.node)
            return [self._bind(demand, decision.node)]
        self._park(pod)
        decision, work = self._preemptor.preempt(demand, decision, claims)
        return [*work, self._refuse(pod, decision)]

    def _storage(self) -> StorageObjects:
        users = self._state.claim_users
        return StorageObjects(self._claims.objects, self._volumes.objects, self._classes.objects, users)

    def _park(self, pod: Pod) -> None:
        self._parked[pod.metadata.uid] = pod
        self._queue.add_after("parked", _AGAIN_S)

    async def _select_node(self, claim: PersistentVolumeClaim, node: str) -> None:
        """Names the node of the first pod in a claim that waits for it; the claim's next event brings the pod back."""
        meta = claim.metadata
        if meta.annotations.get(SELECTED_NODE) == node:
            return
        body = {"metadata": {"uid": meta.uid, "annotations": {SELECTED_NODE: node}}}
        await self._client.patch(PERSISTENTVOLUMECLAIMS, meta.name, body, meta.namespace)

    async def _bind(self, demand: PodDemand, node: str) -> None:
        meta = demand.pod.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self._client.create(PODS, body, meta.namespace, name=meta.name, subresource="binding")
        except API_FAILURES as failure:
            self._take_back(meta)
            delay_s = self._queue.retry(key_of(meta))
            write = self._log.debug if isinstance(failure, NotFound | Conflict) else self._log.warning
            write("cannot bind the pod; trying again", pod=key_of(meta), problem=failure, retry_s=f"{delay_s:.2f}")
            return
        self._queue.forget(key_of(meta))
        message = f"Successfully assigned {key_of(meta)} to {node}"
        self._recorder.event(_subject(meta), "Normal", "Scheduled", message)

    def _take_back(self, meta: ObjectMeta) -> None:
        """Corrects the state after a failed binding; the pod may be bound when only the answer was lost."""
        pod = self._pods.get(key_of(meta))
        if pod is not None and pod.metadata.uid == meta.uid and pod.spec.node_name and not pod.finished:
            self._state.put_pod(pod_demand(pod), pod.spec.node_name)
        else:
            self._state.drop_pod(meta.uid)
            self._unpark()

    async def _refuse(self, pod: Pod, decision: SchedulingDecision) -> None:
        """Writes why no node can take the pod, and the node for which the pod is nominated."""
        meta = pod.metadata
        if self._refusals.get(meta.uid) == (decision.sentence, decision.node):
            return
        self._refusals[meta.uid] = (decision.sentence, decision.node)
        self._recorder.event(_subject(meta), "Warning", "FailedScheduling", decision.sentence)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": decision.sentence,
            "lastTransitionTime": _since(pod) or rfc3339(self._clock.now()),
        }
        status = {"conditions": [condition], "nominatedNodeName": decision.node or None}
        body = {"metadata": {"uid": meta.uid}, "status": status}
        try:
            await self._client.patch(
                PODS, meta.name, body, meta.namespace, subresource="status", patch_type=STRATEGIC_MERGE_PATCH
            )
        except (NotFound, Conflict):
            return


def _order(pod: Pod) -> tuple[int, str, str]:
    return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.metadata.name)


def _ours(pod: Pod) -> bool:
    return pod.spec.scheduler_name in ("", NAME) and not pod.spec.scheduling_gates


def _scheduling_fields(node: Node) -> tuple[object, ...]:
    """The fields of a node whose change can make a pod fit."""
    spec = node.spec
    taints = tuple((taint.key, taint.value, taint.effect) for taint in spec.taints)
    return node.metadata.labels, spec.unschedulable, taints, node.status.allocatable, node.status.capacity


def _changed(old: Pod, new: Pod) -> bool:
    return (
        old.metadata.labels != new.metadata.labels
        or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        or old.metadata.generation != new.metadata.generation  # A resize has changed the requests.
    )


def _since(pod: Pod) -> str:
    before: tuple[Condition, ...] = tuple(c for c in pod.status.conditions if c.type == "PodScheduled")
    return (before[0].last_transition_time or "") if before and before[0].status == "False" else ""


def _subject(meta: ObjectMeta) -> ObjectReference:
    return ObjectReference(
        api_version="v1",
        kind="Pod",
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )
