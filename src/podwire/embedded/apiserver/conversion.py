"""Versions of one kind: Events of ``v1`` and ``events.k8s.io/v1``, autoscalers of ``v1`` and ``v2``.

Objects are stored in one version, and converted when a client sends or requests the other version.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from podwire.embedded.apiserver import scalermetrics
from podwire.embedded.apiserver.kinds import ResourceKind

Object = dict[str, Any]

_EVENT_NAMES = (
    ("involvedObject", "regarding"), ("message", "note"), ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"), ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"), ("reportingComponent", "reportingController"),
)  # fmt: skip


_BEHAVIOR = "autoscaling.alpha.kubernetes.io/behavior"
_METRICS = "autoscaling.alpha.kubernetes.io/metrics"
_STORAGE_VERSIONS = {"/events": "v1", "autoscaling/horizontalpodautoscalers": "autoscaling/v2"}


def view(kind: ResourceKind, obj: Object) -> Object:
    """The object in the version of ``kind``; custom objects differ in ``apiVersion`` only."""
    return _converted(kind, obj, kind.api_version)


def in_storage_version(kind: ResourceKind, obj: Object) -> Object:
    """The object in the version in which objects of this kind are stored."""
    return _converted(kind, obj, _STORAGE_VERSIONS.get(kind.table, kind.api_version))


def _converted(kind: ResourceKind, obj: Object, api_version: str) -> Object:
    if obj.get("apiVersion") == api_version:
        return obj
    if kind.table == "/events":
        obj = event_view(obj, api_version)
    elif kind.table == "autoscaling/horizontalpodautoscalers":
        obj = autoscaler_view(obj, api_version)
    return {**obj, "apiVersion": api_version}


def event_view(event: Object, api_version: str) -> Object:
    """The event with the field names of ``api_version``."""
    renamed = dict(_EVENT_NAMES)
    if api_version == "v1":
        renamed = {new: old for old, new in _EVENT_NAMES}
    out = {renamed.get(key, key): value for key, value in event.items()}
    series = out.get("series")
    if isinstance(series, dict) and api_version != "v1":
        out["series"] = {key: value for key, value in series.items() if key != "state"}
    if api_version == "v1":
        out.setdefault("source", {})
        out.setdefault("firstTimestamp", None)
        out.setdefault("lastTimestamp", None)
    return out


def autoscaler_view(scaler: Object, api_version: str) -> Object:
    """The autoscaler with the target and the use of CPU in the form of ``api_version``."""
    spec = dict(scaler.get("spec") or {})
    status = dict(scaler.get("status") or {})
    if api_version == "autoscaling/v1":
        other_metrics = []
        for metric in spec.pop("metrics", None) or ():
            percent = scalermetrics.of_cpu(metric)
            if percent is not None:
                spec["targetCPUUtilizationPercentage"] = percent
            else:
                other_metrics.append(scalermetrics.older(metric))
        scaler = _with_annotation(scaler, _METRICS, other_metrics)
        scaler = _with_annotation(scaler, _BEHAVIOR, _renamed(spec.pop("behavior", None), str.upper))
        status.pop("conditions", None)
        for metric in status.pop("currentMetrics", None) or ():
            current = (metric.get("resource") or {}).get("current") or {}
            if (metric.get("resource") or {}).get("name") == "cpu" and "averageUtilization" in current:
                status["currentCPUUtilizationPercentage"] = current["averageUtilization"]
        return {**scaler, "spec": spec, **({"status": status} if status else {})}
    scaler, behavior = _without_annotation(scaler, _BEHAVIOR, dict)
    if behavior is not None:
        spec.setdefault("behavior", _renamed(behavior, str.lower))
    scaler, other_metrics = _without_annotation(scaler, _METRICS, list)
    metrics = [scalermetrics.newer(metric) for metric in other_metrics or () if isinstance(metric, dict)]
    if "targetCPUUtilizationPercentage" in spec:
        percent = spec.pop("targetCPUUtilizationPercentage")
        target = {"type": "Utilization", "averageUtilization": percent}
        metrics.append({"type": "Resource", "resource": {"name": "cpu", "target": target}})
    if metrics:
        spec["metrics"] = metrics
    return {**scaler, "spec": spec, **({"status": status} if status else {})}


def _with_annotation(scaler: Object, name: str, value: object) -> Object:
    """The autoscaler with the annotation that stands for a field that version 1 lacks; an empty value has none."""
    if not value:
        return scaler
    meta = dict(scaler.get("metadata") or {})
    meta["annotations"] = {**(meta.get("annotations") or {}), name: msgspec.json.encode(value).decode()}
    return {**scaler, "metadata": meta}


def _without_annotation(scaler: Object, name: str, form: type) -> tuple[Object, Any]:
    """The autoscaler without an annotation, and the value in it; an annotation that does not parse stays."""
    meta = dict(scaler.get("metadata") or {})
    annotations = dict(meta.get("annotations") or {})
    try:
        value = msgspec.json.decode(annotations.pop(name, "null"))
    except (msgspec.DecodeError, TypeError):
        return scaler, None
    if not isinstance(value, form):
        return scaler, None
    meta["annotations"] = annotations
    if not annotations:
        del meta["annotations"]
    return {**scaler, "metadata": meta}, value


def _renamed(value: Any, change: Callable[[str], str]) -> Any:
    """The value with the first letter of each key changed: the annotation has the names of Go fields."""
    if isinstance(value, dict):
        return {change(key[:1]) + key[1:]: _renamed(item, change) for key, item in value.items() if item is not None}
    return [_renamed(item, change) for item in value] if isinstance(value, list) else value
