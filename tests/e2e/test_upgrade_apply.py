"""``podwire upgrade backup``, ``apply``, ``verify``, ``rollback`` and ``restore`` for workloads of others, under load.

The cluster has podwire's chart without DNS. CoreDNS is a Deployment whose image is podwire's DNS server with the
Corefile: it has lameduck, and reads the Corefile as CoreDNS does. Its probe of readiness fails as late as that of
kubeadm, 30 s after the end of the pod began, and 25 s after its process has ended. kube-proxy is a DaemonSet whose
image is the stand-in server, and one version that never gets ready; Services are served by podwire's agents.
"""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.clusters import flows, netns_of, own_name, run, running, server, topology
from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster, eventually, podwire
from tests.e2e.helm import Helm
from tests.e2e.upgrade_workloads import DNS, DNS_ADDRESS, NEW_TEXT, OLD_TEXT, PROXY, TWO, WORKLOADS

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.flows import proof, prooftext
from podwire.kernel import netns
from podwire.upgrade.plan.values import (
    Component,
    Gate,
    ImageChange,
    PlannedChange,
    UpgradePlan,
    UpgradeStep,
    Wave,
    identified,
    parse_image,
    plan_json,
)

CHART = str(Path(__file__).parents[2] / "deploy/helm/podwire")
SYSTEM = ("-n", "kube-system")
NODES = ("node-1", "node-2", "node-3")
BROKEN = f"{PROXY}:v1.37.0"
PORTS = range(20_000, 20_040)
FORGOTTEN = 4
"""Queries that may be under way when a proxy forgets their flows: one for each node and change of its endpoints."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with podwire's chart, and CoreDNS and kube-proxy of others."""
    config = tmp_path_factory.mktemp("bare") / "cluster.yaml"
    command = [str(Path(sys.executable).parent / "podwire")]
    images = [
        {"name": "podwire", "command": command},
        # With a setting of Python it is no fork of the kubelet, which is ready sooner than any program of others.
        {"prefix": "registry.k8s.io/coredns/", "command": command, "env": {"PYTHONUNBUFFERED": "1"}},
        {"name": BROKEN, "command": ["sleep", "3600"]},
    ]
    config.write_text(yaml.safe_dump({"nodes": 3, "network": "none", "images": images}))
    with running(own_name("upgrade"), "--config", str(config)) as created:
        install(created, tmp_path_factory.mktemp("chart"))
        created.kubectl_apply(WORKLOADS)
        created.apply(server("one", "node-1") + server("two", "node-3") + TWO)
        created.ready("one", "two")
        created.rolled_out("coredns", "kube-system")
        eventually(lambda: proxies(created) == dict.fromkeys(NODES, f"{PROXY}:v1.35.0"))
        yield created


def install(cluster: Cluster, home: Path) -> None:
    (endpoint,) = cluster.get("endpointslices", "kubernetes")["endpoints"]
    (port,) = cluster.get("endpointslices", "kubernetes")["ports"]
    values = home / "values.yaml"
    document = {
        "api": {"host": endpoint["addresses"][0], "port": port["port"]},
        "serviceCIDRs": ["10.96.0.0/16"],
        "dns": {"enabled": False},
        "controller": {"enabled": False},
        "agent": {"config": {"routing": {"backend": "hostgw"}}},
    }
    values.write_text(yaml.safe_dump(document))
    Helm(cluster, "kube-system", home)("install", "podwire", CHART, "-f", str(values))


