"""Stops containers: preStop hook, SIGTERM, grace period, SIGKILL.

When a pod ends, its main containers are stopped together. Then its sidecars are stopped one by one, from the last to
the first, in the rest of the grace period. SIGKILL follows when the grace period is over. A second deletion with a
shorter grace period, or the removal of the object, shortens a stop that has begun.
"""

import asyncio
import math
import signal

from podwire.embedded.kubelet.hooks import Hooks
from podwire.embedded.kubelet.lifecycle import ContainerState
from podwire.embedded.kubelet.podstate import PodState
from podwire.errors import ClusterError
from podwire.observe.log import Log
from podwire.runtime.clock import parse_rfc3339

_DEFAULT_GRACE_S = 30
_MIN_HOOK_S = 2.0
_KILL_WAIT_S = 10.0


class Stopper:
    """Stops the containers of one pod."""

    def __init__(self, state: PodState) -> None:
        self._state = state
        self._log = Log("kubelet.pod")
        self._hurry = asyncio.Event()
        self._stopping: set[str] = set()
        self._deletion: tuple[str | None, int | None] = (None, None)
        self._until = math.inf

    def hurry(self) -> None:
        """Makes running stops compute their deadline again, because the object has changed."""
        self._hurry.set()

    def _deadline(self) -> float:
        """The monotonic time of SIGKILL."""
        state = self._state
        now = state.now()
        if state.gone:
            return now
        meta = state.pod.metadata
        if meta.deletion_timestamp is None:
            return now + self._grace_s()
        deletion = (meta.deletion_timestamp, meta.deletion_grace_period_seconds)
        if deletion != self._deletion:
            # The deletion time is rounded down to seconds; the grace period starts when the kubelet sees the deletion.
            remaining_s = (parse_rfc3339(meta.deletion_timestamp) - state.node.clock.now()).total_seconds() + 1.0
            grace = max(0.0, min(remaining_s, float(meta.deletion_grace_period_seconds or 0)))
            self._deletion, self._until = deletion, min(self._until, now + grace)
        return self._until

    def _grace_s(self) -> float:
        grace = self._state.pod.spec.termination_grace_period_seconds
        return float(_DEFAULT_GRACE_S if grace is None else grace)

    def stop_unhealthy(self, container: ContainerState, reason: str) -> None:
        """Stops a container whose probe or hook failed; its restart policy decides whether it starts again."""
        name = container.spec.name
        if name in self._stopping or self._state.leaving:
            return
        self._state.event("Normal", "Killing", f"Container {name}: {reason}", container.spec)
        self._state.node.start_task("stop", self._stop, container)

    async def _stop(self, container: ContainerState) -> None:
        """Stops one container; returns when it has ended, or 10 seconds after SIGKILL."""
        name = container.spec.name
        if name in self._stopping:
            await self._state.exits[name].wait()
            return
        self._stopping.add(name)
        try:
            grace_end = self._deadline()
            await self._pre_stop(container, grace_end - self._state.now())
            await self._signal(container, signal.SIGTERM)
            if not await self._ended(container, grace_end):
                await self._signal(container, signal.SIGKILL)
                await self._ended(container, self._state.now() + _KILL_WAIT_S)
        finally:
            self._stopping.discard(name)

    async def _pre_stop(self, container: ContainerState, left_s: float) -> None:
        state, spec = self._state, container.spec
        hook = spec.lifecycle.pre_stop if spec.lifecycle is not None else None
        if hook is None or not container.running or container.ephemeral or left_s <= 0:
            return
        hooks = Hooks(spec, state.command_context(spec.name), state.target, state.node.clock)
        outcome = await hooks.run(hook, max(_MIN_HOOK_S, left_s))
        if not outcome.success:
            state.event("Warning", "FailedPreStopHook", f"PreStopHook failed: {outcome.message}", spec)

    async def _signal(self, container: ContainerState, number: int) -> None:
        client, name = self._state.sandbox.client, container.spec.name
        if client is not None and container.running:
            try:
                await client.signal(name, number)
            except ClusterError as failure:
                self._log.warning("cannot send the signal", container=name, signal=number, problem=failure)

    async def _ended(self, container: ContainerState, deadline: float) -> bool:
        """Waits for the container's end; False at the deadline, which a change of the object may make earlier."""
        state, tasks = self._state, self._state.node.tasks
        while container.running and state.sandbox.up:
            if state.deleting:
                deadline = min(deadline, self._deadline())
            remaining_s = deadline - state.now()
            if remaining_s <= 0:
                return False
            self._hurry.clear()
            waits = [
                tasks.start("exit", state.exits[container.spec.name].wait()),
                tasks.start("hurry", self._hurry.wait()),
            ]
            await asyncio.wait(waits, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
        return True

    async def stop_all(self) -> None:
        """Stops all containers of the pod; returns when they have ended, or 10 seconds after SIGKILL."""
        state = self._state
        mains = [c for c in state.containers.values() if c.running and not c.sidecar]
        sidecars = [c for c in state.containers.values() if c.running and c.sidecar]
        for container in (*mains, *sidecars):
            state.event("Normal", "Killing", f"Stopping container {container.spec.name}", container.spec)
        await asyncio.gather(*(self._stop(container) for container in mains))
        for container in reversed(sidecars):
            await self._stop(container)
