"""The pages on which a kubelet publishes usage: ``/stats/summary``, ``/metrics/resource``, ``/metrics/cadvisor``. Pure.

Names, labels and help texts are those of Kubernetes (``k8s.io/kubelet/pkg/apis/stats/v1alpha1``,
``pkg/kubelet/metrics/collectors/resource_metrics.go``) and cAdvisor. Left out is what is not measured here: network,
file systems, page faults.
"""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from podwire.embedded.metrics.usage import ContainerUsage, PodUsage, Usage, UsageReport, total
from podwire.runtime.clock import rfc3339

Json = dict[str, Any]

_PERIOD_US = 100_000


class _Metric(NamedTuple):
    name: str
    type: str
    help: str


_CONTAINER_CPU = _Metric(
    "container_cpu_usage_seconds_total", "counter",
    "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
)  # fmt: skip
_CONTAINER_MEMORY = _Metric(
    "container_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the container in bytes"
)
_CONTAINER_START = _Metric(
    "container_start_time_seconds", "gauge",
    "[STABLE] Start time of the container since unix epoch in seconds",
)  # fmt: skip
_NODE_CPU = _Metric(
    "node_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the node in core-seconds"
)
_NODE_MEMORY = _Metric(
    "node_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the node in bytes"
)  # fmt: skip
_POD_CPU = _Metric(
    "pod_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds"
)
_POD_MEMORY = _Metric(
    "pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes"
)  # fmt: skip
_ERROR = _Metric(
    "resource_scrape_error", "gauge",
    "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
)  # fmt: skip
_CADVISOR_CPU = _Metric("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.")
_CADVISOR_MEMORY = _Metric("container_memory_working_set_bytes", "gauge", "Current working set in bytes.")
_CADVISOR_START = _Metric(
    "container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds."
)
_CADVISOR_QUOTA = _Metric("container_spec_cpu_quota", "gauge", "CPU quota of the container.")
_CADVISOR_PERIOD = _Metric("container_spec_cpu_period", "gauge", "CPU period of the container.")
_CADVISOR_LIMIT = _Metric("container_spec_memory_limit_bytes", "gauge", "Memory limit for the container.")


# -- /stats/summary


def render_summary(report: UsageReport) -> Json:
    """The Summary of a node."""
    node: Json = {"nodeName": report.name}
    if report.node is not None:
        node |= _stats(report.node)
    return {"node": node, "pods": [_pod_summary(pod) for pod in report.pods]}


def _pod_summary(pod: PodUsage) -> Json:
    return {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "containers": [
            {"name": c.name, **_stats(c.usage, c.memory_limit_bytes)} for c in pod.containers
        ],
        **_stats(total(pod)),
    }  # fmt: skip


def _stats(usage: Usage, limit: int | None = None) -> Json:
    time = _time(usage.at_s)
    cpu: Json = {"time": time, "usageCoreNanoSeconds": usage.cpu_us * 1000}
    if usage.window_s:
        cpu["usageNanoCores"] = usage.cpu_nanocores
    memory: Json = {"time": time, "workingSetBytes": usage.memory_bytes}
    if limit is not None:
        memory["availableBytes"] = max(0, limit - usage.memory_bytes)
    return {"startTime": _time(usage.since_s), "cpu": cpu, "memory": memory}


def _time(at_s: float) -> str:
    return rfc3339(datetime.datetime.fromtimestamp(at_s, datetime.UTC))


# -- metrics in Prometheus' text form

_Row = tuple[Mapping[str, str], float, Usage | None]
"""Labels, value, and the usage whose time the line has."""


def render_resource(report: UsageReport) -> bytes:
    """The text of ``/metrics/resource``, with times."""
    containers = list(_containers(report))
    pods = [(_pod_labels(pod), total(pod)) for pod in report.pods]
    own = [report.node] if report.node is not None else []
    tables: list[tuple[_Metric, list[_Row]]] = [
        (_CONTAINER_CPU, [(labels, _seconds(c.usage), c.usage) for labels, c in containers]),
        (_CONTAINER_MEMORY, [(labels, c.usage.memory_bytes, c.usage) for labels, c in containers]),
        (_CONTAINER_START, [(labels, c.usage.since_s, None) for labels, c in containers]),
        (_NODE_CPU, [({}, _seconds(usage), usage) for usage in own]),
        (_NODE_MEMORY, [({}, usage.memory_bytes, usage) for usage in own]),
        (_POD_CPU, [(labels, _seconds(usage), usage) for labels, usage in pods]),
        (_POD_MEMORY, [(labels, usage.memory_bytes, usage) for labels, usage in pods]),
        (_ERROR, [({}, 0 if own else 1, None)]),
    ]
    return _text(tables)


def render_cadvisor(report: UsageReport) -> bytes:
    """The text of ``/metrics/cadvisor``: containers, with cAdvisor's labels."""
    containers = [
        ({**labels, "id": f"/{c.id}", "image": c.image, "name": c.id}, c) for labels, c in _containers(report)
    ]  # fmt: skip
    limited = [(labels, c.cpu_limit_us) for labels, c in containers if c.cpu_limit_us is not None]
    tables: list[tuple[_Metric, list[_Row]]] = [
        (_CADVISOR_CPU, [({**labels, "cpu": "total"}, _seconds(c.usage), c.usage) for labels, c in containers]),
        (_CADVISOR_MEMORY, [(labels, c.usage.memory_bytes, c.usage) for labels, c in containers]),
        (_CADVISOR_START, [(labels, c.usage.since_s, None) for labels, c in containers]),
        (_CADVISOR_QUOTA, [(labels, quota, None) for labels, quota in limited]),
        (_CADVISOR_PERIOD, [(labels, _PERIOD_US, None) for labels, _ in limited]),
        (_CADVISOR_LIMIT, [(labels, c.memory_limit_bytes or 0, None) for labels, c in containers]),
    ]
    return _text(tables)


def _containers(report: UsageReport) -> Iterable[tuple[Mapping[str, str], ContainerUsage]]:
    for pod in report.pods:
        for container in pod.containers:
            yield {"container": container.name, **_pod_labels(pod)}, container


def _pod_labels(pod: PodUsage) -> Mapping[str, str]:
    return {"namespace": pod.namespace, "pod": pod.name}


def _seconds(usage: Usage) -> float:
    return usage.cpu_us / 1_000_000


def _text(tables: Iterable[tuple[_Metric, list[_Row]]]) -> bytes:
    lines = []
    for metric, rows in tables:
        if rows:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.type}"]
        for labels, value, usage in rows:
            inner = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
            time = f" {round(usage.at_s * 1000)}" if usage is not None else ""
            lines.append(f"{metric.name}{{{inner}}} {value}{time}" if inner else f"{metric.name} {value}{time}")
    return ("\n".join(lines) + "\n").encode()
