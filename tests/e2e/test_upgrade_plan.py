"""``podwire upgrade plan`` and ``preflight`` against a running cluster with the objects of kubeadm, k3s and EKS."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.cases.upgrade_clusters import FOLDER, VERSIONS, node
from tests.e2e.clusters import own_name, run, running
from tests.e2e.driver import Cluster, eventually

from podwire.local import inventory
from podwire.upgrade.plan.values import UpgradePlan, identified, parse_plan, plan_json

SYSTEM = ("-n", "kube-system")
ACCOUNTS = "".join(
    f"---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {namespace}}}\n"
    for name, namespace in (("coredns", "kube-system"), ("kube-proxy", "kube-system"), ("flannel", "kube-flannel"))
)


PROBE = "periodSeconds: {}\n            successThreshold: 1\n            failureThreshold: {}\n"
ATTENTIVE = PROBE.format(10, 3), PROBE.format(1, 30)
"""A probe that sees sooner that a pod has become ready, and as late that it is not ready any more."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes, whose API also has what kubeadm and Flannel install; the images are stand-ins."""
    config = tmp_path_factory.mktemp("upgrade") / "cluster.yaml"
    config.write_text(yaml.safe_dump({"nodes": 2}))
    with running(own_name("upgrade-plan"), "--config", str(config)) as created:
        created.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: kube-flannel}\n" + ACCOUNTS)
        created.apply((FOLDER / "kubeadm.yaml").read_text().replace(*ATTENTIVE))
        eventually(lambda: is_complete(created), within=120)
        yield created


def is_complete(cluster: Cluster) -> bool:
    """Whether all pods of kube-proxy, Flannel and CoreDNS are ready."""
    daemonsets = [cluster.get("ds", "kube-proxy", *SYSTEM), cluster.get("ds", "kube-flannel-ds", "-n", "kube-flannel")]
    ready = [item.get("status", {}).get("numberReady", 0) == 2 for item in daemonsets]
    return all(ready) and cluster.get("deploy", "coredns", *SYSTEM).get("status", {}).get("readyReplicas", 0) == 4


def plan(cluster: Cluster, target: str, *words: str) -> tuple[int, UpgradePlan]:
    done = run("upgrade", "plan", "--kubeconfig", cluster.kubeconfig, "--to", target, "-o", "json", *words)
    assert done.stderr == ""
    return done.returncode, parse_plan(done.stdout, "standard output")


def test_plan_of_the_layout_of_kubeadm(cluster: Cluster) -> None:
    status, result = plan(cluster, "1.36", "--image", "flannel=ghcr.io/flannel-io/flannel:v0.27.0")
    assert (status, result.layout, result.from_version, result.nodes) == (0, "kubeadm", "1.36.0+podwire", 2)
    assert [step.id for step in result.steps] == ["1-flannel", "2-kube-proxy", "3-coredns"]
    proxy, dns = result.steps[1:]
    assert str(proxy.images[0].after) == "registry.k8s.io/kube-proxy:v1.36.0"
    assert sorted(name for wave in proxy.waves for name in wave.nodes) == ["node-1", "node-2"]
    assert str(dns.images[0].after) == "registry.k8s.io/coredns/coredns:v1.14.2"
    assert result.cluster == cluster.get("namespace", "kube-system")["metadata"]["uid"]
    assert plan(cluster, "1.36", "--image", "flannel=ghcr.io/flannel-io/flannel:v0.27.0")[1].id == result.id


def test_patches_of_a_plan_are_accepted_by_the_api(cluster: Cluster) -> None:
    _, result = plan(cluster, "1.36")
    plurals = {
        "DaemonSet": "apis/apps/v1/namespaces/{}/daemonsets",
        "Deployment": "apis/apps/v1/namespaces/{}/deployments",
    }
    for change in (change for step in result.steps for change in step.changes):
        path = f"/{plurals[change.kind].format(change.namespace)}/{change.name}"
        body = cluster.api.do("PATCH", path, change.patch, patch="strategic", dryRun="All")
        containers = body["spec"]["template"]["spec"]["containers"]
        assert len(containers) == 1 and containers[0]["image"] in json.dumps(change.patch)
        assert containers[0]["volumeMounts"]


