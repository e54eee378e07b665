"""Writes a pod's status to the API.

1. A change of the phase or of a condition is reported at once, other changes at most once in 0.3 s.
2. Only one patch is sent at a time. The API server could store two patches in one order and answer them in another; the
   reporter would then take the older status for the stored status, and never correct it.
3. While the API server does not answer, the pod keeps running. The report is sent when the API server answers again.
"""

import asyncio

import msgspec

from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.status import Json, is_news, same_status
from podwire.errors import ApiError, ApiUnreachable, NotFound, ProtocolError
from podwire.kube.client import STRATEGIC_MERGE_PATCH
from podwire.kube.ownwrites import number
from podwire.kube.resources import PODS
from podwire.model.meta import Condition
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff

_REPORT_EVERY_S = 0.3


class StatusReporter:
    """Reports the status of one pod."""

    def __init__(self, state: PodState) -> None:
        self._state = state
        self._log = Log("kubelet.pod")
        self._backoff = Backoff(0.5, 30.0)
        self._one_at_a_time = asyncio.Lock()
        self._reported: Json = {}
        self._report_at = 0.0

    async def report(self, *, urgent: bool = False) -> None:
        """Patches the status when it differs from the last report: at once, or within 0.3 s when it can wait."""
        async with self._one_at_a_time:
            state = self._state
            status = state.render()
            if state.gone or same_status(status, self._reported):
                return
            wait_s = self._report_at + _REPORT_EVERY_S - state.now()
            if wait_s > 0 and not urgent and not is_news(status, self._reported):
                state.wakeup.wake_in(wait_s)
                return
            await self._patch(status)

    async def _patch(self, status: Json) -> None:
        state = self._state
        meta = state.pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        try:
            answer = await state.node.client.patch(
                PODS, meta.name, body, meta.namespace, patch_type=STRATEGIC_MERGE_PATCH, subresource="status"
            )
        except NotFound:
            return
        except (ApiError, ApiUnreachable, ProtocolError) as failure:
            pod = f"{meta.namespace}/{meta.name}"
            self._log.warning("cannot write the pod's status; trying again", pod=pod, problem=failure)
            state.wakeup.wake_in(self._backoff.next_delay_s())
            return
        self._backoff.reset()
        self._reported = status
        self._report_at = state.now()
        if number(state.pod.metadata.resource_version) > number(answer["metadata"]["resourceVersion"]):
            # A later change by another writer has arrived before this answer.
            state.conditions = state.pod.status.conditions
            return
        written = (answer.get("status") or {}).get("conditions") or ()
        state.conditions = msgspec.convert(written, tuple[Condition, ...])
