"""Watches nodes that are added, that stop their heartbeats or that are deleted; ``nodehealth`` makes the decisions.

Guarantees:

1. When a node's Lease was not renewed for 40 s, the node's Ready condition becomes Unknown and its pods' becomes False.
2. A node that is not ready for one second gets taints; a node that is ready again loses them.
3. Pods are deleted from a node with NoExecute taints when their tolerations end.
4. Pods of a node that has not existed for ten seconds are deleted at once.
5. In the first 40 s after the start, and after the API was unreachable, no node counts as silent, because its
   heartbeats could not be observed before. A request every 5 s checks that the API answers.
"""

import asyncio
from typing import Any

import msgspec

from podwire.embedded.workloads import nodehealth
from podwire.embedded.workloads.podstate import seconds_since
from podwire.errors import ApiUnreachable, NotFound
from podwire.kube.client import STRATEGIC_MERGE_PATCH
from podwire.kube.controller import Environment
from podwire.kube.events import reference
from podwire.kube.index import Index
from podwire.kube.resources import LEASES, NODES, PODS
from podwire.model.node import Lease, Node
from podwire.model.pod import Pod
from podwire.runtime.clock import rfc3339
from podwire.runtime.supervise import Supervisor
from podwire.runtime.workqueue import in_parallel

_SETTLE_S = 1.0
_LEASES = "kube-node-lease"


