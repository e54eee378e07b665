"""Pods of a Service are replaced one after another without a failed request."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.clusters import netns_of
from tests.e2e.driver import Cluster, deployment, eventually, shell_pod

from podwire.kernel import netns

SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80}]}
"""


class Asking(threading.Thread):
    """Connects to an address every few milliseconds; ``problems`` lists the failures."""

    def __init__(self, namespace: Path | None, address: str, port: int) -> None:
        super().__init__()
        self._namespace = namespace
        self._target = (address, port)
        self._ending = threading.Event()
        self.asked = 0
        self.seen: dict[str, int] = {}
        """How often each pod answered."""
        self.problems: list[str] = []

    def run(self) -> None:
        started = time.monotonic()
        while not self._ending.wait(0.01):
            target = self._choose()
            if target is None:
                continue
            try:
                with netns.inside(self._namespace):
                    sock = socket.socket()
                with sock:
                    sock.settimeout(10)
                    sock.connect(target)
                    sock.sendall(b"podwire-probe\n")
                    pod = str(json.loads(sock.makefile().readline())["pod"])
                self.seen[pod] = self.seen.get(pod, 0) + 1
                self.asked += 1
            except (OSError, ValueError) as failure:
                self.problems.append(f"at {time.monotonic() - started:.2f} s, {target}: {failure!r}")

    def _choose(self) -> tuple[str, int] | None:
        return self._target

    def end(self) -> None:
        self._ending.set()
        self.join()


class Balanced(Asking):
    """Acts as a load balancer: connects only to nodes whose last health check answered 200."""

    def __init__(self, nodes: list[str], port: int, health_port: int) -> None:
        super().__init__(None, "", port)
        self._port = port
        self._checks = [(node, f"http://{node}:{health_port}/") for node in nodes]
        self._checker = threading.Thread(target=self._check)
        self._healthy: list[str] = []
        self._checked = 0.0
        """When the check began whose answers are the last."""
        self.chosen: set[frozenset[str]] = set()

    def run(self) -> None:
        self._checker.start()
        super().run()
        self._checker.join()

    def _check(self) -> None:
        while not self._ending.wait(0.1):
            begun = time.monotonic()
            self._healthy = [node for node, url in self._checks if _status(url) == 200]
            self._checked = begun
            self.chosen.add(frozenset(self._healthy))

    def _choose(self) -> tuple[str, int] | None:
        """A node that was healthy a second ago; None when the last check is older, on a busy machine."""
        checked, healthy = self._checked, self._healthy
        fresh = bool(healthy) and time.monotonic() - checked < 1
        return (healthy[self.asked % len(healthy)], self._port) if fresh else None


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as failure:
        failure.close()
        return failure.code
    except OSError:
        return 0


@contextmanager
def asking(*threads: Asking) -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.end()


def answered(cluster: Cluster, namespace: str, *threads: Asking) -> None:
    """Waits until each remaining pod has answered each client ten more times."""
    result = cluster.get("pods", "-l", "app=web", "-n", namespace)["items"]
    pods = [pod["metadata"]["name"] for pod in result if "deletionTimestamp" not in pod["metadata"]]
    for thread in threads:
        expected = {pod: thread.seen.get(pod, 0) + 10 for pod in pods}
        eventually(lambda thread=thread, desired=expected: all(thread.seen.get(p, 0) >= n for p, n in desired.items()))


def test_a_rollout_loses_no_request(cluster: Cluster, namespace: str) -> None:
    text = deployment("web", replicas=3).replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 5")
    cluster.apply(text + SERVICE + "---" + shell_pod("client", "sleep 600"), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    cluster.ready("client", namespace=namespace)
    spec = cluster.get("service", "web", "-n", namespace)["spec"]
    node = cluster.get("node", "node-1")["status"]["addresses"][0]["address"]
    inside = Asking(netns_of(cluster, "client", namespace), spec["clusterIP"], 80)
    outside = Asking(None, node, spec["ports"][0]["nodePort"])
    with asking(inside, outside):
        answered(cluster, namespace, inside, outside)
        for _ in range(2):
            cluster.kubectl("rollout", "restart", "deployment/web", "-n", namespace)
            cluster.rolled_out("web", namespace=namespace)
            answered(cluster, namespace, inside, outside)
        cluster.kubectl("scale", "deployment/web", "--replicas=1", "-n", namespace)
        eventually(lambda: len(cluster.get("pods", "-l", "app=web", "-n", namespace)["items"]) == 1)
    assert (inside.problems, outside.problems) == ([], [])
    assert len(inside.seen) == len(outside.seen) == 9


def test_a_rollout_behind_a_load_balancer_loses_no_request(cluster: Cluster, namespace: str) -> None:
    """With ``externalTrafficPolicy: Local``, all pods move to the other node and back.

    A pod serves for five more seconds after SIGTERM: until the next health check of the balancer, the node still
    forwards connections to the pod, and on a busy machine that check is late.
    """
    text = deployment("web", replicas=2).replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 9")
    text = text.replace("readinessProbe:", "lifecycle: {preStop: {sleep: {seconds: 5}}}\n          readinessProbe:")
    service = SERVICE.replace("type: NodePort", "type: LoadBalancer, externalTrafficPolicy: Local")
    cluster.apply(text + service, "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    spec = cluster.get("service", "web", "-n", namespace)["spec"]
    nodes = [node["status"]["addresses"][0]["address"] for node in cluster.get("nodes")["items"]]
    outside = Balanced(nodes, spec["ports"][0]["nodePort"], spec["healthCheckNodePort"])
    with asking(outside):
        answered(cluster, namespace, outside)
        for name in ("node-1", "node-2", "node-1"):
            patch = {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": name}}}}}
            cluster.kubectl("patch", "deployment", "web", "-n", namespace, "-p", json.dumps(patch))
            cluster.rolled_out("web", namespace=namespace)
            answered(cluster, namespace, outside)
    assert outside.problems == []
    assert {frozenset(nodes[:1]), frozenset(nodes[1:])} <= outside.chosen
    assert len(outside.seen) >= 6
