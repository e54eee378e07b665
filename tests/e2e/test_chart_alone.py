"""Parts of podwire alone, as deploy/values has them, installed by ``podwire install`` beside another network.

The other network is the plugins ``bridge`` and ``host-local`` with routes between the nodes; the cluster has neither
kube-proxy nor CoreDNS, so that what works is the work of the installed part.
"""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e import chart_rights
from tests.e2e.clusters import address_of, in_node, netns_of, server, topology, without_network
from tests.e2e.driver import Cluster, eventually, podwire

from podwire.kernel import netns

ROOT = Path(__file__).parents[2]
PLUGINS = Path("/usr/lib/cni")
NODES = ("node-1", "node-2")
NAMESPACE = "kube-system"
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: two}
spec: {selector: {app: two}, clusterIP: 10.96.7.7, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody}
spec: {podSelector: {matchLabels: {app: two}}, policyTypes: [Ingress], ingress: [{ports: [{port: 81}]}]}
"""
VIP = "10.96.7.7"
OBJECTS = "daemonsets,deployments,services,configmaps,networkpolicies,poddisruptionbudgets,serviceaccounts"

pytestmark = pytest.mark.skipif(not (PLUGINS / "bridge").exists(), reason="needs containernetworking-plugins")


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit log of what service accounts do in the cluster."""
    return tmp_path_factory.mktemp("audit") / "log"


