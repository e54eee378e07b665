"""The metrics of autoscalers in the form of the annotation that stands for them in ``autoscaling/v1``.

Version 1 has one field, the use of CPU; the annotation has all other metrics. Its form is an older one: a metric has no
``target`` and no ``metric``, and its numbers are in fields of their own (Kubernetes' types of ``autoscaling/v1``).
"""

from collections.abc import Callable
from typing import Any

Metric = dict[str, Any]

_FIELDS = {
    "Resource": "resource", "ContainerResource": "containerResource", "Pods": "pods", "Object": "object",
    "External": "external",
}  # fmt: skip
_NUMBERS = {
    "Resource": (("averageUtilization", "targetAverageUtilization"), ("averageValue", "targetAverageValue")),
    "ContainerResource": (("averageUtilization", "targetAverageUtilization"), ("averageValue", "targetAverageValue")),
    "Pods": (("averageValue", "targetAverageValue"),),
    "Object": (("value", "targetValue"), ("averageValue", "averageValue")),
    "External": (("value", "targetValue"), ("averageValue", "targetAverageValue")),
}
"""By type: the number in the target of version 2, and its field in the annotation."""
_TYPES = {"averageUtilization": "Utilization", "averageValue": "AverageValue", "value": "Value"}


def of_cpu(metric: Metric) -> int | None:
    """The wanted use of CPU, if the metric is the one that version 1 has a field for."""
    resource = metric.get("resource") or {}
    if metric.get("type") != "Resource" or resource.get("name") != "cpu":
        return None
    percent = (resource.get("target") or {}).get("averageUtilization")
    return percent if isinstance(percent, int) else None


def older(metric: Metric) -> Metric:
    """A metric of version 2 in the form of the annotation."""
    return _with_source(metric, _older)


def newer(metric: Metric) -> Metric:
    """A metric of the annotation in the form of version 2."""
    return _with_source(metric, _newer)


def _with_source(metric: Metric, change: Callable[[str, Metric], Metric]) -> Metric:
    kind = str(metric.get("type"))
    field = _FIELDS.get(kind, "")
    source = metric.get(field)
    return {**metric, field: change(kind, source)} if isinstance(source, dict) else metric


def _older(kind: str, source: Metric) -> Metric:
    target, identity = source.get("target") or {}, source.get("metric") or {}
    fields = {key: value for key, value in source.items() if key not in ("target", "metric", "describedObject")}
    if "describedObject" in source:
        fields["target"] = source["describedObject"]
    if identity:
        fields["metricName"] = identity.get("name", "")
    if identity.get("selector"):
        fields["metricSelector" if kind == "External" else "selector"] = identity["selector"]
    numbers = {old: target[new] for new, old in _NUMBERS[kind] if target.get(new) is not None}
    return {**fields, **({"targetValue": "0"} if kind == "Object" and "targetValue" not in numbers else {}), **numbers}


def _newer(kind: str, source: Metric) -> Metric:
    numbers = {new: source[old] for new, old in _NUMBERS[kind] if source.get(old) is not None}
    if kind == "Object" and "averageValue" in numbers:
        numbers.pop("value", None)
    old_fields = {"metricName", "metricSelector", "selector", *(old for _, old in _NUMBERS[kind])}
    fields = {key: value for key, value in source.items() if key not in old_fields}
    if kind == "Object":
        fields["describedObject"] = fields.pop("target", {})
    if "metricName" in source:
        selector = source.get("metricSelector") or source.get("selector")
        fields["metric"] = {"name": source["metricName"], **({"selector": selector} if selector else {})}
    return {**fields, "target": {**({"type": _TYPES[next(iter(numbers))]} if numbers else {}), **numbers}}
