"""The replicas that the value of an object or of external series asks for."""

import pytest
from tests.unit.embedded.workloads.autoscaling.test_replicas import A, B, C, pod

from podwire.embedded.workloads.autoscaling.replicas import MetricFailure, Proposal, Tolerance
from podwire.embedded.workloads.autoscaling.totals import propose_total
from podwire.model.autoscaling import MetricTarget

WHOLE = MetricTarget(type="Value", value="10")
SHARE = MetricTarget(type="AverageValue", average_value="10")
TOLERANCE = Tolerance(0.1, 0.1)
CASES = {
    "up by the ratio": (20_000, WHOLE, (3, 3), Proposal(6, value_milli=20_000)),
    "down by the ratio": (3_000, WHOLE, (3, 3), Proposal(1, value_milli=3_000)),
    "within the tolerance": (10_500, WHOLE, (3, 3), Proposal(3, value_milli=10_500)),
    "from nothing": (15_000, WHOLE, (0, 0), Proposal(2, value_milli=15_000)),
    "nothing used": (0, WHOLE, (3, 3), Proposal(0, value_milli=0)),
    "shared up": (41_000, SHARE, (3, 3), Proposal(5, 13_667)),
    "shared down": (9_000, SHARE, (3, 3), Proposal(1, 3_000)),
    "shared within the tolerance": (31_000, SHARE, (3, 3), Proposal(3, 10_334)),
    "shared among those that exist": (21_000, SHARE, (4, 2), Proposal(2, 10_500)),
    "shared from nothing": (25_000, SHARE, (0, 0), Proposal(3, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_whole_and_target_give_the_replicas(name: str) -> None:
    milli, target, replicas, expected = CASES[name]
    assert propose_total(milli, target, replicas, (A, B, C), TOLERANCE) == expected


def test_ratio_counts_ready_pods_alone() -> None:
    pods = (A, pod("b", ready=False), pod("c", "Pending"))
    assert propose_total(20_000, WHOLE, (3, 3), pods, TOLERANCE).replicas == 2


def test_missing_pods_and_targets_are_failures() -> None:
    with pytest.raises(MetricFailure, match="no pods returned by selector"):
        propose_total(20_000, WHOLE, (3, 3), (), TOLERANCE)
    with pytest.raises(MetricFailure, match="neither a value target"):
        propose_total(20_000, MetricTarget(), (3, 3), (A,), TOLERANCE)