class Queries(threading.Thread):
    """Asks cluster DNS from a pod every few milliseconds, from a few ports in turn, so that connection tracking knows
    the flow of each query. As a resolver does, it sends a query again from the same port after a second; ``repeated``
    are those. ``lost`` are the queries without an answer in five seconds."""

    def __init__(self, namespace: Path) -> None:
        super().__init__()
        self._namespace = namespace
        self._ending = threading.Event()
        self.asked = self.repeated = 0
        self.lost: list[str] = []

    def run(self) -> None:
        query = wire.encode(wire.DnsMessage(7, wire.RD, encode_name("two.default.svc.cluster.local"), wire.A))
        while not self._ending.wait(0.01):
            with netns.inside(self._namespace):
                opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with opened:
                opened.settimeout(1)
                opened.bind(("", PORTS[self.asked % len(PORTS)]))
                opened.connect((DNS_ADDRESS, 53))
                self.asked += 1
                try:
                    answer = self._answer(opened, query)
                    if answer.rcode != wire.NOERROR or not answer.answer:
                        self.lost.append(f"{time.strftime('%X')}: code {answer.rcode}")
                except OSError as failure:
                    self.lost.append(f"{time.strftime('%X')}: {failure!r}")

    def _answer(self, opened: socket.socket, query: bytes) -> wire.DnsMessage:
        for _ in range(4):
            opened.send(query)
            with suppress(TimeoutError):
                return wire.parse_message(opened.recv(4096))
            self.repeated += 1
        opened.send(query)
        return wire.parse_message(opened.recv(4096))

    def __enter__(self) -> "Queries":
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ending.set()
        self.join()


def upgrade(cluster: Cluster, *arguments: str, status: int = 0) -> str:
    done = run("upgrade", *arguments, "--kubeconfig", cluster.kubeconfig, timeout=400)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def killed_at(cluster: Cluster, line: str, *arguments: str) -> None:
    """Runs a command and kills it as soon as it begins a step."""
    command = [*podwire(), "upgrade", *arguments, "--kubeconfig", cluster.kubeconfig]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        lines = []
        for text in output:
            lines.append(text.strip())
            if lines[-1] == line:
                break
        process.send_signal(signal.SIGKILL)
        assert lines and lines[-1] == line, lines
    process.wait()


def proxies(cluster: Cluster) -> dict[str, str]:
    """By node, the image of the ready pod of kube-proxy."""
    pods = cluster.get("pods", *SYSTEM, "-l", "k8s-app=kube-proxy")["items"]
    return {
        pod["spec"]["nodeName"]: pod["spec"]["containers"][0]["image"]
        for pod in pods
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
    }


def spec(cluster: Cluster, kind: str, name: str) -> Any:
    return cluster.get(kind, name, *SYSTEM)["spec"]


def make_plan(cluster: Cluster, folder: Path, proxy: str, dns: str = "") -> str:
    """The file of a plan: kube-proxy node by node, and CoreDNS with a Corefile that no old pod may read."""
    gates: tuple[Gate, ...] = ("node-ready", "pods", "services", "dns")
    steps = [
        UpgradeStep(
            id="1-kube-proxy", component="kube-proxy", action="images", scope="nodes",
            images=(image("kube-proxy", f"{PROXY}:v1.35.0", proxy),), gates=gates,
            waves=(Wave(nodes=("node-2",)), Wave(nodes=("node-1", "node-3"))),
        )
    ]  # fmt: skip
    if dns:
        corefile = PlannedChange(
            api_version="v1", kind="ConfigMap", namespace="kube-system", name="coredns",
            patch={"data": {"Corefile": NEW_TEXT}}, exclusive=True,
        )  # fmt: skip
        pods = {"containers": [{"name": "coredns", "image": dns}]}
        workload = PlannedChange(
            api_version="apps/v1", kind="Deployment", namespace="kube-system", name="coredns",
            patch={"spec": {"template": {"spec": pods}}},
        )  # fmt: skip
        changed = (image("coredns", f"{DNS}:v1.12.0", dns),)
        steps.append(
            UpgradeStep(
                id="2-coredns", component="coredns", action="images", images=changed, changes=(corefile, workload),
                gates=gates,
            )
        )  # fmt: skip
    components = tuple(
        Component(
            name=name, kind="DaemonSet" if kind == "ds" else "Deployment", namespace="kube-system", workload=name,
            generation=cluster.get(kind, name, *SYSTEM)["metadata"]["generation"],
        )
        for kind, name in (("ds", "kube-proxy"), ("deploy", "coredns"))
    )  # fmt: skip
    identity = cluster.get("namespace", "kube-system")["metadata"]["uid"]
    made = UpgradePlan(
        cluster=identity, from_version="1.35.0", to_version="1.36", nodes=3, components=components, steps=tuple(steps)
    )
    file = folder / "plan.json"
    file.write_text(plan_json(identified(made)))
    return str(file)


