"""Decides for one HorizontalPodAutoscaler: replicas, status, conditions and Events. Pure.

The most replicas that any metric asks for are wanted. While a metric cannot be read, the others may scale up but not
down. Reasons and messages are those of Kubernetes.

Source: ``k8s.io/kubernetes/pkg/controller/podautoscaler/horizontal.go`` (reconcileAutoscaler,
computeReplicasForMetrics).
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from podwire.embedded.workloads.autoscaling.behavior import Past, normalize, rules
from podwire.embedded.workloads.autoscaling.replicas import (
    MetricFailure,
    Periods,
    PodMetric,
    Proposal,
    Situation,
    Tolerance,
    propose,
    propose_mean,
)
from podwire.embedded.workloads.autoscaling.totals import propose_total
from podwire.model.autoscaling import (
    AutoscalerSpec,
    AutoscalerStatus,
    HorizontalPodAutoscaler,
    MetricSpec,
    MetricTarget,
)
from podwire.model.meta import Condition
from podwire.model.pod import Pod
from podwire.model.quantity import parse_milli, render_decimal
from podwire.model.selector import selector_text

ABLE, ACTIVE, LIMITED = "AbleToScale", "ScalingActive", "ScalingLimited"

Reading = Mapping[str, PodMetric] | int | MetricFailure
"""The use of the pods by name, a whole in thousandths (of an object, or external), or why it is not known."""


class AutoscalerSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The flags ``--horizontal-pod-autoscaler-*`` of Kubernetes' controller manager; times in seconds."""

    sync_period_s: float = 15.0
    downscale_stabilization_s: float = 300.0
    cpu_initialization_period_s: float = 300.0
    initial_readiness_delay_s: float = 30.0
    tolerance: float = 0.1

    @property
    def periods(self) -> Periods:
        """The periods in which the metrics of new pods are not trusted."""
        return Periods(self.cpu_initialization_period_s, self.initial_readiness_delay_s)


class WarningEvent(NamedTuple):
    """A Warning Event on the autoscaler."""

    reason: str
    message: str


class Observed(msgspec.Struct, frozen=True):
    """The observed facts about the target; ``readings`` in the order of ``spec.metrics``."""

    replicas: int
    selector: str
    pods: Sequence[Pod]
    readings: Sequence[Reading]
    past: Past
    now: datetime.datetime
    now_s: float
    rivals: str = ""
    """All autoscalers that select the pods; empty when no other autoscaler does."""
    existing: int = 0
    """The replicas that the scale has, which may differ from ``replicas``, those that it wants."""


class ScalingDecision(msgspec.Struct, frozen=True):
    """The replicas to set (None: no change) and why; the status after that; what to remember."""

    status: AutoscalerStatus
    rescale_to: int | None = None
    reason: str = ""
    events: tuple[WarningEvent, ...] = ()
    recommendation: int | None = None
    """The replicas that metrics asked for, before stabilization and limits."""


