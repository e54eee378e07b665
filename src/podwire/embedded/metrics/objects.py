"""The objects of metrics.k8s.io/v1beta1, from the reports of kubelets. Pure.

A pod is left out while one of its running containers has no rate yet, as in metrics-server. Sources:
``k8s.io/metrics/pkg/apis/metrics/v1beta1``, metrics-server ``pkg/api`` and ``pkg/storage``.
"""

import datetime
from collections.abc import Mapping
from typing import Any, Final

from podwire.embedded.metrics.usage import PodUsage, Usage, UsageReport
from podwire.model.quantity import render_binary, render_decimal

Json = dict[str, Any]

GROUP: Final = "metrics.k8s.io"
VERSION: Final = "v1beta1"

_QUANTITIES: Json = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "The resource usage: cpu in cores, memory in bytes.",
}
_TIMES: Json = {
    "timestamp": {"type": "string", "format": "date-time", "description": "The end of the window."},
    "window": {"type": "string", "description": "The interval over which the usage of CPU is counted."},
}
_CONTAINERS: Json = {
    "type": "array",
    "description": "Metrics of all containers, collected within the same window.",
    "items": {
        "type": "object",
        "required": ["name", "usage"],
        "properties": {
            "name": {"type": "string", "description": "Name of the container, as in pod.spec.containers."},
            "usage": _QUANTITIES,
        },
    },
}
SCHEMAS: Mapping[tuple[str, str, str], Json] = {
    (GROUP, VERSION, "NodeMetrics"): {
        "type": "object",
        "description": "NodeMetrics are the resource usage of a node.",
        "required": ["timestamp", "window", "usage"],
        "properties": {**_TIMES, "usage": _QUANTITIES},
    },
    (GROUP, VERSION, "PodMetrics"): {
        "type": "object",
        "description": "PodMetrics are the resource usage of a pod.",
        "required": ["timestamp", "window", "containers"],
        "properties": {**_TIMES, "containers": _CONTAINERS},
    },
}
"""The schemas of both kinds, for OpenAPI."""


def quantities(cpu_nanocores: int, memory_bytes: int) -> Json:
    """``{"cpu": "1462398n", "memory": "14508Ki"}``."""
    return {"cpu": render_decimal(cpu_nanocores, "n"), "memory": render_binary(memory_bytes)}


def duration(seconds: float) -> str:
    """``15.003s`` or ``1m15.5s``, as Go writes durations of whole milliseconds."""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    text = f"{rest // 1000}.{rest % 1000:03}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}" if minutes else text


def _time(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _head(kind: str, meta: Json, usage: Usage) -> Json:
    return {
        "kind": kind,
        "apiVersion": f"{GROUP}/{VERSION}",
        "metadata": {**meta, "creationTimestamp": _time(usage.at_s)},
        "timestamp": _time(usage.at_s),
        "window": duration(usage.window_s),
    }


def _meta(obj: Json) -> Json:
    """The part of an object's metadata that its metrics show."""
    meta = obj["metadata"]
    return {key: meta[key] for key in ("name", "namespace", "labels") if meta.get(key)}


def node_metrics(node: Json, report: UsageReport) -> Json | None:
    """The NodeMetrics of a Node object; None while there is no rate."""
    usage = report.node
    if usage is None or not usage.window_s:
        return None
    head = _head("NodeMetrics", _meta(node), usage)
    return {**head, "usage": quantities(usage.cpu_nanocores, usage.memory_bytes)}


def pod_metrics(pod: Json, usage: PodUsage) -> Json | None:
    """The PodMetrics of a Pod object; None while a container has no rate."""
    if any(not container.usage.window_s for container in usage.containers):
        return None
    earliest = min((container.usage for container in usage.containers), key=lambda usage: usage.at_s - usage.window_s)
    containers = [
        {"name": c.name, "usage": quantities(c.usage.cpu_nanocores, c.usage.memory_bytes)} for c in usage.containers
    ]
    return {**_head("PodMetrics", _meta(pod), earliest), "containers": containers}
