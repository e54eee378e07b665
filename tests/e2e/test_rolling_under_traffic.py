"""A Service whose pods are replaced one after another: whoever asks it all the while never notices."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusters import netns_of
from driver import Cluster, deployment, eventually, shell_pod

from podwire.kernel import netns

SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80}]}
"""


class Asking(threading.Thread):
    """Asks an address with a new connection every few milliseconds; ``problems`` says what failed."""

    def __init__(self, namespace: Path | None, address: str, port: int) -> None:
        super().__init__()
        self._namespace = namespace
        self._target = (address, port)
        self._ending = threading.Event()
        self.asked = 0
        self.pods: set[str] = set()
        self.problems: list[str] = []

    def run(self) -> None:
        started = time.monotonic()
        while not self._ending.wait(0.01):
            try:
                with netns.inside(self._namespace):
                    sock = socket.socket()
                with sock:
                    sock.settimeout(3)
                    sock.connect(self._target)
                    sock.sendall(b"podwire-probe\n")
                    self.pods.add(json.loads(sock.makefile().readline())["pod"])
                self.asked += 1
            except (OSError, ValueError) as failure:
                self.problems.append(f"at {time.monotonic() - started:.2f} s: {failure!r}")

    def end(self) -> None:
        self._ending.set()
        self.join()


@contextmanager
def asking(*threads: Asking) -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.end()


def test_a_rollout_loses_no_request(cluster: Cluster, namespace: str) -> None:
    text = deployment("web", replicas=3).replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 5")
    cluster.apply(text + SERVICE + "---" + shell_pod("client", "sleep 600"), "-n", namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=30s")
    cluster.kubectl("wait", "--for=condition=Ready", "pod/client", "-n", namespace, "--timeout=20s")
    spec = cluster.get("service", "web", "-n", namespace)["spec"]
    node = cluster.get("node", "node-1")["status"]["addresses"][0]["address"]
    inside = Asking(netns_of(cluster, "client", namespace), spec["clusterIP"], 80)
    outside = Asking(None, node, spec["ports"][0]["nodePort"])
    with asking(inside, outside):
        eventually(lambda: len(inside.pods) == 3 and len(outside.pods) == 3)
        for _ in range(2):
            cluster.kubectl("rollout", "restart", "deployment/web", "-n", namespace)
            cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=60s", timeout=70)
            time.sleep(1)
        cluster.kubectl("scale", "deployment/web", "--replicas=1", "-n", namespace)
        eventually(lambda: len(cluster.get("pods", "-l", "app=web", "-n", namespace)["items"]) == 1)
    assert (inside.problems, outside.problems) == ([], [])
    assert len(inside.pods) == 9 and inside.asked > 200 and outside.asked > 200