def image(container: str, before: str, after: str) -> ImageChange:
    return ImageChange(container=container, before=parse_image(before, "test"), after=parse_image(after, "test"))


def pods_of_commands(cluster: Cluster) -> list[str]:
    names = [pod["metadata"]["name"] for pod in cluster.get("pods", *SYSTEM)["items"]]
    return [name for name in names if name.startswith(("podwire-verify", "podwire-upgrade", "coredns-canary"))]


@contextmanager
def observer(cluster: Cluster) -> Iterator[str]:
    """A server on this machine, outside of the cluster, that tells pods the source address that it sees."""
    address = str(topology(cluster).host_address)
    with socket.create_server((address, 0)) as chosen:
        port = chosen.getsockname()[1]
    process = subprocess.Popen([*podwire(), "upgrade", "node", "serve", "--port", str(port)])
    try:
        eventually(lambda: answers(address, port))
        yield f"{address}:{port}"
    finally:
        process.terminate()
        process.wait()


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=5) as connection:
            return connection.recv(64) == f"podwire {address}\n".encode()
    except OSError:
        return False


def test_others_are_upgraded_and_taken_back_without_loss(cluster: Cluster, tmp_path: Path) -> None:
    file = make_plan(cluster, tmp_path, f"{PROXY}:v1.36.0", f"{DNS}:v1.14.2")
    before = spec(cluster, "deploy", "coredns"), spec(cluster, "ds", "kube-proxy")
    service = cluster.get("service", "two")["spec"]["clusterIP"]
    queries = [Queries(netns_of(cluster, pod)) for pod in ("one", "two")]
    with flows(cluster, [("one", "two"), ("two", "one"), ("one", service)]) as traffic, queries[0], queries[1]:
        # Not in the rollout of CoreDNS: pods that end then leave as Kubernetes lets them (apply/leaving.py).
        killed_at(cluster, "node-2: kube-proxy is new", "apply", "--plan", file)
        print(upgrade(cluster, "apply"))
        assert proxies(cluster) == dict.fromkeys(NODES, f"{PROXY}:v1.36.0")
        assert cluster.get("configmap", "coredns", *SYSTEM)["data"] == {"Corefile": NEW_TEXT}
        after = spec(cluster, "deploy", "coredns"), spec(cluster, "ds", "kube-proxy")
        assert after[0]["template"]["spec"]["containers"][0]["image"] == f"{DNS}:v1.14.2"
        for old, new in zip(before, after, strict=True):
            assert without_image(old) == without_image(new)
        assert upgrade(cluster, "status").splitlines() == ["upgrade: done", "1-kube-proxy: done", "2-coredns: done"]
        with observer(cluster) as outside:
            verified = upgrade(cluster, "verify", "--observer", outside)
        print(verified)
        killed_at(cluster, "step 1-kube-proxy: back", "rollback")
        print(upgrade(cluster, "rollback"))
    assert (spec(cluster, "deploy", "coredns"), spec(cluster, "ds", "kube-proxy")) == before
    assert cluster.get("configmap", "coredns", *SYSTEM)["data"] == {"Corefile": OLD_TEXT}
    assert [line.split()[0] for line in verified.splitlines()] == ["NODE", *NODES]
    print("queries:", [(load.asked, load.repeated, load.lost) for load in queries])
    print("connections:", [flow.connections for flow in traffic])
    assert [flow.problems for flow in traffic] == [[], [], []]
    assert [load.lost for load in queries] == [[], []]
    assert sum(load.repeated for load in queries) <= FORGOTTEN
    assert pods_of_commands(cluster) == []
    names = [item["metadata"]["name"] for item in cluster.get("configmaps", *SYSTEM)["items"]]
    assert not [name for name in names if name.startswith("coredns-") or name == "podwire-upgrade"]


