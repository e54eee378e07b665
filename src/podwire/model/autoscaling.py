"""HorizontalPodAutoscalers of ``autoscaling/v2``."""

from typing import Any

from podwire.model.meta import Condition, Fact, ObjectMeta
from podwire.model.selector import LabelSelector

Quantity = str | int | float


class ScaleTarget(Fact, frozen=True):
    """The object whose ``scale`` subresource is written."""

    kind: str = ""
    name: str = ""
    api_version: str = ""


class MetricTarget(Fact, frozen=True):
    """The wanted value: a percentage of the requests, a mean for each pod, or a sum."""

    type: str = ""
    value: Quantity | None = None
    average_value: Quantity | None = None
    average_utilization: int | None = None


class ResourceSource(Fact, frozen=True):
    """A resource of all containers of the pods, or of the one named ``container``."""

    name: str = ""
    container: str = ""
    target: MetricTarget = MetricTarget()


class MetricName(Fact, frozen=True):
    """The name of a custom or external metric, and which of its series count (None: all)."""

    name: str = ""
    selector: LabelSelector | None = None


class NamedSource(Fact, frozen=True):
    """A custom or external metric; ``described_object`` is set for a metric of one object."""

    described_object: ScaleTarget | None = None
    metric: MetricName = MetricName()
    target: MetricTarget = MetricTarget()


class MetricSpec(Fact, frozen=True):
    """One metric; the field of the lower-case name of ``type`` is set."""

    type: str = ""
    resource: ResourceSource | None = None
    container_resource: ResourceSource | None = None
    pods: NamedSource | None = None
    object: NamedSource | None = None
    external: NamedSource | None = None


class ScalingPolicy(Fact, frozen=True):
    """A limit of change: ``value`` pods or percent in ``period_seconds``."""

    type: str = ""
    value: int = 0
    period_seconds: int = 0


class ScalingRules(Fact, frozen=True):
    """The rules of one direction; None: the default."""

    stabilization_window_seconds: int | None = None
    select_policy: str = "Max"
    policies: tuple[ScalingPolicy, ...] = ()
    tolerance: Quantity | None = None


class ScalingBehavior(Fact, frozen=True):
    """The rules of both directions."""

    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None


class AutoscalerSpec(Fact, frozen=True):
    """The target, the limits and the metrics of the autoscaler."""

    scale_target_ref: ScaleTarget = ScaleTarget()
    min_replicas: int = 1
    max_replicas: int = 1
    metrics: tuple[MetricSpec, ...] = ()
    behavior: ScalingBehavior | None = None


class AutoscalerStatus(Fact, frozen=True):
    """The last observation and decision; ``current_metrics`` in the order of ``spec.metrics``."""

    observed_generation: int = 0
    last_scale_time: str | None = None
    current_replicas: int = 0
    desired_replicas: int = 0
    current_metrics: tuple[dict[str, Any], ...] = ()
    conditions: tuple[Condition, ...] = ()


class HorizontalPodAutoscaler(Fact, frozen=True):
    """``autoscaling/v2`` HorizontalPodAutoscaler."""

    api_version: str = "autoscaling/v2"
    kind: str = "HorizontalPodAutoscaler"
    metadata: ObjectMeta = ObjectMeta()
    spec: AutoscalerSpec = AutoscalerSpec()
    status: AutoscalerStatus = AutoscalerStatus()
