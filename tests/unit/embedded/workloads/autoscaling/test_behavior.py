"""Stabilization, policies and limits between what metrics ask for and what is set."""

from typing import Any

import msgspec
import pytest

from podwire.embedded.workloads.autoscaling.behavior import Past, Recommendation, ScaleEvent, normalize
from podwire.model.autoscaling import AutoscalerSpec

DOWN_S = 300.0
NOW_S = 1000.0


def spec(least: int = 1, most: int = 20, **behavior: Any) -> AutoscalerSpec:
    body: dict[str, Any] = {"minReplicas": least, "maxReplicas": most}
    return msgspec.convert(body | ({"behavior": behavior} if behavior else {}), AutoscalerSpec)


def past(*recommendations: tuple[float, int], events: tuple[tuple[float, int], ...] = ()) -> Past:
    """Recommendations and events, each with its age in seconds."""
    return Past(
        tuple(Recommendation(NOW_S - age_s, count) for age_s, count in recommendations),
        tuple(ScaleEvent(NOW_S - age_s, change) for age_s, change in events),
    )


def policy(kind: str, value: int, seconds: int = 60) -> dict[str, Any]:
    return {"type": kind, "value": value, "periodSeconds": seconds}


AT_ONCE: dict[str, Any] = {"scaleDown": {"stabilizationWindowSeconds": 0}}
ONE_A_MINUTE: dict[str, Any] = {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [policy("Pods", 1)]}}
SLOW_UP: dict[str, Any] = {"scaleUp": {"stabilizationWindowSeconds": 60}}
TWO_OR_HALF = [policy("Pods", 2), policy("Percent", 50)]

CASES: dict[str, tuple[AutoscalerSpec, int, int, Past, tuple[int, str, str]]] = {
    "as wanted": (spec(), 4, 6, past(), (6, "ReadyForNewScale", "DesiredWithinRange")),
    "at most twice the replicas": (spec(), 4, 15, past(), (8, "ReadyForNewScale", "ScaleUpLimit")),
    "at least four are allowed": (spec(), 1, 9, past(), (4, "ReadyForNewScale", "ScaleUpLimit")),
    "maximum": (spec(most=5), 4, 9, past(), (5, "ReadyForNewScale", "TooManyReplicas")),
    "minimum": (spec(least=2), 4, 1, past(), (2, "ReadyForNewScale", "TooFewReplicas")),
    "highest of the last 300 s": (
        spec(), 6, 2, past((301, 9), (200, 5)), (5, "ScaleDownStabilized", "DesiredWithinRange"),
    ),
    "no window": (spec(**AT_ONCE), 6, 2, past((10, 6)), (2, "ReadyForNewScale", "DesiredWithinRange")),
    "one pod a minute": (spec(**ONE_A_MINUTE), 6, 2, past((5, 6)), (5, "ReadyForNewScale", "ScaleDownLimit")),
    "that pod is gone already": (
        spec(**ONE_A_MINUTE), 5, 2, past((5, 6), events=((20, -1),)), (5, "ReadyForNewScale", "ScaleDownLimit"),
    ),
    "minimum under policies": (spec(least=2, **AT_ONCE), 4, 1, past(), (2, "ReadyForNewScale", "TooFewReplicas")),
    "lowest recent on the way up": (
        spec(**SLOW_UP), 2, 8, past((30, 3), (70, 1)), (3, "ScaleUpStabilized", "DesiredWithinRange"),
    ),
    "default policies up": (spec(**AT_ONCE), 2, 20, past(), (6, "ReadyForNewScale", "ScaleUpLimit")),
    "most of the policies": (
        spec(scaleUp={"policies": TWO_OR_HALF}), 10, 20, past(), (15, "ReadyForNewScale", "ScaleUpLimit"),
    ),
    "least of the policies": (
        spec(scaleUp={"policies": TWO_OR_HALF, "selectPolicy": "Min"}), 10, 20, past(),
        (12, "ReadyForNewScale", "ScaleUpLimit"),
    ),
    "direction is disabled": (
        spec(scaleDown={"selectPolicy": "Disabled", "stabilizationWindowSeconds": 0}), 6, 2, past(),
        (6, "ReadyForNewScale", "ScaleDownLimit"),
    ),
    "maximum under policies": (spec(most=3, **AT_ONCE), 2, 9, past(), (3, "ReadyForNewScale", "TooManyReplicas")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_behavior_limits_the_change(name: str) -> None:
    value, current, desired, before, expected = CASES[name]
    result = normalize(value, current, desired, before, NOW_S, DOWN_S)
    assert (result.replicas, result.able[0], result.limit[0]) == expected
    assert result.limited == (expected[2] != "DesiredWithinRange")