SHOP = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: own.example/web:1, ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
"""


def test_an_upgrade_is_rehearsed_in_a_copy_without_loss(cluster: Cluster, tmp_path: Path) -> None:
    cluster.apply(SHOP)
    _, whole = plan(cluster, "1.36")
    dns = [step for step in whole.steps if step.component == "coredns"]
    file, folder, name = tmp_path / "plan.json", tmp_path / "proofs", own_name("rehearsal")
    file.write_text(plan_json(identified(msgspec.structs.replace(whole, steps=tuple(dns)))))
    before = spec_of(cluster, "deploy", "coredns")
    words = ("--plan", str(file), "--nodes", "2", "--name", name, "--folder", str(folder), "--interval-ms", "100")
    done = run("upgrade", "rehearse", "--kubeconfig", cluster.kubeconfig, *words, "-o", "json", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == ["2-coredns"] and result["problems"] == []
    assert "1 of 1 workloads behind Services have stand-ins" in result["differences"]
    assert not [text for text in result["differences"] if "is missing" in text]
    for direction in ("there", "back"):
        counts = result[direction]
        assert (counts["lost"], counts["leaked"]) == (0, 0) and counts["sent"] > 300 and counts["denied"] > 50
    assert len(list(folder.glob("proof-*.json"))) == 2
    assert inventory.find(name) is None, "the copy is gone"
    assert spec_of(cluster, "deploy", "coredns") == before


def spec_of(cluster: Cluster, kind: str, name: str) -> object:
    return cluster.get(kind, name, *SYSTEM)["spec"]


def test_blocker_gives_exit_status_1_in_every_form(cluster: Cluster) -> None:
    for form, mark in (("text", "blocker: API servers"), ("markdown", "| blocker | API servers |")):
        done = run("upgrade", "plan", "--kubeconfig", cluster.kubeconfig, "--to", "1.39", "-o", form)
        assert (done.returncode, done.stderr, mark in done.stdout) == (1, "", True), done.stdout


@pytest.mark.parametrize("layout", ["k3s", "eks"])
def test_other_layouts_are_recognized_by_their_nodes(cluster: Cluster, layout: str) -> None:
    other = node("other", VERSIONS[layout])
    cluster.api.do("POST", "/api/v1/nodes", {**other, "status": {}})
    try:
        cluster.api.do("PUT", "/api/v1/nodes/other/status", other)
        _, result = plan(cluster, "1.36")
    finally:
        cluster.api.do("DELETE", "/api/v1/nodes/other")
    assert result.layout == layout
    assert any(finding.object == f"layout {layout}" for finding in result.findings)


def test_preflight_reads_the_files_of_nodes_by_pods(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "05-old.conflist").touch()
    (tmp_path / "10-podwire.conflist").touch()
    words = ("upgrade", "preflight", "--kubeconfig", cluster.kubeconfig, "--to", "1.36", "--node-image", "busybox")
    done = run(*words, "--cni-conf-dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "the runtime takes 05-old.conflist first on nodes node-1, node-2" in done.stdout
    pods = cluster.get("pods", *SYSTEM)["items"]
    assert not any("podwire-preflight" in pod["metadata"]["name"] for pod in pods)


def test_preflight_finds_a_node_that_is_not_ready(cluster: Cluster) -> None:
    cluster.apply("apiVersion: v1\nkind: Node\nmetadata: {name: dead}\n")
    try:
        done = run("upgrade", "preflight", "--kubeconfig", cluster.kubeconfig, "--to", "1.36")
    finally:
        cluster.api.do("DELETE", "/api/v1/nodes/dead")
    assert done.returncode == 1
    assert "blocker: Nodes: status.conditions[Ready]: node dead is not Ready" in done.stdout


def test_unreachable_api_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config"
    server = {"name": "a", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    document = {
        "current-context": "a",
        "clusters": [server],
        "contexts": [context],
        "users": [{"name": "a", "user": {}}],
    }
    file.write_text(json.dumps(document))
    done = run("upgrade", "plan", "--kubeconfig", str(file), "--to", "1.36")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
