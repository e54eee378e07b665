"""``podwire migrate``: from the reference plugins bridge and host-local to podwire and back, under traffic."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.clusters import flows, identities, in_node, own_name, run, running, server, topology
from tests.e2e.driver import Cluster, eventually, podwire
from tests.e2e.helm import Helm

PLUGINS = Path("/usr/lib/cni")
pytestmark = pytest.mark.skipif(not (PLUGINS / "bridge").exists(), reason="needs containernetworking-plugins")
CHART = str(Path(__file__).parents[2] / "deploy/helm/podwire")
NODES = ("node-1", "node-2")
NETWORK = "plain"


def conflist(cluster: Cluster, node: str, cidr: str) -> str:
    """The configuration of an old network; host-local's directory is the node's own."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": cidr}]], "routes": [{"dst": "0.0.0.0/0"}]}
    folder = f"{topology(cluster).node_state(node)}/cni/networks"
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    plugin = bridge | {"ipam": addresses | {"dataDir": folder}}
    return json.dumps({"cniVersion": "1.0.0", "name": NETWORK, "plugins": [plugin]})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with the plugins bridge and host-local, static routes, and podwire's chart, which runs nowhere yet."""
    config = tmp_path_factory.mktemp("bare") / "cluster.yaml"
    command = [str(Path(sys.executable).parent / "podwire")]
    document = {"nodes": 2, "network": "none", "images": [{"name": "podwire", "command": command}]}
    config.write_text(yaml.safe_dump(document))
    with running(own_name("migrate"), "--config", str(config)) as created:
        for node, other in (NODES, NODES[::-1]):
            prepare(created, node, other)
        install(created, tmp_path_factory.mktemp("chart"))
        created.apply(ROUTES, "-n", "kube-system")
        created.apply(server("one", "node-1") + server("two", "node-2"))
        created.ready("one", "two")
        yield created


ROUTES = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-flannel-ds, namespace: kube-system}
spec:
  selector: {matchLabels: {app: routes}}
  template:
    metadata: {labels: {app: routes}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      containers: [{name: routes, image: "busybox:1.36", command: [sleep, "3600"]}]
"""
"""A DaemonSet with the name of Flannel's: it must leave each node that podwire takes, and come back."""


def cidr_of(cluster: Cluster, node: str) -> str:
    return str(eventually(lambda: cluster.get("node", node)["spec"].get("podCIDR")))


def prepare(cluster: Cluster, node: str, other: str) -> None:
    """Makes a node one of the old network."""
    run_dir = Path(topology(cluster).node_run(node), "cni")
    for folder in ("bin", "net.d"):
        (run_dir / folder).mkdir(parents=True, exist_ok=True)
    for plugin in ("bridge", "host-local"):
        shutil.copy(PLUGINS / plugin, run_dir / "bin" / plugin)
    in_node(cluster, node, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    status = cluster.get("node", other)["status"]
    address = next(item["address"] for item in status["addresses"] if item["type"] == "InternalIP")
    in_node(cluster, node, "ip", "route", "add", cidr_of(cluster, other), "via", address)
    (run_dir / "net.d" / "10-plain.conflist").write_text(conflist(cluster, node, cidr_of(cluster, node)))


def install(cluster: Cluster, home: Path) -> None:
    (endpoint,) = cluster.get("endpointslices", "kubernetes")["endpoints"]
    (port,) = cluster.get("endpointslices", "kubernetes")["ports"]
    values = home / "values.yaml"
    document = {
        "api": {"host": endpoint["addresses"][0], "port": port["port"]},
        "serviceCIDRs": ["10.96.0.0/16"],
        "dns": {"enabled": False},
        "controller": {"enabled": False},
        "agent": {
            "nodeSelector": {"podwire.io/migrated": "true"},
            "config": {
                "cni": {"hostLocal": f"/var/lib/cni/networks/{NETWORK}"},
                "routing": {"backend": "hostgw"},
            },
        },
    }
    values.write_text(yaml.safe_dump(document))
    Helm(cluster, "kube-system", home)("install", "podwire", CHART, "-f", str(values))


def migrate(cluster: Cluster, *arguments: str, status: int = 0) -> str:
    done = run("migrate", *arguments, "--kubeconfig", cluster.kubeconfig, timeout=400)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def killed_at(cluster: Cluster, action: str, line: str) -> None:
    """Runs a migration and kills it as soon as it begins a step."""
    process = subprocess.Popen(
        [*podwire(), "migrate", action, "--kubeconfig", cluster.kubeconfig], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert any(text.strip() == line for text in output), f"no line {line!r}"
        process.send_signal(signal.SIGKILL)
    process.wait()


def old_pods(cluster: Cluster) -> list[str]:
    """The nodes on which pods of the old network run."""
    pods = cluster.get("pods", "-n", "kube-system", "-l", "app=routes")["items"]
    return sorted(pod["spec"]["nodeName"] for pod in pods)


def reaches(cluster: Cluster, source: str, target: str) -> bool:
    address = cluster.get("pod", target)["status"]["podIP"]
    return cluster.run(["kubectl", "exec", source, "--", "curl", "-sS", "--max-time", "3", address]).returncode == 0


def configurations(cluster: Cluster, node: str) -> list[str]:
    return sorted(path.name for path in Path(topology(cluster).node_run(node), "cni/net.d").iterdir())


def test_a_cluster_moves_to_podwire_and_back_under_traffic(cluster: Cluster) -> None:
    before = identities(cluster)
    eventually(lambda: old_pods(cluster) == [*NODES])
    planned = migrate(cluster, "plan")
    assert "DaemonSet kube-system/kube-flannel-ds would leave each node" in planned
    assert "node-1: 1 pod of host-local, 1 route, no kube-proxy" in planned
    assert configurations(cluster, "node-1") == ["10-plain.conflist"]
    with flows(cluster, [("one", "two"), ("two", "one")]) as traffic:
        killed_at(cluster, "apply", "node-1: network")
        output = migrate(cluster, "apply")
        print(output)
        assert migrate(cluster, "status").splitlines() == ["node-1: podwire", "node-2: podwire"]
        assert old_pods(cluster) == []
        for node in NODES:
            assert configurations(cluster, node) == ["10-plain.conflist.podwire-saved", "10-podwire.conflist"]
        cluster.apply(server("three", "node-1"))
        cluster.ready("three")
        assert identities(cluster).items() >= before.items()
        killed_at(cluster, "back", "node-1: network-back")
        returned = migrate(cluster, "back")
        print(returned)
        cluster.apply(server("four", "node-1"))
        cluster.ready("four")
        for source, target in (("three", "four"), ("four", "three"), ("two", "three"), ("two", "four")):
            eventually(lambda source=source, target=target: reaches(cluster, source, target))
    assert [flow.problems for flow in traffic] == [[], []]
    assert migrate(cluster, "status").splitlines() == ["node-1: old network", "node-2: old network"]
    assert old_pods(cluster) == [*NODES]
    for node in NODES:
        assert configurations(cluster, node) == ["10-plain.conflist"]
    for text in (output, returned):
        assert "tcp: 0 of" in text and ", 0 connections ended" in text
