"""Scaling, rollouts, waiting, and pods that end or fail."""

import json

from tests.e2e.driver import Cluster, deployment, eventually, shell_pod


def _images(cluster: Cluster, namespace: str, app: str) -> set[str]:
    path = "jsonpath={.items[*].spec.containers[0].image}"
    return set(cluster.kubectl("get", "pods", "-n", namespace, "-l", f"app={app}", "-o", path).split())


def test_scale(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.kubectl("scale", "deployment/web", "--replicas=3", "-n", namespace)
    cluster.kubectl(
        "wait", "--for=jsonpath={.status.readyReplicas}=3", "deployment/web", "-n", namespace, "--timeout=90s"
    )
    assert "Expected replicas" in cluster.refused(
        "scale", "deployment/web", "--current-replicas=9", "--replicas=1", "-n", namespace
    )
    cluster.kubectl("scale", "deployment/web", "--replicas=0", "-n", namespace)
    eventually(lambda: not cluster.get("pods", "-n", namespace, "-l", "app=web")["items"])


def test_rollout_restart_undo_history(cluster: Cluster, namespace: str) -> None:
    where = ("deployment/web", "-n", namespace)
    cluster.apply(deployment("web", replicas=2), "-n", namespace)
    done = cluster.kubectl("rollout", "status", *where, "--timeout=90s")
    assert 'deployment "web" successfully rolled out' in done
    before = {item["metadata"]["uid"] for item in cluster.get("pods", "-n", namespace, "-l", "app=web")["items"]}
    cluster.kubectl("rollout", "restart", *where)
    cluster.kubectl("rollout", "status", *where, "--timeout=90s")
    pods = cluster.get("pods", "-n", namespace, "-l", "app=web", "--field-selector=status.phase=Running")["items"]
    assert not before & {item["metadata"]["uid"] for item in pods if "deletionTimestamp" not in item["metadata"]}
    cluster.kubectl("set", "image", "deployment/web", "main=nginx:1.28", "-n", namespace)
    cluster.kubectl("rollout", "status", *where, "--timeout=90s")
    assert [line.split()[0] for line in cluster.kubectl("rollout", "history", *where).splitlines()[2:] if line] == [
        "1", "2", "3",
    ]  # fmt: skip
    cluster.kubectl("rollout", "undo", *where, "--to-revision=1")
    cluster.kubectl("rollout", "status", *where, "--timeout=90s")
    eventually(lambda: _images(cluster, namespace, "web") == {"nginx:1.27"})


def test_a_paused_rollout_waits(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web"), "-n", namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=90s")
    cluster.kubectl("rollout", "pause", "deployment/web", "-n", namespace)
    cluster.kubectl("set", "image", "deployment/web", "main=nginx:1.28", "-n", namespace)
    eventually(
        lambda: cluster.get("deployment", "web", "-n", namespace)["status"].get("observedGeneration", 0) >= 3,
    )
    assert _images(cluster, namespace, "web") == {"nginx:1.27"}
    cluster.kubectl("rollout", "resume", "deployment/web", "-n", namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=90s")
    eventually(lambda: _images(cluster, namespace, "web") == {"nginx:1.28"})


def test_a_rollout_that_cannot_finish_keeps_the_old_pods(cluster: Cluster, namespace: str) -> None:
    cluster.apply(deployment("web", replicas=2), "-n", namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=90s")
    failing = {"name": "main", "readinessProbe": {"httpGet": {"path": "/status/500"}}}
    patch = json.dumps({"spec": {"template": {"spec": {"containers": [failing]}}}})
    cluster.kubectl("patch", "deployment", "web", "-n", namespace, "-p", patch)
    assert "timed out" in cluster.refused("rollout", "status", "deployment/web", "-n", namespace, "--timeout=3s")
    assert cluster.get("deployment", "web", "-n", namespace)["status"]["availableReplicas"] == 2


def test_wait_for_condition_and_for_deletion(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("sleeper", "sleep 60"), "-n", namespace)
    text = cluster.kubectl("wait", "--for=condition=Ready", "pod/sleeper", "-n", namespace, "--timeout=90s")
    assert text == "pod/sleeper condition met\n"
    assert "timed out" in cluster.refused("wait", "--for=delete", "pod/sleeper", "-n", namespace, "--timeout=1s")
    cluster.kubectl("delete", "pod", "sleeper", "-n", namespace, "--wait=false")
    cluster.kubectl("wait", "--for=delete", "pod/sleeper", "-n", namespace, "--timeout=90s")
    assert "not found" in cluster.refused("get", "pod", "sleeper", "-n", namespace)


def test_ended_pod_shows_its_exit_code(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("good", "exit 0"), "-n", namespace)
    cluster.apply(shell_pod("bad", "echo no >&2; exit 7"), "-n", namespace)
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/good", "-n", namespace, "--timeout=90s")
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Failed", "pod/bad", "-n", namespace, "--timeout=90s")
    status = cluster.get("pod", "bad", "-n", namespace)["status"]["containerStatuses"][0]
    assert status["state"]["terminated"]["exitCode"] == 7
    rows = {
        line.split()[0]: line.split()[2] for line in cluster.kubectl("get", "pods", "-n", namespace).splitlines()[1:]
    }
    assert rows == {"good": "Completed", "bad": "Error"}


def test_a_pod_that_keeps_failing_is_restarted_with_back_off(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("flaky", "exit 1", restart="Always"), "-n", namespace)

    def status() -> dict[str, object]:
        results = cluster.get("pod", "flaky", "-n", namespace)["status"].get("containerStatuses", [{}])[0]
        return results if results.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff" else {}

    result = eventually(status)
    assert result["restartCount"] >= 1 and result["lastState"]["terminated"]["exitCode"] == 1


def test_a_job_runs_to_its_completions(cluster: Cluster, namespace: str) -> None:
    job = """
apiVersion: batch/v1
kind: Job
metadata: {name: count}
spec:
  completions: 3
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: busybox, command: [sh, -c, "echo counted"]}]
"""
    cluster.apply(job, "-n", namespace)
    cluster.kubectl("wait", "--for=condition=Complete", "job/count", "-n", namespace, "--timeout=90s")
    assert cluster.get("job", "count", "-n", namespace)["status"]["succeeded"] == 3
    assert cluster.kubectl("logs", "-n", namespace, "-l", "job-name=count").split() == ["counted"] * 3


def test_stateful_set_pods_keep_their_names(cluster: Cluster, namespace: str) -> None:
    text = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "postgres:16", ports: [{containerPort: 5432}]}]
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 5432}]}
"""
    cluster.apply(text, "-n", namespace)
    cluster.kubectl("rollout", "status", "statefulset/db", "-n", namespace, "--timeout=90s")
    names = cluster.kubectl("get", "pods", "-n", namespace, "-l", "app=db", "-o", "jsonpath={.items[*].metadata.name}")
    assert sorted(names.split()) == ["db-0", "db-1"]
    before = cluster.get("pod", "db-0", "-n", namespace)["metadata"]["uid"]
    cluster.kubectl("delete", "pod", "db-0", "-n", namespace)

    def again() -> bool:
        done = cluster.run(["kubectl", "get", "pod", "db-0", "-n", namespace, "-o", "jsonpath={.metadata.uid}"])
        return done.returncode == 0 and done.stdout not in ("", before)

    eventually(again)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/db-0", "-n", namespace, "--timeout=90s")


def test_stateful_set_replaces_a_pod_that_its_node_refuses(cluster: Cluster, namespace: str) -> None:
    ports = [{"containerPort": 80, "hostPort": 31579}]
    spec = {"nodeName": "node-1", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "nginx", "ports": ports}]}  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first"}, "spec": spec}
    cluster.apply(json.dumps(pod), "-n", namespace)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/first", "-n", namespace)
    labels = {"app": "again"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {"selector": {"matchLabels": labels}, "template": template}
    again = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "again"}, "spec": body}
    cluster.apply(json.dumps(again), "-n", namespace)

    def refused() -> set[str]:
        """The uids of the pods that the node has refused."""
        events = cluster.get("events", "-n", namespace, "--field-selector", "reason=NodePorts")["items"]
        return {event["involvedObject"]["uid"] for event in events}

    eventually(lambda: len(refused()) > 1)
    cluster.kubectl("delete", "pod", "first", "-n", namespace)
    cluster.kubectl("rollout", "status", "statefulset/again", "-n", namespace, "--timeout=90s")
    assert cluster.get("pod", "again-0", "-n", namespace)["metadata"]["uid"] not in refused()


def test_a_daemon_set_has_a_pod_on_each_node(cluster: Cluster, namespace: str) -> None:
    text = deployment("per-node").replace("kind: Deployment", "kind: DaemonSet").replace("  replicas: 1\n", "")
    cluster.apply(text, "-n", namespace)
    cluster.kubectl("rollout", "status", "daemonset/per-node", "-n", namespace, "--timeout=90s")
    nodes = cluster.kubectl("get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].spec.nodeName}").split()
    assert sorted(nodes) == cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()


def test_unschedulable_pod_shows_the_reason(cluster: Cluster, namespace: str) -> None:
    text = shell_pod("lost", "sleep 1").replace("spec:\n", "spec:\n  nodeSelector: {disk: fast}\n", 1)
    cluster.apply(text, "-n", namespace)

    def message() -> str:
        conditions = cluster.get("pod", "lost", "-n", namespace)["status"].get("conditions", [])
        return next(
            (c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
        )

    assert "0/2 nodes are available" in eventually(message)
    cluster.kubectl("label", "node", "node-2", "disk=fast")
    try:
        eventually(lambda: cluster.get("pod", "lost", "-n", namespace)["spec"].get("nodeName") == "node-2")
    finally:
        cluster.kubectl("label", "node", "node-2", "disk-")
