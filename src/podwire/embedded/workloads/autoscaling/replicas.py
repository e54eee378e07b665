"""The number of replicas that one resource metric asks for. Pure.

    wanted = ceil(replicas * used / target)

Within the tolerance nothing changes. A pod without a metric counts against the change: when scaling down, its assumed
use is its whole request; when scaling up, zero. When scaling up, a pod that is not ready yet counts as using nothing.
Values are thousandths of the resource's unit. The messages of errors are those of Kubernetes, which users see in
conditions and Events.

Source: ``k8s.io/kubernetes/pkg/controller/podautoscaler`` (replica_calculator.go, metrics/utilization.go).
"""

import datetime
import math
from collections.abc import Mapping, Sequence

import msgspec

from podwire.errors import ConfigError
from podwire.model.autoscaling import MetricTarget
from podwire.model.pod import Container, Pod
from podwire.model.quantity import parse_milli


class MetricFailure(Exception):  # noqa: N818 - the message is what users see
    """Why a metric gives no number of replicas."""


class PodMetric(msgspec.Struct, frozen=True):
    """The use of one pod, over ``window_s`` until ``at``."""

    milli: int
    at: datetime.datetime
    window_s: float


class Tolerance(msgspec.Struct, frozen=True):
    """The relative difference from the target that causes no change."""

    up: float
    down: float

    def covers(self, ratio: float) -> bool:
        """Whether the ratio of use to target is close enough to 1."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


class Periods(msgspec.Struct, frozen=True):
    """The periods, in seconds, in which the metrics of new pods are not trusted."""

    cpu_initialization_s: float = 300.0
    """CPU of a pod younger than this counts only when it was measured while the pod was ready."""
    initial_readiness_s: float = 30.0
    """A pod that became unready within this time of its start has never been ready."""


class Situation(msgspec.Struct, frozen=True):
    """The inputs of the computation: the pods that the scale's selector matches, and the use of each pod."""

    resource: str
    container: str
    """Only this container counts; empty: all."""
    replicas: int
    pods: Sequence[Pod]
    metrics: Mapping[str, PodMetric]
    tolerance: Tolerance
    now: datetime.datetime
    periods: Periods = Periods()


class Proposal(msgspec.Struct, frozen=True):
    """The replicas that a metric asks for, and its value now; ``utilization`` is None for a target in units.

    ``value_milli`` is the total, for a target that is not a mean.
    """

    replicas: int
    average_milli: int = 0
    utilization: int | None = None
    value_milli: int | None = None


class _Groups(msgspec.Struct):
    ready: int = 0
    unready: set[str] = msgspec.field(default_factory=set)
    missing: set[str] = msgspec.field(default_factory=set)
    ignored: set[str] = msgspec.field(default_factory=set)


def propose(situation: Situation, target: MetricTarget) -> Proposal:
    """The proposal for a target of a resource.

    Raises: MetricFailure.
    """
    name = situation.resource
    if target.average_value is not None:
        milli = parse_milli(target.average_value)
        try:
            return _counted(situation, _Average(milli))
        except MetricFailure as failure:
            raise MetricFailure(f"failed to get {name} usage: {failure}") from failure
    if target.average_utilization is None:
        raise MetricFailure(
            "invalid resource metric source: neither an average utilization target nor an average value (usage) "
            "target was set"
        )
    try:
        return _counted(situation, _Utilization(target.average_utilization, situation))
    except MetricFailure as failure:
        raise MetricFailure(f"failed to get {name} utilization: {failure}") from failure


def propose_mean(situation: Situation, target: MetricTarget) -> Proposal:
    """The proposal for a custom metric of pods, whose target is a mean.

    Raises: MetricFailure.
    """
    if target.average_value is None:
        raise MetricFailure("invalid pods metric source: no average value target was set")
    return _counted(situation, _Average(parse_milli(target.average_value)))


class _Average:
    """A target in units for each pod."""

    def __init__(self, target_milli: int) -> None:
        self._target = target_milli

    def measure(self, values: Mapping[str, int]) -> tuple[float, int, int | None]:
        """Ratio to the target, mean, and no utilization."""
        mean = sum(values.values()) // len(values)
        return mean / self._target if self._target else 0.0, mean, None

    def full(self, _: str) -> int:
        """The assumed use of a pod without a metric on the way down."""
        return self._target


