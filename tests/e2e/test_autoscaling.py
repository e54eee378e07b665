"""kubectl top, and a HorizontalPodAutoscaler that follows the load of a Deployment."""

import json
import re
from typing import Any

import yaml
from tests.e2e.driver import Cluster, eventually

_MEASURED_S = 90.0
"""Enough for a cluster that measures every 15 s, too."""
BUSY = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "busy"},
    "spec": {
        "selector": {"matchLabels": {"app": "busy"}},
        "template": {
            "metadata": {"labels": {"app": "busy"}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
                "name": "loop", "image": "busybox",
                "command": ["sh", "-c", "while [ ! -e /quiet ]; do :; done; exec sleep 1000"],
                "resources": {"requests": {"cpu": "40m", "memory": "16Mi"}, "limits": {"cpu": "100m"}},
            }]},
        },
    },
}  # fmt: skip
SCALER = {
    "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "busy"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"},
        "minReplicas": 1, "maxReplicas": 3, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        "metrics": [{"type": "Resource", "resource": {
            "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
    },
}  # fmt: skip


def top(cluster: Cluster, *arguments: str) -> list[list[str]]:
    """The rows of ``kubectl top``; none while nothing is measured."""
    done = cluster.run(["kubectl", "top", *arguments, "--no-headers"])
    return [line.split() for line in done.stdout.splitlines()] if done.returncode == 0 else []


def replicas(cluster: Cluster, namespace: str) -> int:
    return int(cluster.get("deployment", "busy", "-n", namespace)["spec"]["replicas"])


def events(cluster: Cluster, namespace: str) -> str:
    shown: list[dict[str, Any]] = cluster.get("events", "-n", namespace)["items"]
    return "\n".join(f"{event['reason']}: {event['message']}" for event in shown)


def conditions(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """The autoscaler's conditions by type."""
    return {c["type"]: c for c in cluster.get("hpa", "busy", "-n", namespace)["status"]["conditions"]}


def test_top_shows_load_and_an_autoscaler_follows_it(cluster: Cluster, namespace: str) -> None:
    cluster.apply(yaml.safe_dump_all([BUSY, SCALER]), "-n", namespace)
    eventually(lambda: top(cluster, "pods", "-n", namespace, "-l", "app=busy", "--containers"), within=_MEASURED_S)
    row = top(cluster, "pods", "-n", namespace, "-l", "app=busy", "--containers")[0]
    assert row[1] == "loop" and int(row[2].removesuffix("m")) > 50
    nodes = top(cluster, "nodes", "--sort-by=cpu")
    assert {row[0] for row in nodes} == {node["metadata"]["name"] for node in cluster.get("nodes")["items"]}

    eventually(lambda: replicas(cluster, namespace) == 3, within=_MEASURED_S)
    eventually(lambda: conditions(cluster, namespace)["ScalingActive"]["status"] == "True", within=_MEASURED_S)
    reason = "cpu resource utilization (percentage of request) above target"
    eventually(lambda: f"SuccessfulRescale: New size: 3; reason: {reason}" in events(cluster, namespace))
    cluster.rolled_out("busy", namespace=namespace)
    table = cluster.kubectl("get", "hpa", "busy", "-n", namespace, "--no-headers")
    assert re.match(r"busy\s+Deployment/busy\s+cpu: \d+%/50%\s+1\s+3\s+[123]\s", table), table

    pods = cluster.get("pods", "-n", namespace, "-l", "app=busy")["items"]
    for pod in pods:
        cluster.kubectl("exec", pod["metadata"]["name"], "-n", namespace, "--", "touch", "/quiet")
    eventually(lambda: replicas(cluster, namespace) == 1, within=_MEASURED_S)
    eventually(lambda: "New size: 1; reason: All metrics below target" in events(cluster, namespace))


def test_metric_without_server_is_named(cluster: Cluster, namespace: str) -> None:
    custom = json.loads(json.dumps(SCALER))
    custom["spec"]["metrics"] = [{"type": "Pods", "pods": {
        "metric": {"name": "requests"}, "target": {"type": "AverageValue", "averageValue": "5"}}}]  # fmt: skip
    quiet = json.loads(json.dumps(BUSY).replace("while [ ! -e /quiet ]; do :; done; ", ""))
    cluster.apply(yaml.safe_dump_all([quiet, custom]), "-n", namespace)
    eventually(lambda: "FailedGetPodsMetric: unable to get metric requests" in events(cluster, namespace))
    active = conditions(cluster, namespace)["ScalingActive"]
    assert (active["status"], active["reason"]) == ("False", "FailedGetPodsMetric")
