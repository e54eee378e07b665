"""Carries out preemptions: nominates a node for a waiting pod and deletes the victims gracefully.

A victim gets the condition ``DisruptionTarget`` and the Event ``Preempted`` before it is deleted. Waiting pods of lower
priority that were nominated for the same node lose their nomination, because the room is no longer theirs.
"""

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from podwire.embedded.scheduler.decision import SchedulingDecision
from podwire.embedded.scheduler.preemption import REASON, PreemptionRequest, ineligible, plan
from podwire.embedded.scheduler.usage import PodDemand, SchedulerState
from podwire.embedded.scheduler.volumes import NO_CLAIMS, VolumeDemand
from podwire.errors import Conflict, NotFound
from podwire.kube.client import STRATEGIC_MERGE_PATCH
from podwire.kube.controller import API_FAILURES, Environment
from podwire.kube.events import reference
from podwire.kube.resources import PERSISTENTVOLUMES, PODDISRUPTIONBUDGETS, PODS
from podwire.model.meta import key_of
from podwire.model.pod import Pod
from podwire.observe.log import Log
from podwire.runtime.clock import rfc3339

Work = Coroutine[Any, Any, None]


class Preemptor:
    """Makes room for pods that no node can take."""

    def __init__(self, environment: Environment, state: SchedulerState, component: str) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._recorder = environment.recorder(component)
        self._component = component
        self._state = state
        self._budgets = environment.of(PODDISRUPTIONBUDGETS)
        self._volumes = environment.of(PERSISTENTVOLUMES)
        self._log = Log("scheduler")
        self._ending: set[str] = set()
        """The uids of victims until their pods are gone."""

    def preempt(
        self, demand: PodDemand, decision: SchedulingDecision, claims: VolumeDemand = NO_CLAIMS
    ) -> tuple[SchedulingDecision, list[Work]]:
        """The decision with the node for which the pod is nominated now (or no node), and the API requests to make.

        To be called while the nominated pods of higher priority count in the state. The state has the new nomination
        at once, so the next pod does not choose the same room.
        """
        uid = demand.pod.metadata.uid
        before, _ = self._state.nominated.get(uid, ("", demand))
        self._ending = {victim for victim in self._ending if self._state.node_of(victim)}
        if reason := ineligible(demand.pod, self._state.nodes.get(before), self._ending):
            return replace(decision, node=before, preemption=reason), []
        self._state.nominated.pop(uid, None)
        volumes = self._volumes.objects.values() if claims.static else ()
        request = PreemptionRequest(demand, decision.movable, claims, tuple(volumes))
        chosen = plan(request, self._state, self._budgets.objects.values())
        if chosen is None:
            return decision, []
        self._ending |= {victim.pod.metadata.uid for victim in chosen.victims}
        work = [self._evict(victim.pod, demand.pod, chosen.node) for victim in chosen.victims]
        for other, (node, waiting) in list(self._state.nominated.items()):
            if node == chosen.node and waiting.priority < demand.priority:
                del self._state.nominated[other]
                work.append(self._clear_nomination(waiting.pod))
        self._state.nominated[uid] = (chosen.node, demand)
        return replace(decision, node=chosen.node, preemption=""), work

    async def _evict(self, victim: Pod, pod: Pod, node: str) -> None:
        meta = victim.metadata
        if meta.deletion_timestamp is not None:
            return
        message = f"{self._component}: preempting to accommodate a higher priority pod"
        condition = {
            "type": "DisruptionTarget", "status": "True", "reason": REASON, "message": message,
            "lastTransitionTime": rfc3339(self._clock.now()), "observedGeneration": meta.generation,
        }  # fmt: skip
        self._log.info("preempting", pod=key_of(meta), node=node, by=key_of(pod.metadata))
        try:
            await self._patch_status(victim, {"conditions": [condition]})
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            return
        except API_FAILURES:
            self._ending.discard(meta.uid)
            raise
        text = f"Preempted by pod {pod.metadata.uid} on node {node}"
        self._recorder.event(reference("v1", "Pod", meta), "Normal", "Preempted", text)

    async def _clear_nomination(self, pod: Pod) -> None:
        try:
            await self._patch_status(pod, {"nominatedNodeName": None})
        except (NotFound, Conflict):
            return

    async def _patch_status(self, pod: Pod, status: dict[str, Any]) -> None:
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        await self._client.patch(
            PODS, meta.name, body, meta.namespace, subresource="status", patch_type=STRATEGIC_MERGE_PATCH
        )
