"""Pods of higher priority take the room of pods of lower priority."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.e2e.driver import Cluster, eventually

RESOURCE = "example.com/seats"
NODE = "node-1"
SEATS = 4
CLASSES = {"low": 1, "middle": 100, "high": 1000}


@pytest.fixture(scope="module")
def classes(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Names of priority classes by their last word; a node has four seats of an extended resource."""
    names = {word: f"p{os.getpid()}-{word}" for word in (*CLASSES, "meek")}
    for word, value in CLASSES.items():
        cluster.kubectl("create", "priorityclass", names[word], f"--value={value}")
    cluster.kubectl("create", "priorityclass", names["meek"], "--value=900", "--preemption-policy=Never")
    seats(cluster, {"op": "add", "value": str(SEATS)})
    yield names
    seats(cluster, {"op": "remove"})
    cluster.kubectl("delete", "priorityclass", *names.values())


def seats(cluster: Cluster, change: dict[str, str]) -> None:
    path = "/status/capacity/" + RESOURCE.replace("/", "~1")
    cluster.kubectl(
        "patch", "node", NODE, "--subresource=status", "--type=json", "-p", json.dumps([change | {"path": path}])
    )


def spec(priority: str, count: int) -> dict[str, Any]:
    """A pod that takes ``count`` seats."""
    amounts = {RESOURCE: str(count)}
    container = {"name": "c", "image": "nginx", "resources": {"requests": amounts, "limits": amounts}}
    return {"priorityClassName": priority, "terminationGracePeriodSeconds": 1, "containers": [container]}


def create(cluster: Cluster, namespace: str, name: str, body: dict[str, Any], **meta: Any) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": body}
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(pod))


def running(cluster: Cluster, namespace: str, *names: str) -> Callable[[], bool]:
    def check() -> bool:
        pods = cluster.get("pods", "-n", namespace)["items"]
        return sorted(pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running") == sorted(
            names
        )

    return check


def reasons(cluster: Cluster, namespace: str, name: str) -> set[str]:
    events = cluster.get("events", "-n", namespace, "--field-selector", f"involvedObject.name={name}")["items"]
    return {event["reason"] for event in events}


def test_pod_of_higher_priority_replaces_the_lowest(cluster: Cluster, namespace: str, classes: dict[str, str]) -> None:
    create(cluster, namespace, "low", spec(classes["low"], 2))
    create(cluster, namespace, "middle", spec(classes["middle"], 2))
    eventually(running(cluster, namespace, "low", "middle"))
    create(cluster, namespace, "meek", spec(classes["meek"], 2))
    text = ("describe", "pod", "meek", "-n", namespace)
    eventually(lambda: "not eligible due to preemptionPolicy=Never." in cluster.kubectl(*text))
    create(cluster, namespace, "high", spec(classes["high"], 2))
    eventually(running(cluster, namespace, "high", "middle"))
    eventually(lambda: "Preempted" in reasons(cluster, namespace, "low"))
    assert "Scheduled" in eventually(lambda: reasons(cluster, namespace, "high"))
    high = cluster.get("pod", "high", "-n", namespace)
    assert high["spec"]["nodeName"] == NODE
    assert "nominatedNodeName" not in high["status"]


def test_preempted_pod_has_the_disruption_condition(cluster: Cluster, namespace: str, classes: dict[str, str]) -> None:
    create(cluster, namespace, "low", spec(classes["low"], SEATS), finalizers=["example.com/keep"])
    eventually(running(cluster, namespace, "low"))
    create(cluster, namespace, "high", spec(classes["high"], SEATS))

    def preempted() -> dict[str, Any] | None:
        pod = cluster.get("pod", "low", "-n", namespace)
        if not pod["metadata"].get("deletionTimestamp") or pod["status"]["phase"] == "Running":
            return None
        conditions = pod["status"]["conditions"]
        return next((condition for condition in conditions if condition["type"] == "DisruptionTarget"), None)

    result = eventually(preempted)
    assert (result["status"], result["reason"]) == ("True", "PreemptionByScheduler")
    cluster.kubectl("patch", "pod", "low", "-n", namespace, "-p", '{"metadata": {"finalizers": null}}')
    eventually(running(cluster, namespace, "high"))


def test_critical_pod_takes_the_room_of_others(cluster: Cluster, namespace: str, classes: dict[str, str]) -> None:
    create(cluster, namespace, "low", spec(classes["low"], SEATS))
    eventually(running(cluster, namespace, "low"))
    name = f"critical-{os.getpid()}"
    create(cluster, "kube-system", name, spec("system-cluster-critical", SEATS))
    try:
        eventually(lambda: cluster.get("pod", name, "-n", "kube-system")["status"]["phase"] == "Running")
        assert not cluster.get("pods", "-n", namespace)["items"]
    finally:
        cluster.kubectl("delete", "pod", name, "-n", "kube-system")


def test_budget_keeps_pods_where_others_can_go(cluster: Cluster, namespace: str, classes: dict[str, str]) -> None:
    create(cluster, namespace, "kept", spec(classes["low"], 2), labels={"app": "kept"})
    create(cluster, namespace, "middle", spec(classes["middle"], 2))
    cluster.kubectl("create", "pdb", "keep", "--selector=app=kept", "--min-available=1", "-n", namespace)
    eventually(running(cluster, namespace, "kept", "middle"))
    eventually(lambda: cluster.get("pdb", "keep", "-n", namespace)["status"].get("currentHealthy") == 1)
    create(cluster, namespace, "high", spec(classes["high"], 2))
    eventually(running(cluster, namespace, "high", "kept"))


def test_replica_sets_share_room_by_priority(cluster: Cluster, namespace: str, classes: dict[str, str]) -> None:
    def replica_set(name: str, replicas: int) -> None:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": spec(classes[name], 1)}
        body = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        meta = {"name": name, "namespace": namespace}
        cluster.apply(json.dumps({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": body}))

    def ready(**expected: int) -> bool:
        result = cluster.get("replicasets", "-n", namespace)["items"]
        return {item["metadata"]["name"]: item["status"].get("readyReplicas", 0) for item in result} == expected

    replica_set("low", 2)
    replica_set("middle", 2)
    eventually(lambda: ready(low=2, middle=2))
    replica_set("high", 3)
    eventually(lambda: ready(low=0, middle=1, high=3))
    replica_set("high", 1)
    eventually(lambda: ready(low=1, middle=2, high=1))