@pytest.fixture(scope="module")
def cluster(audit: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes without a network."""
    with without_network("alone", tmp_path_factory.mktemp("alone"), audit) as created:
        yield created


def run_of(cluster: Cluster, node: str) -> Path:
    return Path(topology(cluster).node_run(node))


@contextmanager
def other_network(cluster: Cluster) -> Iterator[None]:
    """Pods ``one`` and ``two`` on the two nodes, wired by other plugins."""
    nodes = {node["metadata"]["name"]: node for node in cluster.get("nodes")["items"]}
    for name in NODES:
        run = run_of(cluster, name)
        (run / "cni/bin").mkdir(parents=True, exist_ok=True)
        (run / "cni/net.d").mkdir(parents=True, exist_ok=True)
        for plugin in ("bridge", "host-local"):
            (run / "cni/bin" / plugin).symlink_to(PLUGINS / plugin)
        (cidr,) = nodes[name]["spec"]["podCIDRs"]
        ipam = {"type": "host-local", "subnet": cidr, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": str(run / "ipam")}
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": ipam,
        }
        conf = {"cniVersion": "1.0.0", "name": "other", "plugins": [bridge]}
        (run / "cni/net.d/05-other.conflist").write_text(json.dumps(conf))
        for other in set(NODES) - {name}:
            address = nodes[other]["status"]["addresses"][0]["address"]
            in_node(cluster, name, "ip", "route", "replace", *nodes[other]["spec"]["podCIDRs"], "via", address)
    cluster.apply(server("one", "node-1") + server("two", "node-2") + SERVICE)
    cluster.ready("one", "two")
    yield
    cluster.kubectl("delete", "pod", "one", "two", "--force", "--grace-period=0")
    for name in NODES:
        (run_of(cluster, name) / "cni/net.d/05-other.conflist").unlink()
        in_node(cluster, name, "ip", "link", "delete", "cni0")
        (route,) = (nodes[other]["spec"]["podCIDR"] for other in NODES if other != name)
        in_node(cluster, name, "ip", "route", "delete", route)


def reaches(cluster: Cluster, address: str, patience_s: float = 0.3) -> bool:
    """Whether the pod ``one`` gets a connection to port 80 of an address."""
    with netns.inside(netns_of(cluster, "one")):
        client = socket.socket()
    with client:
        client.settimeout(patience_s)
        return client.connect_ex((address, 80)) == 0


def install(cluster: Cluster, name: str, folder: Path, *options: str) -> str:
    """Installs with a file of deploy/values and what this cluster needs; the output."""
    (endpoint,) = cluster.get("endpointslices", "kubernetes")["endpoints"]
    (port,) = cluster.get("endpointslices", "kubernetes")["ports"]
    root = {"securityContext": {"runAsNonRoot": False, "runAsUser": 0}}
    own = {
        "api": {"host": endpoint["addresses"][0], "port": port["port"]},
        "serviceCIDRs": ["10.96.0.0/16"],
        "controller": root,
        "dns": {"securityContext": {**root["securityContext"], "capabilities": {"drop": []}}},
    }
    file = folder / "own.yaml"
    file.write_text(yaml.safe_dump(own))
    command = [*podwire(), "install", "--chart", "deploy/helm/podwire", "--values", f"deploy/values/{name}.yaml"]
    done = cluster.run([*command, "--values", str(file), "--wait", "60", *options])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def remove(cluster: Cluster, folder: Path) -> None:
    """Removes what was installed, and podwire from the nodes; nothing of podwire is left in their kernels."""
    document = agent_config(cluster)
    cluster.kubectl("delete", OBJECTS, "-n", NAMESPACE, "-l", "app.kubernetes.io/instance=podwire", "--wait=false")
    eventually(lambda: cluster.get("pods", "-n", NAMESPACE)["items"] == [])
    if document:
        take_off_nodes(cluster, folder, document)


def agent_config(cluster: Cluster) -> dict[str, Any]:
    """The configuration of the installed agents; empty when there are none."""
    config_map = cluster.run(["kubectl", "get", "configmap", "podwire-agent", "-n", NAMESPACE, "-o", "json"])
    return (
        {}
        if config_map.returncode
        else dict(yaml.load(json.loads(config_map.stdout)["data"]["agent.yaml"], Loader=yaml.CSafeLoader))
    )


def take_off_nodes(cluster: Cluster, folder: Path, document: dict[str, Any]) -> None:
    """Runs ``podwire uninstall`` on each node, whose agents had a configuration."""
    for node in NODES:
        run, state = run_of(cluster, node), Path(topology(cluster).node_state(node))
        document |= {"nodeName": node, "runDir": str(run / "podwire"), "stateDir": str(state / "podwire")}
        if "cni" in document:
            document["cni"] = {"confDir": str(run / "cni/net.d"), "binDir": str(run / "cni/bin")}
        file = folder / f"{node}.yaml"
        file.write_text(yaml.safe_dump(document))
        in_node(cluster, node, *podwire(), "uninstall", "--config", str(file))
        assert "podwire" not in in_node(cluster, node, "nft", "list", "tables")


def check_rights(cluster: Cluster, audit: Path) -> None:
    """What was installed used its rights, but for those with a reason, and no others; the log begins anew."""
    roles = cluster.get("clusterroles,roles", "-A", "-l", "app.kubernetes.io/instance=podwire")["items"]
    may, did = chart_rights.granted(roles), chart_rights.used(audit)
    assert (chart_rights.refused(audit), sorted(map(str, did - may))) == ([], [])
    assert chart_rights.unexplained(may - did, chart_rights.UNUSED) == []
    for kinds in ("clusterroles,clusterrolebindings", "roles,rolebindings"):
        cluster.kubectl("delete", kinds, "-n", NAMESPACE, "-l", "app.kubernetes.io/instance=podwire")
    audit.write_text("")


def tables(cluster: Cluster) -> str:
    return in_node(cluster, "node-2", "nft", "list", "tables")


def test_each_part_works_alone(cluster: Cluster, audit: Path, tmp_path: Path) -> None:
    with other_network(cluster):
        two = address_of(cluster, "two")
        assert reaches(cluster, two, 10) and not reaches(cluster, VIP)
        dry = install(cluster, "policy-only", tmp_path, "--dry-run")
        assert "would create DaemonSet kube-system/podwire-agent" in dry and "kube-dns" not in dry
        assert cluster.get("daemonsets", "-n", NAMESPACE)["items"] == []
        assert "created DaemonSet kube-system/podwire-agent" in install(cluster, "policy-only", tmp_path)
        eventually(lambda: not reaches(cluster, two))
        assert not reaches(cluster, VIP) and "podwire-proxy" not in tables(cluster)
        again = install(cluster, "policy-only", tmp_path)
        assert "left as it is: DaemonSet kube-system/podwire-agent" in again
        remove(cluster, tmp_path)
        check_rights(cluster, audit)
        assert reaches(cluster, two, 10)

        install(cluster, "proxy-only", tmp_path)
        eventually(lambda: reaches(cluster, VIP))
        assert reaches(cluster, two, 10), "the policy is not in force"
        assert "podwire-policy" not in tables(cluster)
        remove(cluster, tmp_path)
        check_rights(cluster, audit)
        assert not reaches(cluster, VIP)

        install(cluster, "dns-only", tmp_path)
        assert cluster.get("daemonsets", "-n", NAMESPACE)["items"] == []
        pods = cluster.get("pods", "-n", NAMESPACE, "-l", "k8s-app=kube-dns")["items"]
        assert answer(cluster, pods[0]["status"]["podIP"]) == VIP
        assert not reaches(cluster, VIP)
        remove(cluster, tmp_path)
        check_rights(cluster, audit)

    install(cluster, "beside-kube-proxy", tmp_path)
    cluster.apply(server("one", "node-1") + server("two", "node-2"))
    cluster.ready("one", "two")
    two = address_of(cluster, "two")
    assert not reaches(cluster, two) and not reaches(cluster, VIP)
    cluster.kubectl("delete", "networkpolicy", "nobody")
    eventually(lambda: reaches(cluster, two))
    assert not reaches(cluster, VIP) and "podwire-proxy" not in tables(cluster)
    cluster.kubectl("delete", "pod", "one", "two", "--grace-period=1")
    remove(cluster, tmp_path)
    check_rights(cluster, audit)


KINDS = (
    "daemonsets,deployments,replicasets,pods,services,configmaps,networkpolicies,poddisruptionbudgets,serviceaccounts,"
    "clusterroles,clusterrolebindings,roles,rolebindings,customresourcedefinitions,leases"
)


def contents(cluster: Cluster) -> set[str]:
    """The objects of the API that an installation may concern, and the annotations of its nodes."""
    names = {
        f"{item['kind']} {item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
        for item in cluster.get(KINDS, "-A")["items"]
    }
    nodes = cluster.get("nodes")["items"]
    return names | {
        f"{node['metadata']['name']} {key}" for node in nodes for key in node["metadata"].get("annotations", ())
    }


def test_uninstall_removes_all_objects_of_an_install(cluster: Cluster, tmp_path: Path) -> None:
    def uninstall(*options: str) -> str:
        done = cluster.run([*podwire(), "uninstall", "--objects", *options])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    uninstall("--crds")
    before = contents(cluster)
    cluster.kubectl("create", "configmap", "podwire-mine", "-n", NAMESPACE, "--from-literal=a=b")
    mine = f"ConfigMap {NAMESPACE}/podwire-mine"
    install(cluster, "beside-kube-proxy", tmp_path)
    eventually(lambda: any("podwire.io/" in name for name in contents(cluster)))
    document, installed = agent_config(cluster), contents(cluster)
    assert {f"DaemonSet {NAMESPACE}/podwire-agent", f"Deployment {NAMESPACE}/podwire-controller"} <= installed
    dry = uninstall("--dry-run")
    assert f"would delete DaemonSet {NAMESPACE}/podwire-agent" in dry and "podwire-mine" not in dry
    assert contents(cluster) >= installed - before
    check_and_clean_nodes(cluster)
    output = uninstall()
    lines = output.splitlines()
    order = [
        lines.index(f"deleted {name}")
        for name in (
            f"Deployment {NAMESPACE}/podwire-controller",
            f"DaemonSet {NAMESPACE}/podwire-agent",
            "ClusterRole podwire-agent",
        )
    ]
    assert order == sorted(order) and "definitions of kinds" in lines[-1]
    definitions = {name for name in installed if name.startswith("CustomResourceDefinition ")}
    eventually(lambda: contents(cluster) == before | definitions | {mine})
    assert "deleted CustomResourceDefinition egresspolicies.podwire.io" in uninstall("--crds")
    eventually(lambda: contents(cluster) == before | {mine})
    assert uninstall("--crds") == "there is nothing to remove\n"
    cluster.kubectl("delete", "configmap", "podwire-mine", "-n", NAMESPACE)
    take_off_nodes(cluster, tmp_path, document)


def check_and_clean_nodes(cluster: Cluster) -> None:
    """Checks the nodes from outside, and takes podwire off them."""
    checked = cluster.run([*podwire(), "preflight", "--nodes"])
    for node in NODES:
        assert f"{node}: warning: container runtime" in checked.stdout, checked.stdout + checked.stderr
        assert "podwire" in in_node(cluster, node, "nft", "list", "tables")
    unknown = cluster.run([*podwire(), "uninstall", "--nodes", "--node", "node-9"])
    problem = "'node-9' is not a node of this cluster; the nodes are node-1, node-2"
    assert (unknown.returncode, problem in unknown.stderr) == (2, True)
    removed = cluster.run([*podwire(), "uninstall", "--nodes"])
    assert removed.returncode == 0, removed.stdout + removed.stderr
    for node in NODES:
        assert f"{node}: removed table inet podwire-" in removed.stdout
        assert "podwire" not in in_node(cluster, node, "nft", "list", "tables")
        assert "podwire-" not in in_node(cluster, node, "ip", "link"), "the fabric's own alias has a slash"
        assert not (run_of(cluster, node) / "cni/net.d/10-podwire.conflist").exists()
    again = cluster.run([*podwire(), "uninstall", "--nodes"])
    assert (again.returncode, again.stdout.count("there is nothing to remove")) == (0, len(NODES))


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--objects", "--config", "a"],
        ["--objects", "--with-pods"],
        ["--config", "a", "--crds"],
        ["--nodes", "--objects"],
        ["--nodes", "--dry-run"],
        ["--config", "a", "--node", "b"],
    ],
)
def test_uninstall_refuses_options_that_do_not_fit(cluster: Cluster, options: list[str]) -> None:
    done = cluster.run([*podwire(), "uninstall", *options])
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "expected" in done.stderr or "goes with" in done.stderr


def answer(cluster: Cluster, server_address: str) -> str:
    """The address that a DNS server gives for the Service ``two``, asked by the pod ``one``."""
    labels = ("two", "default", "svc", "cluster", "local")
    name = b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"
    with netns.inside(netns_of(cluster, "one")):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with client:
        client.settimeout(10)
        client.sendto(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + name + struct.pack("!2H", 1, 1), (server_address, 53))
        data = client.recv(512)
    assert struct.unpack("!H", data[6:8]) == (1,), data
    at = 12 + len(name) + 4
    return str(ip_address(data[at + 12 : at + 16]))


FLANNEL = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-flannel-ds, namespace: kube-system}
spec:
  selector: {matchLabels: {app: flannel}}
  template:
    metadata: {labels: {app: flannel}}
    spec: {nodeSelector: {no: node}, containers: [{name: main, image: busybox:1.36}]}
"""


def test_faults_of_the_cluster_stop_an_install(cluster: Cluster) -> None:
    command = [*podwire(), "install", "--manifest", "deploy/manifests/everything.yaml"]
    cluster.apply(FLANNEL)
    try:
        done = cluster.run(command)
    finally:
        cluster.kubectl("delete", "daemonset", "kube-flannel-ds", "-n", NAMESPACE)
    assert done.returncode == 1 and done.stdout == ""
    assert "fault: DaemonSet kube-system/kube-flannel-ds: Flannel is the network of this cluster" in done.stderr
    assert "nothing was changed" in done.stderr
    wrong = cluster.run([*command, "--values", "x"])
    assert wrong.returncode == 2 and "--values and --set go with --chart" in wrong.stderr
    both = cluster.run([*podwire(), "install"])
    assert both.returncode == 2 and "expected exactly one of --chart and --manifest" in both.stderr
    missing = cluster.run([*podwire(), "install", "--manifest", "/missing.yaml"])
    assert missing.returncode == 2 and "/missing.yaml: cannot be read" in missing.stderr
