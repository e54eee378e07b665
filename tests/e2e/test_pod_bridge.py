"""A cluster whose pods are ports of a bridge on each node: Services, policies, killed agents, what commands show."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import (
    address_of,
    done,
    drift,
    flows,
    in_node,
    netns_of,
    own_name,
    policies_in_force,
    running,
    server,
    topology,
)
from tests.e2e.driver import Cluster, eventually
from tests.e2e.test_policy_on_bridges import output_of_busy_pod

from podwire.kernel import netns

NAME = own_name("podbridge")
CONFIG = """
nodes: 2
podLink: bridge
podCIDRs: [10.244.0.0/16, "fd44::/48"]
serviceCIDRs: [10.96.0.0/16, "fd96::/112"]
"""
DEVICE = "podwire-pods"
CALLS = ("net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables")
PODS = {"one": "node-1", "two": "node-1", "three": "node-2"}
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: two}
spec: {selector: {app: two}, ipFamilyPolicy: RequireDualStack, ports: [{port: 8080, targetPort: 80}]}
"""
DENY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec:
  podSelector: {matchLabels: {app: two}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: three}}}]}]
"""
QUIET = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: quiet}
spec: {podSelector: {matchLabels: {app: busy}}, policyTypes: [Egress]}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    file = tmp_path_factory.mktemp("config") / "cluster.yaml"
    file.write_text(CONFIG)
    manifest = "".join(server(pod, node) for pod, node in PODS.items()) + SERVICE
    with running(NAME, "--config", str(file), stdin=manifest) as created:
        created.ready(*PODS)
        yield created


@pytest.fixture(params=["0", "1"], ids=["without br_netfilter", "with br_netfilter"])
def netfilter(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Whether netfilter sees the packets between ports of bridges."""
    value = str(request.param)
    for node in ("node-1", "node-2"):
        in_node(cluster, node, "sysctl", "-qw", *(f"{call}={value}" for call in CALLS))
    return value


def reaches(cluster: Cluster, source: str, address: str, port: int = 80, patience_s: float = 20.0) -> bool:
    """Whether a pod connects in time."""
    with netns.inside(netns_of(cluster, source)):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with sock:
        sock.settimeout(patience_s)
        return sock.connect_ex((address, port)) == 0


def why(cluster: Cluster, source: str, target: str) -> dict[str, Any]:
    """The answer of ``podwire why`` for a connection between two pods."""
    arguments = (f"default/{source}", f"default/{target}", "80")
    return dict(json.loads(done("why", *arguments, "--name", cluster.name, "-o", "json"))["policies"][0])


def kill_agent(cluster: Cluster, node: str) -> None:
    """Kills an agent, and waits until another one is there."""
    record = Path(topology(cluster).run) / "processes" / f"agent-{node}.json"
    pid = int(json.loads(record.read_text())["pid"])
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: int(json.loads(record.read_text())["pid"]) != pid)


def test_pods_reach_pods_and_services_of_both_families(cluster: Cluster, netfilter: str) -> None:
    links = json.loads(in_node(cluster, "node-1", "ip", "-j", "link", "show", "master", DEVICE))
    assert len(links) >= 2, netfilter
    for version in (4, 6):
        for source in PODS:
            for target in PODS:
                if source != target:
                    assert reaches(cluster, source, address_of(cluster, target, version)), (source, target)
    for address in cluster.get("service", "two")["spec"]["clusterIPs"]:
        for source in PODS:
            assert eventually(lambda s=source, a=address: reaches(cluster, s, a, 8080, 1)), (source, address)


def test_policies_hold_between_ports_of_one_bridge(cluster: Cluster, netfilter: str) -> None:
    two = [address_of(cluster, "two", version) for version in (4, 6)]
    cluster.apply(DENY)
    policies_in_force(cluster)
    for address in two:
        eventually(lambda address=address: not reaches(cluster, "one", address, patience_s=0.3))
        assert reaches(cluster, "three", address)
    assert reaches(cluster, "two", address_of(cluster, "one")), "replies pass"
    explained = why(cluster, "one", "two")
    assert (explained["outcome"], explained["nodes"][0]["outcome"]) == ("dropped", "dropped")
    assert "drifted" not in explained["nodes"][0]
    past_the_node(cluster, two[0], netfilter)
    cluster.kubectl("delete", "networkpolicy", "deny")
    for address in two:
        eventually(lambda address=address: reaches(cluster, "one", address, patience_s=0.3))
    assert why(cluster, "one", "two")["outcome"] == "allowed"


def past_the_node(cluster: Cluster, address: str, netfilter: str) -> None:
    """A pod that sends frames right to another pod's hardware address does not get past the policies."""
    (shown,) = json.loads(in_pod(cluster, "two", "ip", "-j", "link", "show", "eth0"))
    for command in (
        f"ip route add {address}/32 dev eth0",
        f"ip neigh replace {address} lladdr {shown['address']} dev eth0 nud permanent",
    ):
        in_pod(cluster, "one", *command.split())
    try:
        assert not reaches(cluster, "one", address, patience_s=0.5), netfilter
    finally:
        in_pod(cluster, "one", "ip", "route", "del", f"{address}/32", "dev", "eth0")
        in_pod(cluster, "one", "ip", "neigh", "del", address, "dev", "eth0")


def in_pod(cluster: Cluster, pod: str, *command: str) -> str:
    """The output of a command in a pod's network namespace."""
    arguments = ["nsenter", f"--net={netns_of(cluster, pod)}", "--", *command]
    finished = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_pod_on_the_bridge_never_sends_what_its_policy_denies(cluster: Cluster, netfilter: str) -> None:
    cluster.apply(QUIET)
    policies_in_force(cluster)
    assert output_of_busy_pod(cluster, "one")[3] == "0", netfilter
    cluster.kubectl("delete", "pod/busy", "networkpolicy/quiet", "--grace-period=0", "--force")


def test_killed_agents_lose_no_packet_of_bridged_pods(cluster: Cluster) -> None:
    with flows(cluster, [("one", "two"), ("one", "three"), ("three", "two")]) as traffic:
        for node in ("node-1", "node-2"):
            kill_agent(cluster, node)
            for flow in traffic:
                flow.go_on(20)
        assert [flow.problems for flow in traffic] == [[], [], []]


def test_nothing_differs_and_no_degraded_mode_is_shown(cluster: Cluster) -> None:
    for node in ("node-1", "node-2"):
        eventually(lambda node=node: not drift(cluster, node))
        annotations = cluster.get("node", node)["metadata"].get("annotations", {})
        assert not annotations.get("podwire.io/fallback"), annotations
        state = done("state", node, "--part", "cni", "--name", NAME)
        assert f"link {DEVICE} " in state and f"master {DEVICE} hairpin locked" in state
