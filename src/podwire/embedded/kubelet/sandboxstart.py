"""Starts the sandbox of a pod; after a failure the next try follows after a growing delay."""

import asyncio

import msgspec

from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.reporter import StatusReporter
from podwire.embedded.kubelet.sandbox import explain
from podwire.errors import ClusterError, CniError, KernelError
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import rfc3339

_SLOW_START_S = 1.0
_NETWORK_S = 0.1


class SandboxStarter:
    """Starts the sandbox of one pod."""

    def __init__(self, state: PodState, reporter: StatusReporter) -> None:
        self._state = state
        self._reporter = reporter
        self._backoff = Backoff(0.5, 30.0)

    async def start(self) -> bool:
        """Creates the sandbox; False when the network is not ready or a step failed: call again after the wake-up.

        When the start takes longer than a second, the pod's status is reported in the meantime.
        """
        state, node = self._state, self._state.node
        sandbox = state.sandbox
        if node.host.network.problem is not None and not state.pod.spec.host_network:
            state.wakeup.wake_in(_NETWORK_S)
            await self._reporter.report()
            return False
        started = sandbox.record.started_at or rfc3339(node.clock.now())
        sandbox.record = msgspec.structs.replace(sandbox.record, started_at=started)
        slow = asyncio.get_running_loop().call_later(_SLOW_START_S, node.start_task, "slow", self._reporter.report)
        try:
            await sandbox.create(state.pod)
        except (CniError, KernelError, ClusterError, OSError) as failure:
            state.event("Warning", "FailedCreatePodSandBox", explain(failure))
            await sandbox.remove()
            state.wakeup.wake_in(self._backoff.next_delay_s())
            await self._reporter.report()
            return False
        finally:
            slow.cancel()
        self._backoff.reset()
        return True
