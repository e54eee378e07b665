"""Replaces the pods of a workload: node by node, or by the rolling update of its controller."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from podwire.errors import ClusterError, ConfigError
from podwire.kube.podruns import PodRuns, is_ready
from podwire.kube.resources import Json
from podwire.upgrade.apply import stepchanges
from podwire.upgrade.apply.gates import Breach
from podwire.upgrade.apply.leaving import LeavingPods
from podwire.upgrade.apply.objects import ObjectName, UpgradeObjects, is_current
from podwire.upgrade.nodecommands import NodeCommands

Say = Callable[[str], None]
_POLL_S = 0.3


class Rollout:
    """Replaces pods; ``timeout_s`` is the time for one pod to be ready."""

    def __init__(self, objects: UpgradeObjects, commands: NodeCommands | None, say: Say, timeout_s: float) -> None:
        self._objects = objects
        self._commands = commands
        self._say = say
        self._timeout_s = timeout_s

    async def revision(self, target: ObjectName) -> str:
        """The revision of a DaemonSet's template, when its controller has seen it.

        Raises: Breach when the controller does not.
        """
        revisions: list[str] = []

        async def observed() -> bool:
            revisions.append(await self._objects.revision(await self._objects.get(target)))
            return bool(revisions[-1])

        await self._until(observed, f"the controller has not seen the template of {target.name}")
        return revisions[-1]

    async def outdated(self, target: ObjectName) -> list[str]:
        """The nodes on which a pod of another revision runs, by name."""
        revision = await self.revision(target)
        pods = await self._objects.pods_of(await self._objects.get(target))
        return sorted({str(pod["spec"]["nodeName"]) for pod in pods if not is_current(pod, revision)})

    async def replace(self, step: str, target: ObjectName, nodes: Sequence[str], held: Sequence[str]) -> None:
        """Replaces the pods of a DaemonSet on nodes, all at the same time; pods of the template of now stay.

        ``held`` are nodes whose configuration is held since an earlier run.

        Raises: Breach naming each node that failed.
        """
        revision = await self.revision(target)
        workload = await self._objects.get(target)
        failures = await asyncio.gather(
            *(self._replace_on(step, workload, revision, node, node in held) for node in nodes), return_exceptions=True
        )
        breaches = [failure for failure in failures if isinstance(failure, Breach)]
        for failure in failures:
            if isinstance(failure, BaseException) and failure not in breaches:
                raise failure
        if breaches:
            raise Breach("; ".join(map(str, breaches)))

    async def _replace_on(self, step: str, workload: Json, revision: str, node: str, held: bool) -> None:
        pods = await self._objects.pods_of(workload, node)
        if not held and (any(is_current(pod, revision) for pod in pods) or _runs_nowhere(workload)):
            return
        commands = self._commands
        if commands is not None and stepchanges.is_cni(workload, commands.folders.conf_dir):
            if not held:
                await self._objects.write_held(step, node, held=True)
            try:
                await commands.run(node, ["hold"])
            except ClusterError as failure:
                raise Breach(str(failure)) from failure
            held = True
        await self._until(lambda: self._renewed(workload, revision, node), f"{node}: the new pod is not ready")
        if held:
            await self.release(step, node)
        self._say(f"{node}: {workload['metadata']['name']} is new")

    async def release(self, step: str, node: str) -> None:
        """Takes back the hold of a node's network configuration.

        Raises: Breach when the new configuration cannot take its place.
        """
        if self._commands is None:
            raise ConfigError(
                "--node-image", "", f"{node}: its network configuration is held; name an image with podwire"
            )
        try:
            await self._commands.run(node, ["release"])
        except ClusterError as failure:
            raise Breach(str(failure)) from failure
        await self._objects.write_held(step, node, held=False)

    async def _renewed(self, workload: Json, revision: str, node: str) -> bool:
        """Ends pods of other revisions; whether one of this revision is ready."""
        pods = await self._objects.pods_of(workload, node)
        for pod in pods:
            label = (pod["metadata"].get("labels") or {}).get("controller-revision-hash")
            if label != revision and "deletionTimestamp" not in pod["metadata"]:
                await self._objects.delete_pod(pod)
        return any(is_current(pod, revision) for pod in pods)

    async def roll(self, target: ObjectName) -> None:
        """Waits until all pods of a workload are made from its template, and available.

        Pods of a DNS server that end meanwhile are taken out of their Services first (:class:`LeavingPods`).

        Raises: Breach when the rollout comes no further for the time of one pod. A pod that gets ready and fails again
        and again is no progress.
        """
        clock, leaving = self._objects.client.clock, LeavingPods(self._objects.client)
        until = clock.monotonic() + self._timeout_s
        furthest: int | None = None
        while True:
            workload = await self._objects.get(target)
            are_leaving = workload["kind"] == "Deployment" and await leaving.take_out(workload)
            progress = rollout_progress(workload)
            if progress is None and (not are_leaving or clock.monotonic() > until):
                return
            if progress is not None:
                _, new, available, old = progress
                if furthest is None or new + available - old > furthest:
                    until, furthest = clock.monotonic() + self._timeout_s, new + available - old
                elif clock.monotonic() > until:
                    meaning = "pods wanted, new, available, old"
                    numbers = ", ".join(map(str, progress))
                    problem = f"{target.kind} {target.namespace}/{target.name} makes no progress"
                    raise Breach(f"{problem} for {self._timeout_s:.0f} s ({meaning}: {numbers})")
            await clock.sleep(_POLL_S)

    async def canary(self, pod: Json) -> tuple[str, str]:
        """Runs a pod of the new template that serves nobody; its node and address when it is ready.

        Raises: Breach when it does not get ready.
        """
        name = pod["metadata"]["name"]
        runs = PodRuns(self._objects.client, pod["metadata"]["namespace"])
        await runs.ensure_pod(pod)
        ready: list[Json] = []

        async def reached() -> bool:
            present = await runs.pod(name)
            if present is not None and is_ready(present):
                ready.append(present)
            return bool(ready)

        await self._until(reached, f"the pod {name} of the new template is not ready")
        return str(ready[0]["spec"]["nodeName"]), str(ready[0]["status"]["podIP"])

    async def end_canary(self, target: ObjectName) -> None:
        """Deletes the pod of :meth:`canary`, if it is there."""
        await PodRuns(self._objects.client, target.namespace).delete_pod(stepchanges.canary_name(target.name))

    async def _until(self, reached: Callable[[], Awaitable[bool]], problem: str) -> None:
        try:
            await self._objects.runs.until(reached, problem, self._timeout_s)
        except ClusterError as failure:
            raise Breach(str(failure)) from failure


def _runs_nowhere(daemonset: Json) -> bool:
    """Whether no node should run a DaemonSet, such as kube-proxy beside a network that replaces it."""
    return (daemonset.get("status") or {}).get("desiredNumberScheduled") == 0


def rollout_progress(workload: Json) -> tuple[int, int, int, int] | None:
    """Pods that are wanted, new, available and old; None when the workload is rolled out."""
    status, spec = workload.get("status") or {}, workload["spec"]
    observed = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    if workload["kind"] == "DaemonSet":
        expected = int(status.get("desiredNumberScheduled", 0))
        new, available = int(status.get("updatedNumberScheduled", 0)), int(status.get("numberAvailable", 0))
        old = 0
    else:
        expected = int(spec.get("replicas", 1))
        new, available = int(status.get("updatedReplicas", 0)), int(status.get("availableReplicas", 0))
        old = int(status.get("replicas", 0)) - new
    progress = (expected, new, available, old)
    return None if observed and new == expected and available == expected and old == 0 else progress