def without_image(workload: Any) -> Any:
    copy = json.loads(json.dumps(workload))
    del copy["template"]["spec"]["containers"][0]["image"]
    return copy


def test_a_version_that_never_gets_ready_is_rolled_back(cluster: Cluster, tmp_path: Path) -> None:
    file = make_plan(cluster, tmp_path, BROKEN)
    output = upgrade(cluster, "apply", "--plan", file, "--timeout", "15", status=1)
    assert "step 1-kube-proxy was rolled back: node-2: the new pod is not ready after 15 s" in output
    assert proxies(cluster) == dict.fromkeys(NODES, f"{PROXY}:v1.35.0")
    assert upgrade(cluster, "status").splitlines() == ["upgrade: in progress", "1-kube-proxy: pending"]
    assert "everything is as before the upgrade" in upgrade(cluster, "rollback")
    assert pods_of_commands(cluster) == []


def test_an_upgrade_is_planned_and_applied_by_one_command(cluster: Cluster, tmp_path: Path) -> None:
    new = f"{PROXY}:v1.36.2"
    target = ("apply", "--to", "1.36", "--image", f"kube-proxy={new}", "--canary", "node-3", "--max-unavailable", "1")
    refused = upgrade(cluster, *target, "--require-digests", status=2)
    assert f"image {new} has no digest" in refused
    output = upgrade(cluster, *target, "--proof", str(tmp_path)).splitlines()
    assert [line for line in output if line.endswith("kube-proxy is new")] == [
        f"{node}: kube-proxy is new" for node in ("node-3", "node-1", "node-2")
    ]
    measured = proof.parse_json((tmp_path / "proof.json").read_bytes(), "proof.json")
    assert [file.read_bytes() for file in tmp_path.glob("proof-*.json")] == [(tmp_path / "proof.json").read_bytes()]
    lost, sent, leaked, denied = proof.counts(measured)
    assert (lost, leaked) == (0, 0), prooftext.text(measured)
    assert sent > 500 and denied > 100 and any("kube-proxy" in step.title for step in measured.steps)
    assert proxies(cluster) == dict.fromkeys(NODES, new)
    upgrade(cluster, "rollback")
    assert proxies(cluster) == dict.fromkeys(NODES, f"{PROXY}:v1.35.0")


OWN_NETWORK = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: own-network, namespace: kube-system}
spec:
  selector: {matchLabels: {app: own-network}}
  template:
    metadata: {labels: {app: own-network}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: network, image: "own.example/network:v1", ports: [{containerPort: 80}]}]
      volumes: [{name: conf, hostPath: {path: /etc/cni/net.d}}]
