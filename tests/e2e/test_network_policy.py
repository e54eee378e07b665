"""NetworkPolicies applied by kubectl, for running pods and for new pods."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.clusters import (
    address_of,
    in_node,
    netns_of,
    policies_in_force,
    run,
    server,
    topology,
)
from tests.e2e.driver import NOTICED_S, Cluster, eventually

from podwire.kernel import netns

_POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s}
spec: %s
"""
_DENY = _POLICY % ("deny", "{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}")
_ALLOW = _POLICY % (
    "allow",
    "{podSelector: {matchLabels: {app: db}}, ingress: "
    "[{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}]}",
)
_BUSY = """
import socket, time
until, tries, reached = time.monotonic() + 2, 0, 0
while tries < 30 or time.monotonic() < until:
    tries += 1
    sock = socket.socket()
    sock.settimeout(0.02)
    try:
        sock.connect(("%s", 80))
        reached = reached or tries
    except OSError:
        pass
    sock.close()
print("tries", tries, "reached", reached, flush=True)
"""
_ONCE = """
import socket, struct
sock = socket.create_connection(("%s", 80), 30)
print("repeated", struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0])
"""
"""Says how many of its packets had to be sent again: the field ``tcpi_total_retrans`` (linux/tcp.h)."""
_PATIENCE_S = 20.0
"""For a connection that must be made; it is made at once, but not by a machine that has much else to do."""


@pytest.fixture
def guarded(guarded_cluster: Cluster) -> Cluster:
    return guarded_cluster


@pytest.fixture
def clean(guarded: Cluster) -> Iterator[Cluster]:
    """The cluster without policies; they are deleted again after the test."""
    yield guarded
    guarded.delete_all("networkpolicies")
    policies_in_force(guarded)


def reaches(cluster: Cluster, source: str, target: str, seconds: float = 0.3) -> bool:
    """Whether one pod connects to port 80 of another."""
    with netns.inside(netns_of(cluster, source)):
        sock = socket.socket()
    with sock:
        sock.settimeout(seconds)
        return sock.connect_ex((address_of(cluster, target), 80)) == 0


def test_diff_predicts_changes_and_check_reports_mistakes(clean: Cluster, tmp_path: Path) -> None:
    (tmp_path / "deny.yaml").write_text(_DENY)
    arguments = ("policy", "diff", "live", str(tmp_path), "--name", clean.name)
    foretold = run(*arguments)
    assert foretold.returncode == 1, foretold.stderr
    assert "Pod default/web" in foretold.stdout
    assert "    after:  denied: no ingress rule of default/deny allows it" in foretold.stdout
    assert reaches(clean, "web", "db-1", _PATIENCE_S)
    clean.apply(_DENY)
    policies_in_force(clean)
    assert not reaches(clean, "web", "db-1")
    same = run(*arguments)
    assert (same.returncode, same.stdout.splitlines()[-1]) == (0, "0 pairs now denied, 0 pairs now allowed")
    assert run("policy", "check", "--name", clean.name).returncode == 0
    clean.apply(_DENY.replace("app: db", "app: dv"))
    checked = run("policy", "check", "--name", clean.name)
    assert checked.returncode == 1, checked.stderr
    assert "warning: NetworkPolicy default/deny spec.podSelector: it selects no pod" in checked.stdout
    assert "app=db" in checked.stdout


def test_a_policy_shuts_off_and_another_one_lets_in(clean: Cluster) -> None:
    for client in ("web", "other"):
        for target in ("db-1", "db-2"):
            assert reaches(clean, client, target, _PATIENCE_S)
    clean.apply(_DENY)
    policies_in_force(clean)
    for target in ("db-1", "db-2"):
        assert not reaches(clean, "web", target)
    clean.apply(_ALLOW)
    policies_in_force(clean)
    for target in ("db-1", "db-2"):
        assert reaches(clean, "web", target, _PATIENCE_S)
        assert not reaches(clean, "other", target)
    clean.kubectl("label", "pod", "other", "app=web", "--overwrite")
    try:
        policies_in_force(clean)
        assert reaches(clean, "other", "db-1", _PATIENCE_S)
    finally:
        clean.kubectl("label", "pod", "other", "app=other", "--overwrite")
    policies_in_force(clean)
    assert not reaches(clean, "other", "db-1")


def test_probes_from_own_node_pass_a_deny_all_policy(clean: Cluster) -> None:
    clean.apply(_POLICY % ("all", "{podSelector: {}, policyTypes: [Ingress, Egress]}"))
    policies_in_force(clean)
    assert not reaches(clean, "web", "db-1")
    clean.apply(server("late", "node-2"))
    try:
        clean.ready("late")
    finally:
        clean.kubectl("delete", "pod", "late", "--now")


