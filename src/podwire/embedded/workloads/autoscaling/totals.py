"""The number of replicas that the value of an object or of external series asks for. Pure.

A target ``Value`` compares the whole with the target, and counts from the ready pods; ``AverageValue`` shares the whole
among the replicas. Values are thousandths of the unit.

Source: ``k8s.io/kubernetes/pkg/controller/podautoscaler/replica_calculator.go`` (getUsageRatioReplicaCount,
GetObjectPerPodMetricReplicas).
"""

import math
from collections.abc import Sequence

from podwire.embedded.workloads.autoscaling.replicas import MetricFailure, Proposal, Tolerance
from podwire.model.autoscaling import MetricTarget
from podwire.model.pod import Pod
from podwire.model.quantity import parse_milli


def propose_total(
    milli: int, target: MetricTarget, replicas: tuple[int, int], pods: Sequence[Pod], tolerance: Tolerance
) -> Proposal:
    """The proposal; ``replicas`` are those that the target's scale wants, and those that it has.

    Raises: MetricFailure when no pod can be counted, or the target names no value.
    """
    proposed, existing = replicas
    if target.value is not None:
        ratio = _ratio(milli, parse_milli(target.value))
        if not proposed:
            return Proposal(math.ceil(ratio), value_milli=milli)
        if tolerance.covers(ratio):
            return Proposal(proposed, value_milli=milli)
        return Proposal(math.ceil(ratio * _ready(pods)), value_milli=milli)
    if target.average_value is None:
        raise MetricFailure("invalid metric source: neither a value target nor an average value target was set")
    share = parse_milli(target.average_value)
    mean = math.ceil(milli / existing) if existing else 0
    if existing and tolerance.covers(_ratio(milli, share * existing)):
        return Proposal(existing, mean)
    return Proposal(math.ceil(_ratio(milli, share)), mean)


def _ratio(milli: int, target: int) -> float:
    return milli / target if target else 0.0


def _ready(pods: Sequence[Pod]) -> int:
    if not pods:
        raise MetricFailure("no pods returned by selector while calculating replica count")
    return sum(pod.status.phase == "Running" and pod.ready for pod in pods)
