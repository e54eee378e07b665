"""Ends containers and pods: hooks, SIGTERM, grace, SIGKILL, and then everything that the pod had on the node.

Order on deletion: the main containers together (preStop hook, SIGTERM, wait, SIGKILL when the grace period is over),
then sidecars one by one from the last to the first within what is left of it, then shim, cgroup, CNI DEL, namespace,
then the object (grace 0, by uid), then the directory. A deletion that is repeated with a shorter grace, or an object
that is gone, hurries what is under way. A CNI DEL that fails is repeated; the object stays until it succeeds, so that
an address is not forgotten.
"""

import asyncio
import math
import shutil
import signal
from typing import TYPE_CHECKING

from podwire.embedded.kubelet.lifecycle import State
from podwire.errors import ApiError, ApiUnreachable, ClusterError, NotFound, ProtocolError
from podwire.kube.resources import PODS
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import parse_rfc3339

if TYPE_CHECKING:
    from podwire.embedded.kubelet.worker import PodWorker

_DEFAULT_GRACE_S = 30
_MIN_HOOK_S = 2.0
_KILL_WAIT_S = 10.0


class Stopper:
    """Everything about one pod's end."""

    def __init__(self, worker: "PodWorker") -> None:
        self._worker = worker
        self._log = Log("kubelet.pod")
        self._hurry = asyncio.Event()
        self._backoff = Backoff(0.5, 15.0)
        self._stopping: set[str] = set()
        self._asked: tuple[str | None, int | None] = (None, None)
        self._until = math.inf
        self.busy = False
        """Whether the pod is on its way out."""

    def hurry(self) -> None:
        """The object changed: whoever waits looks at the deadline again."""
        self._hurry.set()

    def _deadline(self) -> float:
        """When SIGKILL comes, on the monotonic clock."""
        worker = self._worker
        now = worker.now()
        if worker.gone:
            return now
        meta = worker.pod.metadata
        if meta.deletion_timestamp is None:
            return now + self._grace_s()
        asked = (meta.deletion_timestamp, meta.deletion_grace_period_seconds)
        if asked != self._asked:
            # The time stamp has whole seconds, rounded down; the grace period counts from when we see it.
            left = (parse_rfc3339(meta.deletion_timestamp) - worker.around.clock.now()).total_seconds() + 1.0
            grace = max(0.0, min(left, float(meta.deletion_grace_period_seconds or 0)))
            self._asked, self._until = asked, min(self._until, now + grace)
        return self._until

    def _grace_s(self) -> float:
        grace = self._worker.pod.spec.termination_grace_period_seconds
        return float(_DEFAULT_GRACE_S if grace is None else grace)

    # -- one container

    def stop_unwell(self, state: State, reason: str) -> None:
        """Stops a container that its probe or hook condemned; it is started again as its policy says."""
        name = state.spec.name
        if name in self._stopping or self.busy:
            return
        self._worker.event("Normal", "Killing", f"Container {name}: {reason}", state.spec)
        self._worker.around.tasks_start("stop", self._stop, state)

    async def _stop(self, state: State, *, hooks: bool = True) -> None:
        """Stops one container; returns when it has ended, or cannot be ended."""
        name = state.spec.name
        if name in self._stopping:
            await self._worker.exits[name].wait()
            return
        self._stopping.add(name)
        try:
            grace_end = self._deadline()
            if hooks:
                await self._pre_stop(state, grace_end - self._worker.now())
            await self._signal(state, signal.SIGTERM)
            if not await self._ended(state, grace_end):
                await self._signal(state, signal.SIGKILL)
                await self._ended(state, self._worker.now() + _KILL_WAIT_S)
        finally:
            self._stopping.discard(name)

    async def _pre_stop(self, state: State, left_s: float) -> None:
        hook = state.spec.lifecycle.pre_stop if state.spec.lifecycle is not None else None
        prober = self._worker.probers.get(state.spec.name)
        if hook is None or prober is None or left_s <= 0:
            return
        outcome = await prober.run_hook(hook, max(_MIN_HOOK_S, left_s))
        if not outcome.success:
            self._worker.event("Warning", "FailedPreStopHook", f"PreStopHook failed: {outcome.message}", state.spec)

    async def _signal(self, state: State, number: int) -> None:
        client = self._worker.sandbox.client
        if client is not None and state.running:
            try:
                await client.signal(state.spec.name, number)
            except ClusterError as failure:
                self._log.warning("signal not sent", container=state.spec.name, problem=failure)

    async def _ended(self, state: State, deadline: float) -> bool:
        """Waits until the container has ended; the deadline moves forward when the object says so."""
        worker = self._worker
        while state.running and worker.sandbox.up:
            if worker.gone or worker.pod.metadata.deletion_timestamp is not None:
                deadline = min(deadline, self._deadline())
            left = deadline - worker.now()
            if left <= 0:
                return False
            self._hurry.clear()
            tasks = [worker.around.tasks.start("exit", worker.exits[state.spec.name].wait())]
            tasks.append(worker.around.tasks.start("hurry", self._hurry.wait()))
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        return True

    # -- the pod

    async def _stop_all(self) -> None:
        worker = self._worker
        mains = [s for s in worker.states.values() if s.running and not s.sidecar]
        sidecars = [s for s in worker.states.values() if s.running and s.sidecar]
        for state in (*mains, *sidecars):
            worker.event("Normal", "Killing", f"Stopping container {state.spec.name}", state.spec)
        await asyncio.gather(*(self._stop(state) for state in mains))
        for state in reversed(sidecars):
            await self._stop(state)

    async def rest(self) -> None:
        """Takes a pod that has succeeded or failed off the network; its records and logs stay."""
        self.busy = True
        await self._stop_all()
        if self._worker.sandbox.record.sandbox and not await self._worker.sandbox.remove():
            self._worker.wake_in(self._backoff.next_delay_s())

    async def terminate(self) -> bool:
        """Ends a pod that is being deleted; False when something has to be tried again."""
        worker = self._worker
        self.busy = True
        await self._stop_all()
        if not await worker.sandbox.remove():
            worker.wake_in(self._backoff.next_delay_s())
            return False
        if not worker.gone:
            if worker.pod.metadata.finalizers:
                await worker.report(urgent=True)
            if not await self._delete_object():
                worker.wake_in(self._backoff.next_delay_s())
                return False
        shutil.rmtree(worker.sandbox.directory, ignore_errors=True)
        shutil.rmtree(worker.around.ground.run / "memory" / worker.pod.metadata.uid, ignore_errors=True)
        return True

    async def _delete_object(self) -> bool:
        meta = self._worker.pod.metadata
        try:
            await self._worker.around.client.delete(PODS, meta.name, meta.namespace, grace_period_s=0, uid=meta.uid)
        except NotFound:
            return True
        except ApiError as failure:
            if failure.code == 409:  # Another pod has the name by now.
                return True
            self._log.warning("pod not deleted", pod=f"{meta.namespace}/{meta.name}", problem=failure)
            return False
        except (ApiUnreachable, ProtocolError) as failure:
            self._log.warning("pod not deleted", pod=f"{meta.namespace}/{meta.name}", problem=failure)
            return False
        return True
