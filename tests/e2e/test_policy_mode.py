"""The policy data plane of a cluster: as a setting, changed at run time, and in nodes, `state` and `why`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.clusters import done, own_name, run, running, server
from tests.e2e.driver import Cluster, eventually
from tests.e2e.test_network_policy import reaches

_DENY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A database, a client that may connect and one that may not; policies through iptables."""
    config = tmp_path_factory.mktemp("mode") / "cluster.yaml"
    config.write_text("nodes: 2\npolicy: {mode: iptables}\n")
    manifest = _DENY + server("db", "node-1") + server("friend", "node-2") + server("stranger", "node-1")
    with running(own_name("polmode"), "--config", str(config), stdin=manifest) as created:
        created.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=90s")
        yield created


def modes(cluster: Cluster) -> set[str]:
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    return {node["metadata"]["annotations"].get("podwire.io/policy", "") for node in nodes}


def set_mode(cluster: Cluster, mode: str) -> None:
    data = json.dumps({"data": {"policy.mode": mode}})
    cluster.kubectl("-n", "kube-system", "patch", "configmap", "podwire-config", "--type", "merge", "-p", data)


def holds(cluster: Cluster) -> bool:
    """Whether only the allowed client connects and each kernel holds its desired state."""
    drift = [done("state", "--name", cluster.name, node, "--diff") for node in ("node-1", "node-2")]
    return reaches(cluster, "friend", "db", 20) and not reaches(cluster, "stranger", "db") and not any(drift)


def test_policies_are_enforced_by_iptables_and_shown(cluster: Cluster) -> None:
    if modes(cluster) != {"iptables"}:
        set_mode(cluster, "iptables")  # another test was here before
    eventually(lambda: modes(cluster) == {"iptables"})
    eventually(lambda: holds(cluster))
    state = done("state", "--name", cluster.name, "node-1")
    assert "*mangle ip\n" in state and "\nadd podwire4-egress " in state and "podwire-policy" not in state
    assert "iptables" in done("status", "--name", cluster.name)
    why = run("why", "--name", cluster.name, "pod/stranger", "pod/db", "80").stdout
    assert "DROPPED on node-1, by the iptables rules in its kernel" in why


@pytest.mark.parametrize(
    ("mode", "becomes"), [("nftables", "nftables"), ("iptables", "iptables"), ("auto", "nftables")]
)
def test_another_one_takes_over_while_the_cluster_runs(cluster: Cluster, mode: str, becomes: str) -> None:
    set_mode(cluster, mode)
    eventually(lambda: modes(cluster) == {becomes})
    eventually(lambda: holds(cluster))


def test_unknown_policy_mode_changes_nothing_and_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    set_mode(cluster, "ipfw")
    output = "policy.mode: 'ipfw' is not a data plane of policies; expected one of auto, nftables, iptables"
    eventually(lambda: output in done("status", "--name", cluster.name))
    assert holds(cluster)
    set_mode(cluster, "iptables")
    (tmp_path / "c.yaml").write_text("policy: {mode: ipfw}\n")
    refused = run("up", "--name", own_name("never"), "--config", str(tmp_path / "c.yaml"))
    assert refused.returncode == 2
    assert output in refused.stderr and "Traceback" not in refused.stderr
