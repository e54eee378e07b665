"""The number of replicas that a metric asks for, by the pods' states and measurements."""

import datetime
from typing import Any

import pytest

from podwire.embedded.workloads.autoscaling.replicas import MetricFailure, PodMetric, Situation, Tolerance, propose
from podwire.model.autoscaling import MetricTarget
from podwire.model.meta import Condition, ObjectMeta
from podwire.model.pod import Container, Pod, PodSpec, PodStatus, Resources

NOW = datetime.datetime(2026, 5, 1, 12, 0, 0, tzinfo=datetime.UTC)
HALF = MetricTarget(type="Utilization", average_utilization=50)
MEAN = MetricTarget(type="AverageValue", average_value="100m")


def ago(seconds: float) -> str:
    return (NOW - datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(name: str, phase: str = "Running", *, ready: bool = True, age_s: float = 900, changed_s: float = 890) -> Pod:
    """A pod with two containers, of which each requests 50m of CPU."""
    requests = Resources(requests={"cpu": "50m"})
    condition = Condition(type="Ready", status="True" if ready else "False", last_transition_time=ago(changed_s))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="a"),
        spec=PodSpec(containers=tuple(Container(name=c, resources=requests) for c in ("x", "y"))),
        status=PodStatus(phase=phase, conditions=(condition,), start_time=ago(age_s)),
    )


def situation(pods: list[Pod], metrics: dict[str, int], **more: Any) -> Situation:
    measured = {name: PodMetric(milli, NOW - datetime.timedelta(seconds=5), 15.0) for name, milli in metrics.items()}
    settings: dict[str, Any] = {
        "resource": "cpu", "container": "", "replicas": len(pods), "tolerance": Tolerance(0.1, 0.1), "now": NOW,
    }  # fmt: skip
    return Situation(pods=pods, metrics=measured, **{**settings, **more})


A, B, C = pod("a"), pod("b"), pod("c")
YOUNG = pod("b", age_s=20, changed_s=18)
UNREADY = pod("b", ready=False, age_s=60, changed_s=50)
NEVER = pod("b", ready=False, age_s=900, changed_s=890)
FELL = pod("b", ready=False, age_s=900, changed_s=100)
CASES = {
    "up by the ratio": ([A, B], {"a": 100, "b": 100}, HALF, 4),
    "down by the ratio": ([A, B, C], {"a": 10, "b": 10, "c": 10}, HALF, 1),
    "within the tolerance": ([A, B], {"a": 54, "b": 54}, HALF, 2),
    "a little above the tolerance": ([A, B], {"a": 56, "b": 56}, HALF, 3),
    "mean value": ([A, B], {"a": 200, "b": 100}, MEAN, 3),
    "missing pod counts as idle on the way up": ([A, B], {"a": 100}, HALF, 2),
    "missing pod keeps more replicas on the way up": ([A, B], {"a": 200}, HALF, 4),
    "missing pod counts as busy on the way down": ([A, B, C], {"a": 10, "b": 10}, HALF, 3),
    "missing pod at its target for means": ([A, B, C], {"a": 10, "b": 10}, MEAN, 2),
    "pending pod counts as idle on the way up": ([A, pod("b", "Pending")], {"a": 150}, HALF, 3),
    "pending pod does not count on the way down": ([A, pod("b", "Pending")], {"a": 10}, HALF, 1),
    "failed pod is ignored": ([A, pod("b", "Failed")], {"a": 100, "b": 100}, HALF, 2),
    "window of a young pod is not over": ([A, YOUNG], {"a": 150, "b": 100}, HALF, 3),
    "unready young pod": ([A, UNREADY], {"a": 150, "b": 100}, HALF, 3),
    "old pod that was never ready": ([A, NEVER], {"a": 150, "b": 100}, HALF, 3),
    "old pod that became unready counts": ([A, FELL], {"a": 100, "b": 100}, HALF, 4),
    "memory of unready pods counts": ([A, UNREADY], {"a": 200, "b": 200}, MEAN, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pods_and_metrics_give_the_replicas(name: str) -> None:
    pods, metrics, target, expected = CASES[name]
    resource = "memory" if name.startswith("memory") else "cpu"
    assert propose(situation(pods, metrics, resource=resource), target).replicas == expected


def test_values_are_those_of_measured_pods() -> None:
    result = propose(situation([A, B], {"a": 150, "b": 50}), HALF)
    assert (result.utilization, result.average_milli) == (100, 100)


def test_one_container_counts_with_its_own_request() -> None:
    result = propose(situation([A, B], {"a": 50, "b": 50}, container="x"), HALF)
    assert (result.replicas, result.utilization) == (4, 100)


FAILURES: dict[str, tuple[list[Pod], dict[str, int], MetricTarget]] = {
    "failed to get cpu utilization: no pods returned by selector while calculating replica count": ([], {}, HALF),
    "failed to get cpu utilization: did not receive metrics for targeted pods (pods might be unready)": (
        [UNREADY], {"b": 100}, HALF,
    ),
    "failed to get cpu usage: did not receive metrics for targeted pods (pods might be unready)": ([A], {}, MEAN),
    "failed to get cpu utilization: missing request for cpu in container x of Pod bare": (
        [Pod(metadata=ObjectMeta(name="bare"), spec=PodSpec(containers=(Container(name="x"),)),
             status=A.status)], {"bare": 1}, HALF,
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", FAILURES)
def test_failures_have_the_words_of_kubernetes(message: str) -> None:
    pods, metrics, target = FAILURES[message]
    with pytest.raises(MetricFailure) as caught:
        propose(situation(pods, metrics), target)
    assert str(caught.value) == message
