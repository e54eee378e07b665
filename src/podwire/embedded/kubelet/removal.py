"""Removes a pod from the node: its containers, its sandbox, its object and its directory, in this order.

The order is: containers (:mod:`podwire.embedded.kubelet.stopping`); shim, cgroup, CNI DEL and network namespace; the
object (grace period 0, by uid); the directory. A CNI DEL that fails is repeated. The object stays until DEL succeeds,
so that the pod's address is released. A pod whose object is kept by finalizers ends in the phase Succeeded or Failed.
"""

import shutil

import msgspec

from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.reporter import StatusReporter
from podwire.embedded.kubelet.status import final_phase
from podwire.embedded.kubelet.stopping import Stopper
from podwire.errors import ApiError, ApiUnreachable, NotFound, ProtocolError
from podwire.kube.resources import PODS
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff


class Remover:
    """Removes one pod."""

    def __init__(self, state: PodState, stopper: Stopper, reporter: StatusReporter) -> None:
        self._state = state
        self._stopper = stopper
        self._reporter = reporter
        self._log = Log("kubelet.pod")
        self._backoff = Backoff(0.5, 15.0)

    async def release(self) -> None:
        """Removes the sandbox of a pod that has succeeded or failed; its records and logs stay."""
        state = self._state
        state.leaving = True
        await self._stopper.stop_all()
        if state.sandbox.record.sandbox and not await state.sandbox.remove():
            self._retry()
        state.node.ledger.drop(state.pod.metadata.uid)

    async def remove(self) -> bool:
        """Removes a pod that is being deleted; False when a step failed and the call must be repeated."""
        state = self._state
        state.leaving = True
        await self._stopper.stop_all()
        if not await state.sandbox.remove():
            self._retry()
            return False
        state.node.ledger.drop(state.pod.metadata.uid)
        if not state.gone:
            if state.pod.metadata.finalizers:
                phase = state.verdict.phase or final_phase(state.pod, state.containers)
                state.verdict = msgspec.structs.replace(state.verdict, phase=phase)
                await self._reporter.report(urgent=True)
            if not await self._delete_object():
                self._retry()
                return False
        shutil.rmtree(state.sandbox.directory, ignore_errors=True)
        shutil.rmtree(state.node.host.run / "memory" / state.pod.metadata.uid, ignore_errors=True)
        return True

    def _retry(self) -> None:
        self._state.wakeup.wake_in(self._backoff.next_delay_s())

    async def _delete_object(self) -> bool:
        meta = self._state.pod.metadata
        try:
            await self._state.node.client.delete(PODS, meta.name, meta.namespace, grace_period_s=0, uid=meta.uid)
        except NotFound:
            return True
        except (ApiError, ApiUnreachable, ProtocolError) as failure:
            if isinstance(failure, ApiError) and failure.code == 409:  # Another pod has this name now.
                return True
            pod = f"{meta.namespace}/{meta.name}"
            self._log.warning("cannot delete the pod's object; trying again", pod=pod, problem=failure)
            return False
        return True