"""
"""A DaemonSet that could write configurations of the runtime."""


def test_the_configuration_of_a_node_is_held_meanwhile(cluster: Cluster, tmp_path: Path) -> None:
    cluster.kubectl_apply(OWN_NETWORK)
    eventually(lambda: cluster.get("ds", "own-network", *SYSTEM)["status"].get("numberReady") == len(NODES))
    folders = {node: Path(topology(cluster).node_run(node), "cni/net.d") for node in NODES}
    held, ending = set[str](), threading.Event()

    def watch() -> None:
        while not ending.wait(0.02):
            held.update(node for node, folder in folders.items() if (folder / "00-0-podwire-upgrade.conflist").exists())

    change = UpgradeStep(
        id="1-own-network", component="own-network", action="images", scope="nodes",
        images=(image("network", "own.example/network:v1", "own.example/network:v2"),),
        waves=(Wave(nodes=("node-1",)), Wave(nodes=("node-2", "node-3"))),
    )  # fmt: skip
    component = Component(name="own-network", kind="DaemonSet", namespace="kube-system", workload="own-network")
    made = UpgradePlan(from_version="1.36.0", to_version="1.36", components=(component,), steps=(change,))
    file = tmp_path / "plan.json"
    file.write_text(plan_json(identified(made)))
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        upgrade(cluster, "apply", "--plan", str(file))
    finally:
        ending.set()
        thread.join()
    assert held == set(NODES)
    files = {path.name for folder in folders.values() for path in folder.iterdir()}
    assert files == {"10-podwire.conflist"}
    pods = cluster.get("pods", *SYSTEM, "-l", "app=own-network")["items"]
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"own.example/network:v2"}
    upgrade(cluster, "rollback")


def test_a_second_run_is_refused_and_names_the_first(cluster: Cluster) -> None:
    body = {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "podwire-upgrade", "namespace": "kube-system"},
    }  # fmt: skip
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/podwire-upgrade"
    ending = threading.Event()

    def claim(connection: Connection, number: int) -> None:
        spec = {
            "holderIdentity": "the-first", "leaseDurationSeconds": 6, "renewTime": f"2026-01-01T00:00:00.{number:06d}Z",
        }  # fmt: skip
        connection.do("PATCH", path, {**body, "spec": spec}, patch="apply", fieldManager="t", force="true")

    def hold() -> None:
        own, number = Connection(cluster.kubeconfig), 0  # a connection serves one thread
        while not ending.wait(0.3):
            number += 1
            claim(own, number)
        own.close()

    claim(cluster.api, 0)
    thread = threading.Thread(target=hold)
    thread.start()
    try:
        output = upgrade(cluster, "rollback", status=1)
    finally:
        ending.set()
        thread.join()
        cluster.api.do("DELETE", path)
    assert "Lease kube-system/podwire-upgrade is held by the-first, which is still running" in output


def test_a_backup_is_taken_back_and_conflicts_are_named(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    output = upgrade(cluster, "backup", "--to", str(folder))
    assert "node-2: " in output and "10-podwire.conflist" in output
    index = json.loads((folder / "index.json").read_text())
    names = {entry["name"] for entry in index["entries"]}
    assert {
        "Deployment kube-system/coredns", "DaemonSet kube-system/kube-proxy", "ConfigMap kube-system/coredns",
        "ClusterRole system:coredns", "ServiceAccount kube-system/coredns", "Service kube-system/kube-dns",
        "DaemonSet kube-system/podwire-agent", "nft", "routes", "10-podwire.conflist", "cni",
    } <= names  # fmt: skip
    assert upgrade(cluster, "restore", "--from", str(folder), "--no-nodes") == ""
    extra = Path(topology(cluster).node_run("node-1"), "cni/net.d", "20-own.conflist")
    extra.write_text('{"name": "own"}')
    second = tmp_path / "second"
    upgrade(cluster, "backup", "--to", str(second))
    extra.unlink()
    path = "/api/v1/namespaces/kube-system/configmaps/coredns"
    cluster.api.do("PATCH", path, {"data": {"Corefile": "broken"}}, patch="merge", fieldManager="someone")
    cluster.api.do("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:coredns")
    output = upgrade(cluster, "restore", "--from", str(second), status=1)
    assert "ClusterRole system:coredns: created" in output
    conflict = 'ConfigMap kube-system/coredns: conflict: Apply failed with 1 conflict: conflict with "someone"'
    assert conflict in output and "--force takes these fields back" in output
    assert "node-1: 20-own.conflist: restored" in output and extra.read_text() == '{"name": "own"}'
    assert "would be restored" in upgrade(cluster, "restore", "--from", str(second), "--force", "--dry-run")
    upgrade(cluster, "restore", "--from", str(second), "--force", "--no-nodes")
    assert cluster.get("configmap", "coredns", *SYSTEM)["data"] == {"Corefile": OLD_TEXT}
    extra.unlink()
    blob = next((folder / "blobs").iterdir())
    blob.write_bytes(b"another")
    refused = upgrade(cluster, "restore", "--from", str(folder), status=2)
    assert "was changed: its content does not match its digest" in refused
