"""kubectl rollout for StatefulSets and DaemonSets; test_workloads has the tests for Deployments."""

import pytest
from tests.e2e.driver import Cluster, eventually

SET = """
apiVersion: apps/v1
kind: %s
metadata: {name: it}
spec:%s
  selector: {matchLabels: {app: it}}
  template:
    metadata: {labels: {app: it}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: nginx:1.27
          ports: [{containerPort: 80}]
          readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
"""


def pods(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The image of each pod that is not being deleted, by uid."""
    result = cluster.get("pods", "-l", "app=it", "-n", namespace)["items"]
    return {
        pod["metadata"]["uid"]: pod["spec"]["containers"][0]["image"]
        for pod in result
        if "deletionTimestamp" not in pod["metadata"]
    }


@pytest.mark.parametrize(("kind", "more"), [("StatefulSet", "\n  serviceName: it\n  replicas: 2"), ("DaemonSet", "")])
def test_status_restart_history_and_undo(cluster: Cluster, namespace: str, kind: str, more: str) -> None:
    subject = (f"{kind.lower()}/it", "-n", namespace)

    def settled() -> dict[str, str]:
        cluster.kubectl("rollout", "status", *subject, "--timeout=90s")
        return pods(cluster, namespace)

    cluster.apply(SET % (kind, more), "-n", namespace)
    first = settled()
    assert set(first.values()) == {"nginx:1.27"} and len(first) >= 2
    cluster.kubectl("rollout", "restart", *subject)
    second = settled()
    assert not first.keys() & second.keys() and len(second) == len(first)
    cluster.kubectl("set", "image", *subject[:1], "main=nginx:1.28", "-n", namespace)
    eventually(lambda: set(settled().values()) == {"nginx:1.28"})
    history = cluster.kubectl("rollout", "history", *subject).splitlines()[2:]
    assert [line.split()[0] for line in history if line] == ["1", "2", "3"]
    cluster.kubectl("rollout", "undo", *subject)
    eventually(lambda: set(settled().values()) == {"nginx:1.27"})


def test_a_daemon_set_follows_the_nodes_that_it_may_use(cluster: Cluster, namespace: str) -> None:
    text = (SET % ("DaemonSet", "")).replace("    spec:\n", "    spec:\n      nodeSelector: {role: edge}\n")
    cluster.apply(text, "-n", namespace)
    eventually(lambda: cluster.get("daemonset", "it", "-n", namespace)["status"].get("observedGeneration") == 1)
    assert pods(cluster, namespace) == {}
    try:
        cluster.kubectl("label", "node", "node-2", "role=edge")
        eventually(lambda: len(pods(cluster, namespace)) == 1)
        cluster.kubectl("rollout", "status", "daemonset/it", "-n", namespace, "--timeout=90s")
    finally:
        cluster.kubectl("label", "node", "node-2", "role-")
    eventually(lambda: pods(cluster, namespace) == {})
