"""Objects of metrics.k8s.io, and the quantities and durations in them."""

from typing import Any

import pytest

from podwire.embedded.metrics.objects import duration, pod_metrics, quantities
from podwire.embedded.metrics.usage import ContainerUsage, PodUsage, Usage

POD: dict[str, Any] = {"metadata": {"name": "p", "namespace": "a", "labels": {"app": "web"}, "uid": "u"}}


def container(name: str, at_s: float, window_s: float) -> ContainerUsage:
    return ContainerUsage(name, f"id-{name}", "image", Usage(at_s, 0.0, 0, 3 << 20, window_s, 1_500_000))


@pytest.mark.parametrize(("cpu", "memory", "expected"), [
    (1462398, 14508 << 10, {"cpu": "1462398n", "memory": "14508Ki"}),
    (1_500_000, 3 << 20, {"cpu": "1500u", "memory": "3Mi"}),
    (250_000_000, 0, {"cpu": "250m", "memory": "0"}),
    (2_000_000_000, 1025, {"cpu": "2", "memory": "1025"}),
])  # fmt: skip
def test_quantities_have_the_largest_whole_unit(cpu: int, memory: int, expected: dict[str, str]) -> None:
    assert quantities(cpu, memory) == expected


@pytest.mark.parametrize(("seconds", "text"), [(15.0031, "15.003s"), (10, "10s"), (75.5, "1m15.5s"), (3725, "1h2m5s")])
def test_durations_are_written_as_in_go(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_pod_shows_the_window_that_began_first() -> None:
    usage = PodUsage("a", "p", "u", 0.0, (container("x", 100.0, 10.0), container("y", 100.2, 15.0)))
    assert pod_metrics(POD, usage) == {
        "kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": "p", "namespace": "a", "labels": {"app": "web"},
                     "creationTimestamp": "1970-01-01T00:01:40Z"},
        "timestamp": "1970-01-01T00:01:40Z", "window": "15s",
        "containers": [{"name": name, "usage": {"cpu": "1500u", "memory": "3Mi"}} for name in ("x", "y")],
    }  # fmt: skip


def test_a_pod_with_an_unmeasured_container_is_left_out() -> None:
    usage = PodUsage("a", "p", "u", 0.0, (container("x", 100.0, 10.0), container("y", 100.0, 0.0)))
    assert pod_metrics(POD, usage) is None