def busy(cluster: Cluster, name: str, node: str, script: str = _BUSY) -> list[str]:
    """The output of a pod that connects to ``db-1`` as fast as it can, from its first instruction on."""
    script = json.dumps(script % address_of(cluster, "db-1"))
    cluster.apply(f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeName: {node}
  restartPolicy: Never
  containers:
    - {{name: main, image: busybox, command: [python3, -c, {script}]}}
""")
    try:
        cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=90s")
        return cluster.kubectl("logs", name).split()
    finally:
        cluster.kubectl("delete", "pod", name, "--now")


@pytest.mark.parametrize("node", ["node-1", "node-2"])
def test_a_pod_is_isolated_from_its_first_instruction_on(clean: Cluster, node: str) -> None:
    clean.apply(_POLICY % ("quiet", "{podSelector: {matchLabels: {app: busy}}, policyTypes: [Egress]}"))
    policies_in_force(clean)
    arguments = busy(clean, "busy", node)
    assert arguments[3] == "0", arguments


def test_a_pod_that_may_connect_does_so_at_once(clean: Cluster) -> None:
    clean.apply(_DENY)
    clean.apply(
        _POLICY
        % (
            "in",
            "{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: busy}}}]}]}",
        )
    )
    policies_in_force(clean)
    assert busy(clean, "busy", "node-1", _ONCE) == ["repeated", "0"]


def pid_of(cluster: Cluster, process: str) -> int:
    record = json.loads((Path(topology(cluster).run) / "processes" / f"{process}.json").read_text())
    return int(record["pid"])


def test_killed_agent_opens_nothing_and_restores_the_same_state(clean: Cluster) -> None:
    clean.apply(_DENY)
    policies_in_force(clean)
    before = [pid_of(clean, f"agent-node-{number}") for number in (1, 2)]
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        assert not reaches(clean, "web", "db-1", 0.05)
        assert not reaches(clean, "web", "db-2", 0.05)
    eventually(lambda: all(pid_of(clean, f"agent-node-{n}") not in before for n in (1, 2)))
    clean.kubectl("delete", "networkpolicy", "deny")
    eventually(lambda: reaches(clean, "web", "db-1") and reaches(clean, "web", "db-2"))


def test_pods_stay_isolated_while_their_namespace_is_deleted(guarded: Cluster) -> None:
    guarded.kubectl("create", "namespace", "ending")
    slow = server("db", "node-2").replace(
        "      image:", "      lifecycle: {preStop: {sleep: {seconds: 3}}}\n      image:"
    )
    slow = slow.replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 10")
    guarded.apply(slow + "\n---" + _POLICY % ("deny", "{podSelector: {}}"), "-n", "ending")
    guarded.ready("db", namespace="ending")
    policies_in_force(guarded)
    address = guarded.get("pod", "db", "-n", "ending")["status"]["podIP"]
    guarded.kubectl("delete", "namespace", "ending", "--wait=false")
    tries, began = 0, time.monotonic()
    while guarded.kubectl("get", "pod", "db", "-n", "ending", "--ignore-not-found", "-o", "name").strip():
        for _ in range(20):
            with netns.inside(netns_of(guarded, "web")):
                sock = socket.socket()
            with sock:
                sock.settimeout(0.02)
                assert sock.connect_ex((address, 80)) != 0, time.monotonic() - began
            tries += 1
    assert time.monotonic() - began > 2, "the pod takes its time to end"
    assert tries > 20
    guarded.kubectl("wait", "--for=delete", "namespace/ending", "--timeout=30s")


def test_pod_added_while_agent_is_dead_is_isolated(clean: Cluster) -> None:
    clean.apply(_POLICY % ("quiet", "{podSelector: {matchLabels: {app: busy}}, policyTypes: [Egress]}"))
    policies_in_force(clean)
    pid = pid_of(clean, "agent-node-1")
    os.kill(pid, signal.SIGKILL)
    arguments = busy(clean, "busy", "node-1")
    assert arguments[3] == "0", arguments


def test_a_flushed_table_is_back(clean: Cluster) -> None:
    clean.apply(_DENY)
    policies_in_force(clean)
    assert not reaches(clean, "web", "db-1")
    in_node(clean, "node-1", "nft", "flush", "ruleset")
    eventually(lambda: not reaches(clean, "web", "db-1"), within=NOTICED_S)
