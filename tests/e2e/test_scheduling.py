"""The node that pods get: taints, affinity, spreading, and the message for a pod that fits no node."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.driver import Cluster, eventually


def deployment(name: str, replicas: int, **spec: Any) -> str:
    """A Deployment as JSON; ``spec`` is more of the pods' spec."""
    labels = {"app": name}
    pod = {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "nginx"}], **spec}
    body = {"replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod}}  # fmt: skip
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": body})


def nodes_of_pods(cluster: Cluster, namespace: str, app: str) -> list[str]:
    """The node of each pod, empty for one that has none, in order."""
    result = cluster.get("pods", "-l", f"app={app}", "-n", namespace)["items"]
    return sorted(pod["spec"].get("nodeName", "") for pod in result)


def anti_affinity(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


@pytest.fixture
def tainted(cluster: Cluster) -> Iterator[str]:
    cluster.kubectl("taint", "node", "node-1", "only=some:NoSchedule")
    try:
        yield "node-1"
    finally:
        cluster.kubectl("taint", "node", "node-1", "only-")


def test_taints_keep_away_pods_without_toleration(cluster: Cluster, namespace: str, tainted: str) -> None:
    toleration = {"key": "only", "value": "some", "effect": "NoSchedule"}
    hostname = {"nodeSelector": {"kubernetes.io/hostname": tainted}}
    cluster.apply(deployment("others", 4), "-n", namespace)
    cluster.apply(deployment("some", 2, tolerations=[toleration], **hostname), "-n", namespace)
    cluster.apply(deployment("nowhere", 1, **hostname), "-n", namespace)
    for name in ("others", "some"):
        cluster.rolled_out(name, namespace=namespace)
    assert nodes_of_pods(cluster, namespace, "others") == ["node-2"] * 4
    assert nodes_of_pods(cluster, namespace, "some") == [tainted] * 2
    assert nodes_of_pods(cluster, namespace, "nowhere") == [""]
    reported = ("describe", "pod", "-l", "app=nowhere", "-n", namespace)
    eventually(lambda: "1 node(s) had untolerated taint {only: some}" in cluster.kubectl(*reported))


def test_anti_affinity_puts_one_on_each_node_and_affinity_follows(cluster: Cluster, namespace: str) -> None:
    nodes = sorted(node["metadata"]["name"] for node in cluster.get("nodes")["items"])
    count = len(nodes)
    cluster.apply(deployment("apart", count + 1, affinity=anti_affinity("apart")), "-n", namespace)
    eventually(lambda: nodes_of_pods(cluster, namespace, "apart") == ["", *nodes])
    reported = ("describe", "pod", "-l", "app=apart", "-n", namespace)
    eventually(lambda: "didn't match pod anti-affinity rules" in cluster.kubectl(*reported))
    cluster.apply(deployment("single", 1), "-n", namespace)
    cluster.rolled_out("single", namespace=namespace)
    where = nodes_of_pods(cluster, namespace, "single")
    term = {"labelSelector": {"matchLabels": {"app": "single"}}, "topologyKey": "kubernetes.io/hostname"}
    follow = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster.apply(deployment("near", 3, affinity=follow), "-n", namespace)
    cluster.rolled_out("near", namespace=namespace)
    assert nodes_of_pods(cluster, namespace, "near") == where * 3


def test_spread_over_nodes_is_even(cluster: Cluster, namespace: str) -> None:
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
              "labelSelector": {"matchLabels": {"app": "even"}}}  # fmt: skip
    nodes = sorted(node["metadata"]["name"] for node in cluster.get("nodes")["items"])
    cluster.apply(deployment("even", 3 * len(nodes), topologySpreadConstraints=[spread]), "-n", namespace)
    cluster.rolled_out("even", namespace=namespace)
    assert nodes_of_pods(cluster, namespace, "even") == sorted(nodes * 3)
