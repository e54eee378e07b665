"""The chart of podwire on a cluster without a network: install, upgrade, rollback and uninstall by Helm."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e import chart_rights
from tests.e2e.clusters import flows, in_node, run, server, without_network
from tests.e2e.driver import Cluster, eventually
from tests.e2e.helm import Helm

ROOT = Path(__file__).parents[2]
CHART = str(ROOT / "deploy/helm/podwire")
NAMESPACE = "kube-system"
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: two}
spec: {selector: {app: two}, ports: [{port: 80}]}
"""
DENY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody}
spec: {podSelector: {matchLabels: {app: two}}, policyTypes: [Ingress]}
"""
RARE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "nothing"},
            "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "ingress": []},
        },
        {
            "apiVersion": "podwire.io/v1alpha1",
            "kind": "EgressPolicy",
            "metadata": {"name": "partner"},
            "spec": {"podSelector": {"matchLabels": {"app": "nobody"}}, "egressIPs": ["10.89.0.99"]},
        },
    ],
}
"""Objects for which agents and controllers use rights that they need seldom."""
WAIT = ("--wait", "--timeout", "90s")


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit log of what service accounts do in the cluster."""
    return tmp_path_factory.mktemp("audit") / "log"


@pytest.fixture(scope="module")
def bare(audit: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes without a network, whose image ``podwire`` is this podwire."""
    with without_network("chart", tmp_path_factory.mktemp("bare"), audit) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def values(bare: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of values for the cluster; its interpreter may be readable by root alone."""
    (endpoint,) = bare.get("endpointslices", "kubernetes")["endpoints"]
    (port,) = bare.get("endpointslices", "kubernetes")["ports"]
    file = tmp_path_factory.mktemp("values") / "values.yaml"
    document = {
        "api": {"host": endpoint["addresses"][0], "port": port["port"]},
        "serviceCIDRs": ["10.96.0.0/16"],
        "controller": {"securityContext": {"runAsNonRoot": False, "runAsUser": 0}},
        "dns": {"securityContext": {"runAsNonRoot": False, "runAsUser": 0, "capabilities": {"drop": []}}},
    }
    file.write_text(yaml.safe_dump(document))
    return str(file)


def ready(cluster: Cluster) -> list[bool]:
    nodes = cluster.get("nodes")["items"]
    conditions = [{c["type"]: c["status"] for c in node["status"]["conditions"]} for node in nodes]
    return [condition["Ready"] == "True" for condition in conditions]


def announced(cluster: Cluster) -> set[str]:
    """The routing backends that the nodes announce."""
    nodes = cluster.get("nodes")["items"]
    return {node["metadata"]["annotations"].get("podwire.io/routing", "") for node in nodes}


def refused_requests(cluster: Cluster) -> list[str]:
    """Lines of podwire's logs about requests that its rights do not cover."""
    names = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name").split()
    asked = [cluster.run(["kubectl", "logs", "-n", NAMESPACE, name]) for name in names]
    assert all(done.returncode == 0 or "not found" in done.stderr for done in asked), "a pod may end meanwhile"
    return [line for done in asked for line in done.stdout.splitlines() if "forbidden" in line]


def metrics(cluster: Cluster) -> set[str]:
    """The names of the metrics of an agent and of DNS."""
    pods = cluster.get("pods", "-n", NAMESPACE, "-l", "k8s-app=kube-dns")["items"]
    dns = next(pod for pod in pods if "deletionTimestamp" not in pod["metadata"])  # those of before end for 5 s
    targets = ("127.0.0.1:9440", f"{dns['status']['podIP']}:9153")
    pages = [in_node(cluster, "node-1", "curl", "-sSf", f"http://{target}/metrics") for target in targets]
    return {name for page in pages for name in re.findall(r"^[a-z]\w+", page, re.MULTILINE)}


def alerting(text: str) -> set[str]:
    """The metrics that alert rules name."""
    rules = [rule for group in yaml.load(text, Loader=yaml.CSafeLoader)["groups"] for rule in group["rules"]]
    assert len(rules) > 5 and all({"alert", "expr", "labels", "annotations"} <= set(rule) for rule in rules)
    return {name for rule in rules for name in re.findall(r"\b(?:podwire|kubeproxy)_\w+", rule["expr"])}


def use_all_rights(cluster: Cluster, audit: Path, may: set[chart_rights.Action]) -> None:
    """Makes seldom objects, until podwire has used all rights but those with a reason; it used no other rights."""
    node, _, number = cluster.get("node", "node-1")["status"]["addresses"][0]["address"].rpartition(".")
    egress = RARE["items"][1]["spec"] | {"egressIPs": [f"{node}.{int(number) + 200}"]}
    items = [RARE["items"][0], RARE["items"][1] | {"spec": egress}]
    cluster.apply(json.dumps({**RARE, "items": items}))
    unused: list[str] = []

    def everything_is_used() -> bool:
        unused[:] = chart_rights.unexplained(may - chart_rights.used(audit), chart_rights.NEVER)
        if not {
            "agent: create leases.coordination.k8s.io",
            "controller: patch egresspolicies/status.podwire.io",
        }.intersection(unused):
            cluster.run(["kubectl", "delete", "egresspolicy", "partner", "--ignore-not-found"])
        return not unused

    try:
        eventually(everything_is_used)
    finally:
        print("unused rights:", *unused, sep="\n  ")
    assert chart_rights.refused(audit) == []
    assert sorted(map(str, chart_rights.used(audit) - may)) == []


def test_the_chart_makes_upgrades_and_outlives_a_network(
    bare: Cluster, audit: Path, values: str, tmp_path: Path
) -> None:
    helm = Helm(bare, NAMESPACE, tmp_path)
    assert ready(bare) == [False, False], "no network yet"
    helm("install", "podwire", CHART, "-f", values, *WAIT)
    eventually(lambda: ready(bare) == [True, True])
    bare.apply(server("one", "node-1") + server("two", "node-2") + SERVICE)
    bare.ready("one", "two")
    name = "two.default.svc.cluster.local"
    assert '"pod":"two"' in bare.kubectl("exec", "one", "--", "curl", "-sS", "--max-time", "5", f"http://{name}/")
    pods = {pod["metadata"]["name"] for pod in bare.get("pods", "-n", NAMESPACE)["items"]}
    with flows(bare, [("one", "two"), ("two", "one")]) as traffic:
        helm("upgrade", "podwire", CHART, "-f", values, "--set", r"settings.routing\.backend=hostgw", *WAIT)
        eventually(lambda: all("hostgw" in text for text in announced(bare)))
        helm("upgrade", "podwire", CHART, "-f", values, "--set", "agent.logLevel=debug,dns.replicas=1", *WAIT)
        upgraded = {pod["metadata"]["name"] for pod in bare.get("pods", "-n", NAMESPACE)["items"]}
        assert not {p for p in pods & upgraded if p.startswith("podwire-agent")}, "every agent was replaced"
        helm("rollback", "podwire", "1", *WAIT)
        assert refused_requests(bare) == []
    print("requests:", [flow.lines + flow.connections for flow in traffic])
    assert [flow.problems for flow in traffic] == [[], []]
    bare.apply(DENY)
    blocked = ("exec", "one", "--", "curl", "-sS", "--max-time", "1", f"http://{name}/")
    eventually(lambda: bare.run(["kubectl", *blocked]).returncode != 0)
    bare.kubectl("delete", "networkpolicy", "nobody")
    eventually(lambda: bare.run(["kubectl", *blocked]).returncode == 0)
    assert alerting((ROOT / "deploy/alerts.yaml").read_text()) - metrics(bare) == set()
    text = helm("template", "podwire", CHART, "-f", values)
    rendered = [item for item in yaml.load_all(text, yaml.CSafeLoader) if item]
    use_all_rights(bare, audit, chart_rights.granted(rendered))
    with flows(bare, [("one", "two"), ("two", "one")]) as traffic:
        helm("upgrade", "podwire", CHART, "-f", values, "--set", "dns.enabled=false", *WAIT)
        eventually(lambda: not bare.get("pods", "-n", NAMESPACE, "-l", "k8s-app=kube-dns")["items"])
        helm("uninstall", "podwire", *WAIT)
        eventually(lambda: bare.get("pods", "-n", NAMESPACE)["items"] == [])
    print("requests:", [flow.lines + flow.connections for flow in traffic])
    assert [flow.problems for flow in traffic] == [[], []], "the kernel keeps the network of pods"


def test_the_chart_names_missing_and_wrong_values(bare: Cluster, tmp_path: Path) -> None:
    helm = Helm(bare, NAMESPACE, tmp_path)
    assert "api.host: expected the address of the API server" in helm.refused("template", "podwire", CHART)
    wrong = helm.refused("template", "podwire", CHART, "--set", "api.host=a,agent.parts={pigeon},agent.prts=1")
    assert "at '/agent/parts/0': value must be one of 'cni', 'routing', 'policy', 'proxy'" in wrong
    assert "additional properties 'prts' not allowed" in wrong
    elsewhere = Helm(bare, "default", tmp_path).refused("template", "podwire", CHART, "--set", "api.host=a")
    assert "namespace: expected kube-system" in elsewhere


def test_a_cluster_without_a_network_says_so(bare: Cluster) -> None:
    output = run("up", "--name", bare.name).stdout
    assert "2 nodes without a network: pods start when one is installed" in output
