"""The HorizontalPodAutoscaler controller.

1. An autoscaler is looked at once in each sync period (15 s), and at once when its spec changes.
2. At most one autoscaler of a key is decided at a time; the recommendations of the past are kept in memory, so after a
   restart the window of the way down begins again, as in Kubernetes.
3. A status is written only when it has changed.
"""

from podwire.embedded.workloads.autoscaling.behavior import Past, Recommendation, ScaleEvent
from podwire.embedded.workloads.autoscaling.plan import (
    AutoscalerSettings,
    Observed,
    ScalingDecision,
    failed_rescale,
    failed_scale,
    plan,
)
from podwire.embedded.workloads.autoscaling.sources import MetricReader, ScaleFailure, Scales, TargetScale
from podwire.errors import ApiError, ConfigError, Conflict
from podwire.kube.controller import Environment
from podwire.kube.events import reference
from podwire.kube.index import Index
from podwire.kube.resources import HORIZONTALPODAUTOSCALERS, PODS
from podwire.model.autoscaling import HorizontalPodAutoscaler
from podwire.model.meta import ObjectReference
from podwire.model.pod import Pod
from podwire.model.selector import Selector, parse_selector
from podwire.model.workload import changed_status
from podwire.runtime.supervise import Supervisor

_LONGEST_S = 3600.0
"""The longest window of a behavior."""


class AutoscalerController:
    """Scales the targets of autoscalers."""

    def __init__(self, environment: Environment, settings: AutoscalerSettings) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._settings = settings
        self._scales = Scales(environment.client, environment.clock)
        self._events = environment.recorder("horizontal-pod-autoscaler")
        self._scalers = environment.of(HORIZONTALPODAUTOSCALERS)
        self._pods: Index[Pod] = Index(environment.of(PODS), lambda pod: (pod.metadata.namespace,))
        self._past: dict[str, Past] = {}
        self._selectors: dict[str, Selector] = {}
        self._loop = environment.loop("horizontalpodautoscaler", self._reconcile)
        self._scalers.subscribe(self._changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor, workers=4)

    def _changed(
        self, key: str, old: HorizontalPodAutoscaler | None, new: HorizontalPodAutoscaler | None
    ) -> None:  # fmt: skip
        if new is None:
            self._past.pop(key, None)
            self._selectors.pop(key, None)
        elif old is None or old.spec != new.spec:
            self._loop.touch(key)

    async def _reconcile(self, key: str) -> None:
        scaler = self._scalers.get(key)
        if scaler is None or scaler.metadata.deletion_timestamp is not None:
            return
        self._loop.queue.add_after(key, self._settings.sync_period_s)
        try:
            scale = await self._scales.read(scaler.spec.scale_target_ref, scaler.metadata.namespace)
        except ScaleFailure as failure:
            await self._publish(scaler, failed_scale(scaler, str(failure), self._clock.now()))
            return
        now_s = self._clock.monotonic()
        self._past.setdefault(key, Past((Recommendation(now_s, scale.replicas),)))
        decision = plan(scaler, await self._observe(key, scaler, scale), self._settings)
        if decision.recommendation is not None:
            self._remember(key, Recommendation(now_s, decision.recommendation))
        if decision.rescale_to is not None:
            decision = await self._rescale(key, scaler, scale, decision)
        await self._publish(scaler, decision)

    async def _observe(self, key: str, scaler: HorizontalPodAutoscaler, scale: TargetScale) -> Observed:
        namespace, selector = scaler.metadata.namespace, _parsed(scale.selector)
        pods: list[Pod] = []
        if selector is not None:
            self._selectors[key] = selector
            pods = [pod for pod in self._pods.of(namespace).values() if selector.matches(pod.metadata.labels)]
        reader = MetricReader(self._client, namespace, scale.selector, self._scales)
        readings = [await reader.read(metric) for metric in scaler.spec.metrics] if scale.selector else []
        return Observed(
            scale.replicas, scale.selector, pods, readings, self._past.get(key, Past()), self._clock.now(),
            self._clock.monotonic(), self._rivals(scaler, pods), scale.existing,
        )  # fmt: skip

    def _rivals(self, scaler: HorizontalPodAutoscaler, pods: list[Pod]) -> str:
        """All autoscalers that select one of the pods; empty when there is only one."""
        namespace = scaler.metadata.namespace
        rivals = [
            other.metadata.name
            for key, other in sorted(self._scalers.objects.items())
            if other.metadata.namespace == namespace
            and (selector := self._selectors.get(key)) is not None
            and any(selector.matches(pod.metadata.labels) for pod in pods)
        ]
        return f"[{' '.join(f'{{{name} {namespace}}}' for name in rivals)}]" if len(rivals) > 1 else ""

    def _remember(self, key: str, new: Recommendation | ScaleEvent) -> None:
        past, oldest_s = self._past.get(key, Past()), new.at_s - _LONGEST_S
        if isinstance(new, Recommendation):
            recent = [entry for entry in past.recommendations if entry.at_s >= oldest_s]
            self._past[key] = Past((*recent, new), past.events)
        else:
            events = [entry for entry in past.events if entry.at_s >= oldest_s]
            self._past[key] = Past(past.recommendations, (*events, new))

    async def _rescale(
        self, key: str, scaler: HorizontalPodAutoscaler, scale: TargetScale, decision: ScalingDecision
    ) -> ScalingDecision:  # fmt: skip
        replicas = decision.rescale_to
        assert replicas is not None
        try:
            await self._scales.write(scale, scaler.metadata.namespace, replicas)
        except Conflict:
            raise
        except ApiError as failure:
            return failed_rescale(decision, scaler.status, failure.message, self._clock.now())
        text = f"New size: {replicas}; reason: {decision.reason}"
        self._events.event(_subject(scaler), "Normal", "SuccessfulRescale", text)
        self._remember(key, ScaleEvent(self._clock.monotonic(), replicas - scale.replicas))
        return decision

    async def _publish(self, scaler: HorizontalPodAutoscaler, decision: ScalingDecision) -> None:
        for event in decision.events:
            self._events.event(_subject(scaler), "Warning", event.reason, event.message)
        patch = changed_status(scaler.status, decision.status)
        if patch:
            meta = scaler.metadata
            status = {"desiredReplicas": decision.status.desired_replicas, **patch}
            body = {"metadata": {"uid": meta.uid}, "status": status}
            await self._client.patch(HORIZONTALPODAUTOSCALERS, meta.name, body, meta.namespace, subresource="status")


def _subject(scaler: HorizontalPodAutoscaler) -> ObjectReference:
    return reference("autoscaling/v2", "HorizontalPodAutoscaler", scaler.metadata)


def _parsed(text: str) -> Selector | None:
    try:
        return parse_selector(text) if text else None
    except ConfigError:
        return None
