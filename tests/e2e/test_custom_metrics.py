"""HorizontalPodAutoscalers that follow metrics of an extension API server in a pod."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.driver import Cluster, eventually
from tests.e2e.extension_server import https_server, listed

APIS = (("custom.metrics.k8s.io", "v1beta2"), ("external.metrics.k8s.io", "v1beta1"))
SERVER = """
import json, ssl, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NOW = "2026-01-01T00:00:00Z"

def item(kind, name, value):
    return {"describedObject": {"kind": kind, "name": name}, "metric": {"name": "m"}, "timestamp": NOW, "value": value}

class Metrics(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        query = urllib.parse.parse_qs(url.query)
        _, _, group, version, *rest = url.path.split("/")
        status, value = 200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{version}",
                              "resources": []}
        if len(rest) == 5 and rest[2:] == ["pods", "*", "calls"]:
            name = query["labelSelector"][0].partition("=")[2]
            value = {"items": [item("Pod", f"{name}-0", "20")]}
        elif len(rest) == 5 and rest[2:] == ["services", "front", "hits"]:
            value = {"items": [item("Service", "front", "2")]}
        elif len(rest) == 3 and rest[2] == "backlog" and query["labelSelector"] == ["queue=jobs"]:
            value = {"items": [{"metricName": "backlog", "timestamp": NOW, "value": v} for v in ("10", "5")]}
        elif rest:
            status = 404
            value = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                     "message": f"no metric at {'/'.join(rest[2:])}"}
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = ThreadingHTTPServer(("", 8443), Metrics)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/certificates/tls.crt", "/certificates/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
METRICS: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "Pods": (
        {"metric": {"name": "calls"}, "target": {"type": "AverageValue", "averageValue": "10"}},
        {"averageValue": "20"}, 2, "pods metric calls above target",
    ),
    "Object": (
        {
            "metric": {"name": "hits"}, "target": {"type": "Value", "value": "500m"},
            "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "front"},
        },
        {"value": "2"}, 4, "Service metric hits above target",
    ),
    "External": (
        {
            "metric": {"name": "backlog", "selector": {"matchLabels": {"queue": "jobs"}}},
            "target": {"type": "AverageValue", "averageValue": "5"},
        },
        {"averageValue": "5"}, 3, "external metric backlog(queue=jobs) above target",
    ),
}  # fmt: skip
"""By type: the metric, its value in the status, the replicas that it leads to, and the reason."""


@pytest.fixture
def metrics(cluster: Cluster, namespace: str) -> Iterator[str]:
    """Registered servers of custom and external metrics; the name of their namespace."""
    objects, authority = https_server("metrics", SERVER, namespace)
    services = [
        {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                "caBundle": authority, "service": {"name": "metrics", "namespace": namespace},
            },
        }
        for group, version in APIS
    ]  # fmt: skip
    cluster.apply(listed(*services))
    cluster.apply(listed(*objects), "-n", namespace)
    yield namespace
    for group, version in APIS:
        cluster.kubectl("delete", "apiservice", f"{version}.{group}")


def _pair(kind: str, source: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    name = kind.lower()
    container = {"name": "c", "image": "busybox", "command": ["sleep", "1000"]}
    workload = {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
            },
        },
    }  # fmt: skip
    scaler = {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
            "minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": kind, name: source}],
        },
    }  # fmt: skip
    return workload, scaler


def _events(cluster: Cluster, namespace: str) -> str:
    return "\n".join(event["message"] for event in cluster.get("events", "-n", namespace)["items"])


def _current(cluster: Cluster, kind: str, namespace: str) -> list[dict[str, Any]]:
    status = cluster.get("hpa", kind.lower(), "-n", namespace)["status"]
    return [entry.get(kind.lower(), {}).get("current", {}) for entry in status.get("currentMetrics", ())]


@pytest.mark.parametrize("kind", METRICS)
def test_autoscaler_follows_a_metric_of_an_extension_server(cluster: Cluster, metrics: str, kind: str) -> None:
    source, value, expected, reason = METRICS[kind]
    for group, version in APIS:
        cluster.kubectl("wait", "--for=condition=Available", f"apiservice/{version}.{group}", "--timeout=90s")
    cluster.apply(listed(*_pair(kind, source)), "-n", metrics)
    eventually(lambda: f"; reason: {reason}" in _events(cluster, metrics))
    assert cluster.get("statefulset", kind.lower(), "-n", metrics)["spec"]["replicas"] >= 2
    eventually(lambda: len(_current(cluster, kind, metrics)) == 1)
    if kind != "External":
        assert _current(cluster, kind, metrics) == [value]
        eventually(lambda: cluster.get("statefulset", kind.lower(), "-n", metrics)["spec"]["replicas"] >= expected)
    unknown = json.loads(json.dumps(source).replace(source["metric"]["name"], "absent"))
    patch = json.dumps({"spec": {"metrics": [{"type": kind, kind.lower(): unknown}]}})
    cluster.kubectl("patch", "hpa", kind.lower(), "-n", metrics, "--type=merge", "-p", patch)
    eventually(lambda: "metrics API: no metric at " in _events(cluster, metrics))