class _Utilization:
    """A target in percent of the pods' requests."""

    def __init__(self, target: int, situation: Situation) -> None:
        self._target = target
        self._situation = situation
        self._requests: dict[str, int] | None = None

    @property
    def requests(self) -> dict[str, int]:
        """The requests of all pods.

        Raises: MetricFailure naming the container that has no request.
        """
        if self._requests is None:
            self._requests = {pod.metadata.name: _request(pod, self._situation) for pod in self._situation.pods}
        return self._requests

    def measure(self, values: Mapping[str, int]) -> tuple[float, int, int | None]:
        """Ratio to the target, mean, and percentage of the requests.

        Raises: MetricFailure.
        """
        known = {name: value for name, value in values.items() if name in self.requests}
        requested = sum(self.requests[name] for name in known)
        if not requested:
            raise MetricFailure("no metrics returned matched known pods")
        used = sum(known.values())
        percent = used * 100 // requested
        return percent / self._target, used // len(known), percent

    def full(self, name: str) -> int:
        """The assumed use of a pod without a metric on the way down."""
        return self.requests[name] * max(100, self._target) // 100


def _request(pod: Pod, situation: Situation) -> int:
    sidecars = tuple(c for c in pod.spec.init_containers if c.restart_policy == "Always")
    chosen: tuple[Container, ...] = tuple(
        c for c in pod.spec.containers + sidecars if situation.container in ("", c.name)
    )
    total = 0
    for container in chosen:
        request = container.resources.requests.get(situation.resource)
        if request is None:
            raise MetricFailure(
                f"missing request for {situation.resource} in container {container.name} of Pod {pod.metadata.name}"
            )
        total += _milli(request)
    return total


def _milli(quantity: str | int | float) -> int:
    try:
        return parse_milli(quantity)
    except ConfigError:
        return 0


def _counted(situation: Situation, target: _Average | _Utilization) -> Proposal:
    """The proposal.

    Raises: MetricFailure.
    """
    if not situation.pods:
        raise MetricFailure("no pods returned by selector while calculating replica count")
    groups = _group(situation)
    values = {
        name: metric.milli
        for name, metric in situation.metrics.items()
        if name not in groups.ignored and name not in groups.unready
    }
    if not values:
        raise MetricFailure("did not receive metrics for targeted pods (pods might be unready)")
    ratio, mean, percent = target.measure(values)
    stay = Proposal(situation.replicas, mean, percent)
    with_unready = bool(groups.unready) and ratio > 1.0
    if not with_unready and not groups.missing:
        if situation.tolerance.covers(ratio):
            return stay
        return Proposal(math.ceil(ratio * groups.ready), mean, percent)
    if ratio < 1.0:
        values |= {name: target.full(name) for name in groups.missing}
    elif ratio > 1.0:
        values |= dict.fromkeys(groups.missing, 0)
    if with_unready:
        values |= dict.fromkeys(groups.unready, 0)
    again = target.measure(values)[0]
    turned = (ratio < 1.0 < again) or (ratio > 1.0 > again)
    replicas = math.ceil(again * len(values))
    wrong_way = (again < 1.0 and replicas > situation.replicas) or (again > 1.0 and replicas < situation.replicas)
    if situation.tolerance.covers(again) or turned or wrong_way:
        return stay
    return Proposal(replicas, mean, percent)


def _group(situation: Situation) -> _Groups:
    groups = _Groups()
    for pod in situation.pods:
        name, phase = pod.metadata.name, pod.status.phase
        metric = situation.metrics.get(name)
        if pod.metadata.deletion_timestamp is not None or phase == "Failed":
            groups.ignored.add(name)
        elif phase == "Pending":
            groups.unready.add(name)
        elif metric is None:
            groups.missing.add(name)
        elif situation.resource == "cpu" and _is_unready(pod, metric, situation):
            groups.unready.add(name)
        else:
            groups.ready += 1
    return groups


def _instant(text: str | None) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return None


def _is_unready(pod: Pod, metric: PodMetric, situation: Situation) -> bool:
    condition = next((c for c in pod.status.conditions if c.type == "Ready"), None)
    started = _instant(pod.status.start_time)
    changed = _instant(condition.last_transition_time) if condition is not None else None
    if condition is None or started is None or changed is None:
        return True
    unready = condition.status == "False"
    periods = situation.periods
    if started + datetime.timedelta(seconds=periods.cpu_initialization_s) > situation.now:
        return unready or metric.at < changed + datetime.timedelta(seconds=metric.window_s)
    return unready and started + datetime.timedelta(seconds=periods.initial_readiness_s) > changed
