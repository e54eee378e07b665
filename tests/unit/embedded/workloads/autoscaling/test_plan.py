"""Decisions for whole autoscalers: replicas, conditions, Events and current metrics."""

import datetime
from collections.abc import Sequence
from typing import Any

import msgspec
from tests.unit.embedded.workloads.autoscaling.test_replicas import NOW, A, B, pod

from podwire.embedded.workloads.autoscaling.behavior import Past
from podwire.embedded.workloads.autoscaling.plan import (
    AutoscalerSettings,
    Observed,
    Reading,
    ScalingDecision,
    failed_rescale,
    failed_scale,
    plan,
)
from podwire.embedded.workloads.autoscaling.replicas import MetricFailure, PodMetric
from podwire.embedded.workloads.autoscaling.sources import parse_window, read_metrics
from podwire.model.autoscaling import HorizontalPodAutoscaler
from podwire.model.pod import Pod

CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
CUSTOM = {"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "1"}}}
UNKNOWN = MetricFailure("unable to get metric rps: none")
NO_METRICS = MetricFailure("no metrics returned from resource metrics API")


def scaler(*metrics: dict[str, Any], **spec: Any) -> HorizontalPodAutoscaler:
    return msgspec.convert({"spec": {"minReplicas": 1, "maxReplicas": 5, "metrics": metrics, **spec}},
                           HorizontalPodAutoscaler)  # fmt: skip


def used(**milli: int) -> dict[str, PodMetric]:
    return {name: PodMetric(value, NOW - datetime.timedelta(seconds=1), 15.0) for name, value in milli.items()}


def decide(
    item: HorizontalPodAutoscaler, replicas: int, *readings: Reading, pods: Sequence[Pod] = (A, B), **more: Any
) -> ScalingDecision:  # fmt: skip
    observed = Observed(
        **{"replicas": replicas, "selector": "app=web", "pods": pods, "readings": readings, "past": Past(),
           "now": NOW, "now_s": 1000.0, **more}
    )  # fmt: skip
    return plan(item, observed, AutoscalerSettings())


def conditions(decision: ScalingDecision) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in decision.status.conditions}


def test_a_busy_target_gets_more_replicas() -> None:
    result = decide(scaler(CPU), 2, used(a=100, b=100))
    assert (result.rescale_to, result.recommendation) == (4, 4)
    assert result.reason == "cpu resource utilization (percentage of request) above target"
    assert conditions(result) == {
        "AbleToScale": ("True", "SucceededRescale"), "ScalingActive": ("True", "ValidMetricFound"),
        "ScalingLimited": ("False", "DesiredWithinRange"),
    }  # fmt: skip
    assert result.status.current_metrics == (
        {"type": "Resource", "resource": {
            "name": "cpu", "current": {"averageUtilization": 100, "averageValue": "100m"}}},
    )  # fmt: skip
    assert (result.status.current_replicas, result.status.desired_replicas) == (2, 4)
    assert result.status.last_scale_time == "2026-05-01T12:00:00Z"


def test_replicas_outside_the_limits_are_brought_back() -> None:
    above, below = decide(scaler(CPU), 9), decide(scaler(CPU, minReplicas=3), 2)
    assert (above.rescale_to, above.reason) == (5, "Current number of replicas above Spec.MaxReplicas")
    assert (below.rescale_to, below.reason) == (3, "Current number of replicas below Spec.MinReplicas")


def test_a_target_with_no_replicas_is_left_alone() -> None:
    result = decide(scaler(CPU), 0)
    assert result.rescale_to is None
    assert conditions(result)["ScalingActive"] == ("False", "ScalingDisabled")


def test_a_missing_metric_changes_nothing() -> None:
    result = decide(scaler(CPU), 2, NO_METRICS)
    problem = "failed to get cpu utilization: unable to get metrics for resource cpu: " + str(NO_METRICS)
    assert result.rescale_to is None
    assert [tuple(event) for event in result.events] == [
        ("FailedGetResourceMetric", problem),
        ("FailedComputeMetricsReplicas", "invalid metrics (1 invalid out of 1), first error is: "
                                         f"failed to get cpu resource metric value: {problem}"),
    ]  # fmt: skip
    assert conditions(result) == {
        "AbleToScale": ("True", "SucceededGetScale"), "ScalingActive": ("False", "FailedGetResourceMetric"),
    }  # fmt: skip


def test_one_missing_metric_allows_only_the_way_up() -> None:
    up = decide(scaler(CPU, CUSTOM), 2, used(a=100, b=100), UNKNOWN)
    down = decide(scaler(CPU, CUSTOM), 2, used(a=1, b=1), UNKNOWN)
    assert up.rescale_to == 4
    assert [event.reason for event in up.events] == ["FailedGetPodsMetric"]
    assert down.rescale_to is None
    assert conditions(down)["ScalingActive"] == ("False", "FailedGetPodsMetric")


def test_pods_of_two_autoscalers_are_not_scaled() -> None:
    result = decide(scaler(CPU), 2, used(a=100, b=100), rivals="[{one a} {two a}]")
    assert result.rescale_to is None
    assert conditions(result)["ScalingActive"] == ("False", "AmbiguousSelector")


def test_tolerance_of_the_behavior_is_used() -> None:
    tolerant = scaler(CPU, behavior={"scaleUp": {"tolerance": "0.5"}})
    assert decide(tolerant, 2, used(a=70, b=70)).rescale_to is None
    assert decide(scaler(CPU), 2, used(a=70, b=70)).rescale_to == 3


def test_failures_of_the_scale_are_conditions() -> None:
    item = scaler(CPU)
    unread = failed_scale(item, 'deployments.apps "x" not found', NOW)
    assert conditions(unread) == {"AbleToScale": ("False", "FailedGetScale")}
    refused = failed_rescale(decide(item, 2, used(a=100, b=100)), item.status, "no", NOW)
    assert conditions(refused)["AbleToScale"] == ("False", "FailedUpdateScale")
    assert refused.events[-1].message.endswith("above target; error: no")
    assert refused.status.desired_replicas == 0


def test_transition_times_stay_while_the_status_stays() -> None:
    item = scaler(CPU)
    first = decide(item, 2, used(a=50, b=50))
    later = NOW + datetime.timedelta(seconds=15)
    known = msgspec.structs.replace(item, status=first.status)
    assert decide(known, 2, used(a=50, b=50), now=later).status == first.status


def test_metrics_of_containers_are_read() -> None:
    item = {
        "metadata": {"name": "a", "namespace": "n"}, "timestamp": "2026-05-01T12:00:00Z", "window": "15.5s",
        "containers": [{"name": "x", "usage": {"cpu": "1500u", "memory": "1Ki"}},
                       {"name": "y", "usage": {"cpu": "20m", "memory": "1Ki"}}],
    }  # fmt: skip
    assert read_metrics([item], "cpu", "") == {"a": PodMetric(22, NOW, 15.5)}
    assert read_metrics([item], "cpu", "y") == {"a": PodMetric(20, NOW, 15.5)}
    assert str(read_metrics([item], "cpu", "z")) == (
        "failed to get container metrics: container z not present in metrics for pod n/a"
    )
    assert parse_window("1h1m15.5s") == 3675.5


def test_deleted_pods_do_not_count() -> None:
    leaving = msgspec.structs.replace(pod("b"), metadata=msgspec.structs.replace(
        B.metadata, deletion_timestamp="2026-05-01T11:59:59Z"))  # fmt: skip
    assert decide(scaler(CPU), 2, used(a=100, b=100), pods=(A, leaving)).rescale_to is None
