"""The status of a policy: where it is in force, what it drops, what it would drop, and why."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import done, own_name, run, running, server, topology
from tests.e2e.driver import Cluster, eventually
from tests.e2e.test_network_policy import pid_of, reaches

_POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, annotations: {%s}}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [%s]}
"""
_CLUSTER_POLICY = """
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: no-web, annotations: {podwire.io/mode: audit}}
spec:
  tier: Admin
  priority: 5
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: default}}}
  ingress:
    - {name: deny-web, action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]}
"""
_ANNOTATION = "podwire.io/enforced"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A database and a client, on different nodes."""
    manifest = server("db", "node-1", "app: db") + server("web", "node-2")
    with running(own_name("polstat"), "--nodes", "2", stdin=manifest) as created:
        created.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=90s")
        yield created


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.delete_all("networkpolicies")


def status_annotation(cluster: Cluster) -> dict[str, Any]:
    """The annotation of the policy."""
    text = cluster.kubectl("get", "networkpolicy", "deny", "-o", "json")
    result = json.loads(text)["metadata"].get("annotations", {}).get(_ANNOTATION, "{}")
    return dict(json.loads(result))


def listed(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    return list(json.loads(done("policy", "list", "--name", cluster.name, "-o", "json", *arguments)))


def events(cluster: Cluster) -> list[tuple[str, str]]:
    result = json.loads(cluster.kubectl("get", "events", "-o", "json"))["items"]
    return [(e["reason"], e["message"]) for e in result if e["involvedObject"]["kind"] == "NetworkPolicy"]


def log_of(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in done("policy", "log", "--name", cluster.name, "-o", "json", *arguments).splitlines()
    ]


def test_applied_policy_reports_its_nodes_and_its_drops(clean: Cluster) -> None:
    clean.apply(_POLICY % ("", ""))
    first = eventually(lambda: status_annotation(clean).get("nodes") == "2/2" and status_annotation(clean))
    assert first["generation"] == 1 and int(first["took"].removesuffix("ms")) >= 0
    eventually(lambda: [text for reason, text in events(clean) if reason == "Enforced"])
    assert not reaches(clean, "web", "db")
    (line,) = listed(clean)
    shown = [line[key] for key in ("namespace", "name", "mode", "selects", "nodes")]
    assert shown == ["default", "deny", "enforce", 1, "2/2"]
    assert line["dropped"] >= 1 and line["inForceForMs"] > 0
    table = done("policy", "list", "--name", clean.name).splitlines()
    assert table[0].split()[:4] == ["NAMESPACE", "NAME", "KIND", "MODE"]
    assert table[1].split()[:6] == ["default", "deny", "NetworkPolicy", "enforce", "1", "2/2"]

    result = eventually(lambda: log_of(clean, "--policy", "default/deny"))
    item = result[-1]
    assert (item["node"], item["verdict"], item["direction"]) == ("node-1", "dropped", "ingress")
    assert (item["source"], item["destination"], item["port"]) == ("default/web", "default/db", 80)
    assert item["why"] == (
        "default/web -> default/db TCP 80: dropped at ingress: isolated by default/deny, and there is no ingress rule"
    )
    own = Path(topology(clean).run, "log/agent-node-1.log").read_text()
    assert "policy dropped from=default/web to=default/db port=80/TCP" in own
    counted = json.loads(done("policy", "counters", "default/deny", "--name", clean.name, "-o", "json"))
    assert ("node-1", "dropped") in {(entry["node"], entry["verdict"]) for entry in counted}


def test_by_the_api_alone_as_of_a_cluster_elsewhere(clean: Cluster, tmp_path: Path) -> None:
    clean.apply(_POLICY % ("", ""))
    eventually(lambda: status_annotation(clean).get("nodes") == "2/2" and not reaches(clean, "web", "db", 0.1))
    elsewhere = tmp_path / "kubeconfig"
    text = Path(clean.kubeconfig).read_text().replace("//127.0.0.1:", "//localhost:")
    elsewhere.write_text(text)  # a local cluster is known by the address of its API
    (line,) = json.loads(done("policy", "list", "--kubeconfig", str(elsewhere), "-o", "json"))
    assert (line["nodes"], line["notAsked"], line["dropped"] > 0) == ("2/2", 0, True)
    counted = json.loads(done("policy", "counters", "default/deny", "--kubeconfig", str(elsewhere), "-o", "json"))
    assert ("node-1", "dropped") in {(item["node"], item["verdict"]) for item in counted}
    quiet = run("policy", "log", "--kubeconfig", str(elsewhere))
    assert (quiet.returncode, quiet.stdout) == (1, "")
    assert quiet.stderr.startswith("podwire: no answer from node-1, node-2: its agent does not serve its policy log")


def test_audited_policy_drops_nothing_and_names_would_be_drops(clean: Cluster) -> None:
    clean.apply(_POLICY % ("podwire.io/mode: audit", "{ports: [{port: 81}]}"))
    eventually(
        lambda: status_annotation(clean).get("mode") == "audit" and status_annotation(clean).get("nodes") == "2/2"
    )
    before, dropped = log_of(clean), listed(clean)[0]["dropped"]
    assert reaches(clean, "web", "db", 20)
    result = eventually(lambda: log_of(clean)[len(before) :])
    assert {(item["verdict"], tuple(item["policies"])) for item in result} == {("audited", ("default/deny",))}
    near = "isolated by default/deny; nearest rule default/deny ingress[0]: ports TCP 81, the connection is TCP 80"
    assert result[0]["why"].endswith(f"in audit, default/deny would drop it: {near}")
    (line,) = listed(clean)
    assert (line["mode"], line["dropped"], line["audited"] > 0) == ("audit", dropped, True)

    clean.kubectl("annotate", "networkpolicy", "deny", "podwire.io/mode-")
    eventually(lambda: not reaches(clean, "web", "db"))
    eventually(lambda: status_annotation(clean).get("nodes") == "2/2" and "mode" not in status_annotation(clean))
    clean.kubectl("annotate", "networkpolicy", "deny", "podwire.io/mode=later")
    warned = eventually(lambda: [text for reason, text in events(clean) if reason == "AnnotationNotKnown"])
    assert warned == ["podwire.io/mode: unknown value 'later', expected one of audit, enforce; the policy is enforced"]
    assert not reaches(clean, "web", "db")


def test_cluster_policy_has_events_too(clean: Cluster) -> None:
    clean.apply(_CLUSTER_POLICY)
    try:
        (line,) = eventually(lambda: [item for item in listed(clean) if item["nodes"] == "2/2"])
        assert (line["namespace"], line["kind"], line["mode"]) == ("", "ClusterNetworkPolicy", "audit")
        assert reaches(clean, "web", "db", 20)
        result = eventually(lambda: log_of(clean, "--policy", "no-web"))
        assert (result[-1]["verdict"], result[-1]["rule"]) == ("audited", 0)
        assert result[-1]["why"].endswith('denied by cluster policy no-web ingress[0] "deny-web", tier Admin')
        counted = done("policy", "counters", "no-web", "--name", clean.name).splitlines()
        assert counted[1].split()[:5] == ["node-1", "no-web", "ingress", "0", "audited"]
    finally:
        clean.kubectl("delete", "clusternetworkpolicy", "no-web")


def test_an_agent_that_is_killed_drops_on_and_logs_again(clean: Cluster) -> None:
    clean.apply(_POLICY % ("", ""))
    eventually(lambda: status_annotation(clean).get("nodes") == "2/2")
    since = status_annotation(clean)["since"]
    pid = pid_of(clean, "agent-node-1")
    os.kill(pid, signal.SIGKILL)
    for _ in range(5):
        assert not reaches(clean, "web", "db", 0.05)
    eventually(lambda: pid_of(clean, "agent-node-1") != pid)
    assert eventually(lambda: not reaches(clean, "web", "db", 0.1) and answering(clean))
    assert status_annotation(clean)["since"] == since
    (line,) = listed(clean)
    assert line["dropped"] >= 5, "rules count on while no agent runs"


def answering(cluster: Cluster) -> list[dict[str, Any]]:
    """The entries of the policy log, once all agents answer."""
    asked = run("policy", "log", "--name", cluster.name, "-o", "json")
    return [json.loads(line) for line in asked.stdout.splitlines()] if asked.returncode == 0 else []


def test_wrong_words(cluster: Cluster) -> None:
    refused = run("policy", "counters", "default/none", "--name", cluster.name)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "podwire: POLICY: no rule of 'default/none' has counted a packet on these nodes\n"
    refused = run("policy", "log", "--config", "/nowhere.yaml")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
