"""Waiting until a cluster's nodes and the applied workloads are ready.

Informers on nodes, pods and the workload kinds feed one condition, so the wait costs no polling. Ready means what
``kubectl rollout status`` means: the controller has seen the object's generation, and all replicas are updated and
available.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import DAEMONSETS, DEPLOYMENTS, NODES, PODS, STATEFULSETS, Json, Resource
from podwire.model.pod import Pod
from podwire.observe.log import Log
from podwire.runtime.tasks import TaskSet

_KINDS: dict[str, Resource[Json]] = {
    "Deployment": DEPLOYMENTS.raw,
    "StatefulSet": STATEFULSETS.raw,
    "DaemonSet": DAEMONSETS.raw,
}


_SPEAKING = ("CrashLoopBackOff", "ContainerCreating", "PodInitializing")
"""Reasons whose messages have no information besides names and times."""


class Waiting:
    """Waits for the named nodes and for the workloads among ``applied`` (objects as stored)."""

    def __init__(self, client: Client, nodes: Iterable[str], applied: Iterable[Json], *, network: bool = True) -> None:
        """Without ``network`` a node cannot be Ready: it is enough that its kubelet has registered it."""
        self._log = Log("up")
        self._network = network
        self._expected_nodes = frozenset(nodes)
        self._objects_by_kind: dict[str, list[str]] = {}
        for obj in applied:
            kind, meta = obj["kind"], obj["metadata"]
            if kind in _KINDS or kind == "Pod":
                self._objects_by_kind.setdefault(kind, []).append(f"{meta.get('namespace', '')}/{meta['name']}")
        self._changed = asyncio.Event()
        self._nodes = Informer(client, NODES)
        self._pods = Informer(client, PODS)
        self._workloads = {kind: Informer(client, _KINDS[kind]) for kind in self._objects_by_kind if kind in _KINDS}

    @property
    def workloads(self) -> int:
        """The number of workloads to wait for."""
        return sum(len(keys) for keys in self._objects_by_kind.values())

    async def until_ready(self, timeout_s: float) -> list[str]:
        """Waits until all is ready, or until the time is over; returns what is not ready, with the reason."""
        informers: list[Informer[Any]] = [self._nodes, self._pods, *self._workloads.values()]
        tasks = TaskSet(self._report)
        for informer in informers:
            informer.subscribe(lambda *_: self._changed.set())
            tasks.start(informer.resource.plural, informer.run())
        try:
            async with asyncio.timeout(timeout_s):
                for informer in informers:
                    await informer.synced.wait()
                while self._late():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            await tasks.close()
        return self._late()

    def _report(self, name: str, failure: BaseException) -> None:
        self._log.error("watch failed", failure=failure, watch=name)

    def _late(self) -> list[str]:
        nodes = self._nodes.objects.items()
        ready = self._expected_nodes & {name for name, node in nodes if node.ready or not self._network}
        late = [] if ready == self._expected_nodes else [f"nodes: {len(ready)} of {len(self._expected_nodes)} Ready"]
        for kind, keys in self._objects_by_kind.items():
            for key in keys:
                problem = self._pod_problem(key) if kind == "Pod" else self._workload_problem(kind, key)
                if problem:
                    late.append(f"{kind} {key}: {problem}")
        return late

    def _pod_problem(self, key: str) -> str:
        pod = self._pods.objects.get(key)
        if pod is None:
            return "not created"
        return "" if pod.ready or pod.status.phase == "Succeeded" else why_not_ready(pod)

    def _workload_problem(self, kind: str, key: str) -> str:
        obj = self._workloads[kind].objects.get(key)
        if obj is None:
            return "not there"
        problem = _PROBLEMS[kind](obj)
        if not problem:
            return ""
        mine = (p for p in self._pods.objects.values() if _belongs(p, key) and not p.ready and not p.finished)
        reasons = sorted({why_not_ready(p) for p in mine})
        return problem + (f" ({'; '.join(reasons)})" if reasons else "")


def _belongs(pod: Pod, key: str) -> bool:
    namespace, _, name = key.partition("/")
    return pod.metadata.namespace == namespace and pod.metadata.name.startswith(f"{name}-")


def why_not_ready(pod: Pod) -> str:
    """The most specific reason why a pod is not Ready."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.get("waiting")
        if waiting and waiting.get("reason"):
            message = "" if waiting["reason"] in _SPEAKING else waiting.get("message", "")
            return f"container {status.name}: {waiting['reason']}" + (f": {message}" if message else "")
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason
    return f"pod {pod.metadata.name} is {pod.status.phase or 'new'}, not Ready"


def _observed(obj: Json) -> bool:
    return bool(obj.get("status", {}).get("observedGeneration", 0) >= obj["metadata"].get("generation", 0))


def _deployment_problem(obj: Json) -> str:
    status = obj.get("status", {})
    return _count_problem(obj, status.get("updatedReplicas", 0), status.get("availableReplicas", 0))


def _statefulset_problem(obj: Json) -> str:
    status = obj.get("status", {})
    return _count_problem(obj, status.get("updatedReplicas", 0), status.get("readyReplicas", 0))


def _count_problem(obj: Json, updated: int, available: int) -> str:
    replicas = obj["spec"].get("replicas", 1)
    if _observed(obj) and updated >= replicas and available >= replicas:
        return ""
    return f"{min(updated, available)} of {replicas} replicas available"


def _daemonset_problem(obj: Json) -> str:
    status = obj.get("status", {})
    desired, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    updated = status.get("updatedNumberScheduled", 0)
    if _observed(obj) and min(ready, updated) >= desired > 0:
        return ""
    return f"{ready} of {desired} pods ready"


_PROBLEMS: dict[str, Callable[[Json], str]] = {
    "Deployment": _deployment_problem,
    "StatefulSet": _statefulset_problem,
    "DaemonSet": _daemonset_problem,
}