def plan(scaler: HorizontalPodAutoscaler, observed: Observed, settings: AutoscalerSettings) -> ScalingDecision:
    """The decision for an autoscaler, after its target's scale was read."""
    spec, current = scaler.spec, observed.replicas
    status = with_condition(
        scaler.status, ABLE, "True",
        ("SucceededGetScale", "the HPA controller was able to get the target's current scale"), observed.now,
    )  # fmt: skip
    status = msgspec.structs.replace(status, current_replicas=current)
    if current == 0 and spec.min_replicas != 0:
        text = ("ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
        return _settled(with_condition(status, ACTIVE, "False", text, observed.now), 0)
    if current > spec.max_replicas:
        return _rescaled(status, observed, spec.max_replicas, "Current number of replicas above Spec.MaxReplicas")
    if current < spec.min_replicas:
        return _rescaled(status, observed, spec.min_replicas, "Current number of replicas below Spec.MinReplicas")
    return _by_metrics(spec, status, observed, settings)


def _settled(status: AutoscalerStatus, replicas: int) -> ScalingDecision:
    """No change: metrics were not looked at."""
    return ScalingDecision(msgspec.structs.replace(status, desired_replicas=replicas, current_metrics=()))


def _rescaled(status: AutoscalerStatus, observed: Observed, replicas: int, reason: str) -> ScalingDecision:
    """A change that needs no metric."""
    return _changed(ScalingDecision(msgspec.structs.replace(status, current_metrics=())), observed, replicas, reason)


def _changed(decision: ScalingDecision, observed: Observed, replicas: int, reason: str) -> ScalingDecision:
    stamp = observed.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    text = ("SucceededRescale", f"the HPA controller was able to update the target scale to {replicas}")
    status = with_condition(decision.status, ABLE, "True", text, observed.now)
    status = msgspec.structs.replace(status, desired_replicas=replicas, last_scale_time=stamp)
    return ScalingDecision(status, replicas, reason, decision.events, decision.recommendation)


def failed_rescale(
    decision: ScalingDecision, before: AutoscalerStatus, problem: str, now: datetime.datetime
) -> ScalingDecision:
    """The decision after the target's scale could not be written."""
    text = ("FailedUpdateScale", f"the HPA controller was unable to update the target scale: {problem}")
    status = with_condition(decision.status, ABLE, "False", text, now)
    status = msgspec.structs.replace(
        status, desired_replicas=before.desired_replicas, last_scale_time=before.last_scale_time
    )
    event = WarningEvent(
        "FailedRescale", f"New size: {decision.rescale_to}; reason: {decision.reason}; error: {problem}"
    )
    return ScalingDecision(status, events=(*decision.events, event), recommendation=decision.recommendation)


def failed_scale(scaler: HorizontalPodAutoscaler, problem: str, now: datetime.datetime) -> ScalingDecision:
    """The decision when the target's scale cannot be read."""
    text = ("FailedGetScale", f"the HPA controller was unable to get the target's current scale: {problem}")
    return ScalingDecision(
        with_condition(scaler.status, ABLE, "False", text, now), events=(WarningEvent("FailedGetScale", problem),)
    )


# -- metrics


def _by_metrics(
    spec: AutoscalerSpec, status: AutoscalerStatus, observed: Observed, settings: AutoscalerSettings
) -> ScalingDecision:
    refusal = _selector_refusal(observed)
    if refusal is not None:
        event, text = refusal
        status = with_condition(status, ACTIVE, "False", text, observed.now)
        return ScalingDecision(status, events=(event, WarningEvent("FailedComputeMetricsReplicas", event.message)))
    tolerance = _tolerance(spec, settings)
    best, best_name = 0, ""
    events: list[WarningEvent] = []
    shown: list[dict[str, Any]] = []
    failures: list[tuple[str, str]] = []
    for metric, reading in zip(spec.metrics, observed.readings, strict=True):
        try:
            proposal = _propose(metric, reading, observed, tolerance, settings.periods)
        except MetricFailure as failure:
            reason, prefix = _FAILURES[metric.type]
            events.append(WarningEvent(reason, str(failure)))
            failures.append((reason, str(failure)))
            shown.append({"type": ""})
            if len(failures) == 1:
                first = f"{prefix.format(name=_name(metric))}: {failure}" if prefix else str(failure)
            continue
        shown.append(_current(metric, proposal))
        if best == 0 or proposal.replicas > best:
            best, best_name = proposal.replicas, _title(metric)
    status = msgspec.structs.replace(status, current_metrics=tuple(shown))
    if failures and (len(failures) == len(spec.metrics) or best < observed.replicas):
        reason, problem = failures[0]
        text = (reason, f"the HPA was unable to compute the replica count: {problem}")
        whole = f"invalid metrics ({len(failures)} invalid out of {len(spec.metrics)}), first error is: {first}"
        status = with_condition(status, ACTIVE, "False", text, observed.now)
        return ScalingDecision(status, events=(*events, WarningEvent("FailedComputeMetricsReplicas", whole)))
    text = ("ValidMetricFound", f"the HPA was able to successfully calculate a replica count from {best_name}")
    status = with_condition(status, ACTIVE, "True", text, observed.now)
    return _normalized(spec, status, observed, settings, DesiredReplicas(best, best_name, tuple(events)))


class DesiredReplicas(NamedTuple):
    """The replicas that the metrics ask for, the metric that asks for the most, and failures of others."""

    replicas: int
    metric: str
    events: tuple[WarningEvent, ...]


def _normalized(
    spec: AutoscalerSpec,
    status: AutoscalerStatus,
    observed: Observed,
    settings: AutoscalerSettings,
    desired: DesiredReplicas,
) -> ScalingDecision:
    current = observed.replicas
    result = normalize(
        spec, current, desired.replicas, observed.past, observed.now_s, settings.downscale_stabilization_s
    )
    status = with_condition(status, ABLE, "True", result.able, observed.now)
    status = with_condition(status, LIMITED, "True" if result.limited else "False", result.limit, observed.now)
    decision = ScalingDecision(status, events=desired.events, recommendation=desired.replicas)
    if result.replicas == current:
        status = msgspec.structs.replace(status, desired_replicas=current)
        return ScalingDecision(status, events=desired.events, recommendation=desired.replicas)
    reason = "All metrics below target" if desired.replicas < current else f"{desired.metric} above target"
    return _changed(decision, observed, result.replicas, reason)


def _selector_refusal(observed: Observed) -> tuple[WarningEvent, tuple[str, str]] | None:
    if not observed.selector:
        event = WarningEvent("SelectorRequired", "selector is required")
        return event, ("InvalidSelector", "the HPA target's scale is missing a selector")
    if observed.rivals:
        problem = f"pods by selector {observed.selector} are controlled by multiple HPAs: {observed.rivals}"
        return WarningEvent("AmbiguousSelector", problem), ("AmbiguousSelector", problem)
    return None


def _tolerance(spec: AutoscalerSpec, settings: AutoscalerSettings) -> Tolerance:
    up, down = (
        settings.tolerance if rule.tolerance is None else parse_milli(rule.tolerance) / 1000
        for rule in rules(spec, settings.downscale_stabilization_s)
    )
    return Tolerance(up, down)


_FAILURES: Mapping[str, tuple[str, str]] = {
    "Resource": ("FailedGetResourceMetric", "failed to get {name} resource metric value"),
    "ContainerResource": ("FailedGetContainerResourceMetric", "failed to get {name} container metric value"),
    "Pods": ("FailedGetPodsMetric", "failed to get pods metric value"),
    "Object": ("FailedGetObjectMetric", "failed to get object metric value"),
    "External": ("FailedGetExternalMetric", "failed to get {name} external metric value"),
}
"""By type of the metric: the reason of Event and condition, and what precedes the first error."""


def _propose(
    metric: MetricSpec, reading: Reading, observed: Observed, tolerance: Tolerance, periods: Periods
) -> Proposal:  # fmt: skip
    """The proposal of one metric.

    Raises: MetricFailure.
    """
    source = metric.resource or metric.container_resource
    if isinstance(reading, MetricFailure):
        raise _explained(metric, reading)
    if isinstance(reading, int):
        named = metric.object or metric.external
        target = named.target if named is not None else MetricTarget()
        return propose_total(reading, target, (observed.replicas, observed.existing), observed.pods, tolerance)
    name, container = (source.name, source.container) if source is not None else ("", "")
    situation = Situation(name, container, observed.replicas, observed.pods, reading, tolerance, observed.now, periods)
    if source is not None:
        return propose(situation, source.target)
    return propose_mean(situation, metric.pods.target if metric.pods is not None else MetricTarget())


def _explained(metric: MetricSpec, failure: MetricFailure) -> MetricFailure:
    source = metric.resource or metric.container_resource
    if source is None:
        return failure
    unit = "usage" if source.target.average_value is not None else "utilization"
    return MetricFailure(
        f"failed to get {source.name} {unit}: unable to get metrics for resource {source.name}: {failure}"
    )


def _name(metric: MetricSpec) -> str:
    source = metric.resource or metric.container_resource
    if source is not None:
        return source.name
    named = metric.pods or metric.object or metric.external
    return named.metric.name if named is not None else ""


def _title(metric: MetricSpec) -> str:
    source = metric.resource or metric.container_resource
    if source is None:
        return _named_title(metric)
    if source.target.average_value is not None:
        return f"{source.name} resource"
    kind = "container resource" if source.container else "resource"
    return f"{source.name} {kind} utilization (percentage of request)"


def _named_title(metric: MetricSpec) -> str:
    if metric.external is not None:
        return f"external metric {metric.external.metric.name}({selector_text(metric.external.metric.selector)})"
    if metric.object is not None:
        target = metric.object.described_object
        return f"{target.kind if target is not None else ''} metric {metric.object.metric.name}"
    return f"pods metric {_name(metric)}"


def _current(metric: MetricSpec, proposal: Proposal) -> dict[str, Any]:
    """The entry of ``status.currentMetrics``."""
    value: dict[str, Any] = {"averageValue": render_decimal(proposal.average_milli, "m")}
    if proposal.value_milli is not None:
        value = {"value": render_decimal(proposal.value_milli, "m")}
    if proposal.utilization is not None:
        value["averageUtilization"] = proposal.utilization
    entry: dict[str, Any] = {"current": value}
    source, named = metric.resource or metric.container_resource, metric.pods or metric.object or metric.external
    if source is not None:
        entry |= {"name": source.name, **({"container": source.container} if source.container else {})}
    elif named is not None:
        entry["metric"] = msgspec.to_builtins(named.metric)
        if named.described_object is not None:
            entry["describedObject"] = msgspec.to_builtins(named.described_object)
    return {"type": metric.type, metric.type[:1].lower() + metric.type[1:]: entry}


def with_condition(
    status: AutoscalerStatus, kind: str, holds: str, text: tuple[str, str], now: datetime.datetime
) -> AutoscalerStatus:
    """The status with a condition set; its transition time changes only with its status."""
    before = next((c for c in status.conditions if c.type == kind), None)
    since = before.last_transition_time if before is not None and before.status == holds else None
    condition = Condition(
        type=kind, status=holds, reason=text[0], message=text[1],
        last_transition_time=since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )  # fmt: skip
    rest = tuple(condition if c.type == kind else c for c in status.conditions)
    return msgspec.structs.replace(status, conditions=rest if before is not None else (*rest, condition))
