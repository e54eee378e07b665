"""kubectl with a ReplicationController, a proxy, replace and run, as Kubernetes' conformance specs use it."""

import http.client
import json
import re
import socket
from pathlib import Path

from tests.e2e.driver import Cluster, eventually

_CONTROLLER = """
apiVersion: v1
kind: ReplicationController
metadata: {name: demo, labels: {app: demo}}
spec:
  replicas: 2
  selector: {app: demo}
  template:
    metadata: {labels: {app: demo}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - {name: c, image: nginx, ports: [{containerPort: 80}]}
"""


def test_a_replication_controller_is_described_exposed_patched_and_scaled(cluster: Cluster, namespace: str) -> None:
    where = ("-n", namespace)

    def running() -> list[str]:
        pods = cluster.get("pods", "-l", "app=demo", *where)["items"]
        return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]

    cluster.apply(_CONTROLLER, *where)
    pods = eventually(lambda: (names := running())[1:] and names)
    reported = cluster.kubectl("describe", "rc", "demo", *where)
    for line in (r"Name: +demo", r"Selector: +app=demo", r"Replicas: +2 current / 2 desired", r"Image: +nginx"):
        assert re.search(line, reported), reported
    reported = cluster.kubectl("describe", "pod", pods[0], *where)
    assert re.search(r"Controlled By: +ReplicationController/demo", reported) and re.search(
        r"Status: +Running", reported
    )
    cluster.kubectl("expose", "rc", "demo", "--name=one", "--port=1234", "--target-port=80", *where)
    cluster.kubectl("expose", "service", "one", "--name=two", "--port=2345", "--target-port=80", *where)
    services = cluster.get("services", *where)["items"]
    assert [service["spec"]["ports"][0]["port"] for service in services] == [1234, 2345]
    for pod in pods:
        cluster.kubectl("patch", "pod", pod, "-p", '{"metadata":{"annotations":{"x":"y"}}}', *where)
    patched = cluster.get("pods", "-l", "app=demo", *where)["items"]
    assert [pod["metadata"]["annotations"]["x"] for pod in patched] == ["y", "y"]
    for number in (1, 3):
        cluster.kubectl("scale", "rc", "demo", f"--replicas={number}", "--timeout=1m", *where)
        eventually(lambda number=number: len(running()) == number)
    cluster.kubectl("delete", "rc", "demo", *where)
    eventually(lambda: not cluster.get("pods", "-l", "app=demo", *where)["items"])


def test_a_pod_gets_another_image_by_replace(cluster: Cluster, namespace: str) -> None:
    where = ("-n", namespace)
    cluster.kubectl("run", "one", "--image=nginx:1.26", "--restart=Never", "--labels=run=one", *where)
    pod = json.loads(cluster.kubectl("get", "pod", "one", "-o", "json", *where))
    assert (pod["spec"]["containers"][0]["image"], pod["spec"]["restartPolicy"]) == ("nginx:1.26", "Never")
    patch = '{"spec":{"containers":[{"name":"one","image":"nginx:9"}]}}'
    cluster.kubectl("patch", "pod", "one", "-p", patch, "--dry-run=server", *where)
    assert cluster.get("pod", "one", *where)["spec"]["containers"][0]["image"] == "nginx:1.26"
    text = cluster.kubectl("get", "pod", "one", "-o", "yaml", *where)
    text = re.sub(r"  resourceVersion: .*\n", "", text.replace("image: nginx:1.26", "image: nginx:1.27", 1))
    cluster.kubectl("replace", "-f", "-", *where, stdin=text)
    assert cluster.get("pod", "one", *where)["spec"]["containers"][0]["image"] == "nginx:1.27"


def test_cluster_info_names_the_control_plane(cluster: Cluster) -> None:
    reported = re.sub(r"\x1b\[[0-9;]*m", "", cluster.kubectl("cluster-info"))
    assert re.search(r"Kubernetes control plane is running at https://", reported)


class _Unix(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def test_proxies_of_kubectl_reach_the_api(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with cluster.stream("proxy", "--port=0", "--disable-filter") as lines:
        port = lines.until(lambda line: "Starting to serve on" in line)[-1].rpartition(":")[2]
        assert _versions(http.client.HTTPConnection("127.0.0.1", int(port))) == ["v1"]
    with cluster.stream("proxy", f"--unix-socket={path}") as lines:
        lines.until(lambda line: "Starting to serve on" in line)
        assert _versions(_Unix(str(path))) == ["v1"]


def _versions(connection: http.client.HTTPConnection) -> list[str]:
    try:
        connection.request("GET", "/api/")
        result: list[str] = json.loads(connection.getresponse().read())["versions"]
        return result
    finally:
        connection.close()