class NodeTimes(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Time limits for nodes without heartbeats and for deleted nodes."""

    grace_s: float = 40.0
    """A node whose Lease was not renewed for this long is not ready."""
    missing_s: float = 10.0
    """Pods of a node that has not existed for this long are deleted."""
    contact_s: float = 5.0
    """Seconds between two checks that the API answers, and the time limit of each check."""


class NodeLifecycleController:
    """Keeps the conditions and taints of nodes current, and deletes the pods that must leave a node."""

    def __init__(self, environment: Environment, times: NodeTimes) -> None:
        self._times = times
        self._client = environment.client
        self._clock = environment.clock
        self._recorder = environment.recorder("node-controller")
        self._nodes = environment.of(NODES)
        self._leases = environment.of(LEASES)
        self._pods: Index[Pod] = Index(environment.of(PODS), _node_names)
        self._heard: dict[str, float] = {}
        self._in_contact_since: float | None = None
        self._missing: dict[str, float] = {}
        self._loop = environment.loop("nodelifecycle", self._reconcile)
        self._nodes.subscribe(self._node_changed)
        self._leases.subscribe(self._lease_changed)
        environment.of(PODS).subscribe(self._pod_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop; the grace period of every node starts now."""
        now = self._clock.monotonic()
        self._heard = dict.fromkeys(self._nodes.objects, now)
        self._in_contact_since = now
        self._loop.start(supervisor, workers=2)
        supervisor.start("nodelifecycle contact", self._keep_contact)

    async def _keep_contact(self) -> None:
        """Records since when the API answers and Leases are watched; before that no heartbeat counts as missing."""
        while True:
            try:
                async with asyncio.timeout(self._times.contact_s):
                    answered = (await self._client.raw("GET", "/readyz")).status < 500
            except (ApiUnreachable, TimeoutError):
                answered = False
            if not (answered and self._leases.connected):
                self._in_contact_since = None
            elif self._in_contact_since is None:
                self._in_contact_since = self._clock.monotonic()
            await self._clock.sleep(self._times.contact_s)

    def _silent_s(self, name: str) -> float:
        """Seconds since a node's last heartbeat, counted only while heartbeats could be observed."""
        now = self._clock.monotonic()
        heard = self._heard.setdefault(name, now)
        return 0.0 if self._in_contact_since is None else now - max(heard, self._in_contact_since)

    def _node_changed(self, key: str, old: Node | None, new: Node | None) -> None:
        if new is None:
            self._heard.pop(key, None)
            self._missing[key] = self._clock.monotonic()
            self._loop.queue.add_after(key, self._times.missing_s)
            return
        self._missing.pop(key, None)
        if old is None or old.status != new.status:
            self._record_heartbeat(key)
        if old is None or _relevant_fields(old) != _relevant_fields(new):
            self._loop.touch(key)

    def _lease_changed(self, key: str, _old: Lease | None, new: Lease | None) -> None:
        namespace, _, name = key.partition("/")
        if namespace == _LEASES and new is not None:
            self._record_heartbeat(name)

    def _record_heartbeat(self, name: str) -> None:
        self._heard[name] = self._clock.monotonic()

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        if new is None or not new.spec.node_name:
            return
        if old is not None and old.spec.node_name and old.metadata.uid == new.metadata.uid:
            return
        node = self._nodes.get(new.spec.node_name)
        if node is None:
            # At the start of the controller the pod may arrive before its node; otherwise its node was deleted.
            self._missing.setdefault(new.spec.node_name, self._clock.monotonic())
            self._loop.queue.add_after(new.spec.node_name, self._times.missing_s)
        elif any(taint.effect == "NoExecute" for taint in node.spec.taints):
            self._loop.touch(new.spec.node_name)

    async def _reconcile(self, key: str) -> None:
        node = self._nodes.get(key)
        if node is None:
            await self._collect(key)
            return
        now = self._clock.now()
        silent_s = self._silent_s(key)
        if silent_s < self._times.grace_s:
            self._loop.queue.add_after(key, self._times.grace_s - silent_s + 0.1)
        elif (conditions := nodehealth.lost_conditions(node, now)) is not None:
            await self._mark_lost(node, msgspec.to_builtins(conditions))
            return
        if nodehealth.ready_status(node) == "Unknown":
            await self._mark_pods(key)
        if self._settling(node):
            self._loop.queue.add_after(key, _SETTLE_S)
            return
        taints = nodehealth.taints(node, now)
        if taints != node.spec.taints:
            body = {
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "spec": {"taints": msgspec.to_builtins(taints)},
            }
            await self._client.patch(NODES, key, body)
            return
        await self._evict(node)

    def _settling(self, node: Node) -> bool:
        """Whether a node has been not ready for less than a second, as every new node is at first."""
        if nodehealth.ready_status(node) != "False":
            return False
        ready = next(c for c in node.status.conditions if c.type == "Ready")
        return seconds_since(ready.last_transition_time, self._clock.now()) < _SETTLE_S

    async def _mark_lost(self, node: Node, conditions: Any) -> None:
        name = node.metadata.name
        await self._client.patch(NODES, name, {"status": {"conditions": conditions}}, subresource="status")
        subject = reference("v1", "Node", node.metadata)
        self._recorder.event(subject, "Normal", "NodeNotReady", f"Node {name} status is now: NodeNotReady")
        await self._mark_pods(name)

    async def _mark_pods(self, name: str) -> None:
        """Marks the pods of a node as not ready.

        Raises: the first failure; the next run for the node marks the other pods.
        """
        for failure in await in_parallel(self._mark_unready(pod) for pod in self._pods.of(name).values()):
            raise failure

    async def _mark_unready(self, pod: Pod) -> None:
        conditions = nodehealth.unready_pod(pod, self._clock.now())
        if conditions is None:
            return
        await self._patch_conditions(pod, msgspec.to_builtins(conditions))

    async def _evict(self, node: Node) -> None:
        taints = node.spec.taints
        if not any(taint.effect == "NoExecute" for taint in taints):
            return
        soonest: float | None = None
        for pod in list(self._pods.of(node.metadata.name).values()):
            if pod.metadata.deletion_timestamp is not None or pod.finished:
                continue
            left_s = nodehealth.eviction_in_s(pod, taints, self._clock.now())
            if left_s == 0.0:
                await self._mark(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
                await self._delete(pod)
                message = f"Marking for deletion Pod {pod.metadata.namespace}/{pod.metadata.name}"
                subject = reference("v1", "Pod", pod.metadata)
                self._recorder.event(subject, "Normal", "TaintManagerEviction", message)
            elif left_s is not None:
                soonest = left_s if soonest is None else min(soonest, left_s)
        if soonest is not None:
            self._loop.queue.add_after(node.metadata.name, soonest)

    async def _collect(self, name: str) -> None:
        """Deletes the pods of a deleted node with grace period 0, because no kubelet can stop them."""
        since = self._missing.get(name)
        if since is None:
            return
        left_s = self._times.missing_s - (self._clock.monotonic() - since)
        if left_s > 0:
            self._loop.queue.add_after(name, left_s)
            return
        for pod in list(self._pods.of(name).values()):
            if not pod.finished:
                await self._mark(pod, "DeletionByPodGC", "PodGC: node no longer exists")
            await self._delete(pod, grace_period_s=0)
        self._missing.pop(name, None)

    async def _mark(self, pod: Pod, reason: str, message: str) -> None:
        """Sets the condition ``DisruptionTarget``: a disruption ends the pod, not a failure of its own."""
        condition = {
            "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": rfc3339(self._clock.now()),
        }  # fmt: skip
        await self._patch_conditions(pod, [condition])

    async def _patch_conditions(self, pod: Pod, conditions: list[Any]) -> None:
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": {"conditions": conditions}}
        try:
            await self._client.patch(
                PODS, meta.name, body, meta.namespace, subresource="status", patch_type=STRATEGIC_MERGE_PATCH
            )
        except NotFound:
            return

    async def _delete(self, pod: Pod, grace_period_s: int | None = None) -> None:
        meta = pod.metadata
        try:
            await self._client.delete(PODS, meta.name, meta.namespace, grace_period_s=grace_period_s, uid=meta.uid)
        except NotFound:
            return


def _node_names(pod: Pod) -> tuple[str, ...]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _relevant_fields(node: Node) -> tuple[object, ...]:
    return nodehealth.ready_status(node), node.spec.taints, node.spec.unschedulable
