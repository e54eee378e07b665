"""``podwire why`` agrees with real connections, in both families and in each mode."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from tests.e2e.clusters import address_of, in_node, netns_of, own_name, run, running, server, topology
from tests.e2e.driver import Cluster, eventually, podwire, shell_pod

from podwire.cli.main import root
from podwire.kernel import netns

NAME = own_name("why")
CONFIG = """
nodes: 2
podCIDRs: [10.244.0.0/16, "fd44::/48"]
serviceCIDRs: [10.96.0.0/16, "fd96::/112"]
"""
SERVICES = """
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {tier: web}, ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: v1
kind: Service
metadata: {name: none}
spec: {type: NodePort, selector: {app: nobody}, ports: [{port: 80, nodePort: 30081}]}
---
apiVersion: v1
kind: Service
metadata: {name: alone}
spec: {selector: {app: on-1}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: inside}
spec: {internalTrafficPolicy: Local, selector: {tier: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: inside-far}
spec: {type: NodePort, internalTrafficPolicy: Local, selector: {app: on-2}, ports: [{port: 80, nodePort: 30082}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: NodePort, externalTrafficPolicy: Local, selector: {tier: web}, ports: [{port: 80, nodePort: 30083}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside-far}
spec: {type: NodePort, externalTrafficPolicy: Local, selector: {app: on-2}, ports: [{port: 80, nodePort: 30084}]}
---
apiVersion: v1
kind: Service
metadata: {name: guarded}
spec:
  type: LoadBalancer
  loadBalancerClass: example.com/hand
  loadBalancerSourceRanges: [198.51.100.0/24]
  externalIPs: [203.0.113.9]
  selector: {tier: web}
  ports: [{port: 80, nodePort: 30085}]
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec: {sessionAffinity: ClientIP, selector: {tier: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: hinted}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: leaving}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: left}
spec: {ports: [{port: 80}]}
"""
POLICIES = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shut}
spec:
  podSelector: {matchLabels: {app: shut}}
  policyTypes: [Ingress]
  ingress:
  - from:
    - podSelector: {matchLabels: {tier: web}}
    ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: shut}
spec: {type: NodePort, selector: {app: shut}, ports: [{port: 8080, targetPort: 80, nodePort: 30090}]}
"""
_SLICE = """
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: "", port: 80}]
endpoints:
"""
_ENDPOINT = "- {addresses: [%s], nodeName: %s, conditions: %s, hints: {forZones: [{name: %s}]}}\n"
READY, LEAVING = "{ready: true}", "{ready: false, serving: true, terminating: true}"
TRIES = 20
PATIENCE_S = 20.0
DROPPED_S = 0.3
"""How long it is waited for an answer to what is said to be dropped."""


class Row(NamedTuple):
    """A question, and the source of the connections to compare with: a pod, a node or this machine."""

    words: tuple[str, ...]
    place: str
    outcome: str


ROWS = [
    Row(("client", "svc/web"), "client", "forwarded"),
    Row(("client", "svc/web", "-6"), "client", "forwarded"),
    Row(("client", "web.default.svc.cluster.local", "81"), "client", "refused"),
    Row(("client", "node/node-1", "30080"), "client", "forwarded"),
    Row(("client", "node/node-2", "30080"), "client", "forwarded"),
    Row(("client", "node/node-2", "30080", "-6"), "client", "forwarded"),
    Row(("node/node-1", "svc/web"), "node-1", "forwarded"),
    Row(("node/node-1", "svc/web", "-6"), "node-1", "forwarded"),
    Row(("node/node-1", "node/node-1", "30080"), "node-1", "forwarded"),
    Row(("host", "node/node-1", "30080"), "host", "forwarded"),
    Row(("host", "node/node-2", "30080", "-6"), "host", "forwarded"),
    Row(("host", "node/node-2", "30999"), "host", "untouched"),
    Row(("client", "svc/none"), "client", "refused"),
    Row(("host", "node/node-1", "30081"), "host", "refused"),
    Row(("on-1", "svc/alone"), "on-1", "forwarded"),
    Row(("client", "svc/inside"), "client", "forwarded"),
    Row(("client", "svc/inside-far"), "client", "dropped"),
    Row(("node/node-1", "svc/inside-far"), "node-1", "dropped"),
    Row(("host", "node/node-1", "30082"), "host", "forwarded"),
    Row(("host", "node/node-1", "30083"), "host", "forwarded"),
    Row(("host", "node/node-1", "30084"), "host", "dropped"),
    Row(("client", "node/node-1", "30084"), "client", "forwarded"),
    Row(("node/node-1", "node/node-1", "30084"), "node-1", "forwarded"),
    Row(("client", "203.0.113.8:80"), "client", "dropped"),
    Row(("client", "203.0.113.9:80"), "client", "forwarded"),
    Row(("host", "node/node-1", "30085"), "host", "forwarded"),
    Row(("client", "svc/hinted"), "client", "forwarded"),
    Row(("client", "svc/leaving"), "client", "forwarded"),
    Row(("client", "svc/left"), "client", "forwarded"),
    Row(("client", "10.96.200.200:80"), "client", "dropped"),
]


class Seen(NamedTuple):
    """The results of connections: the pods that answered, the source they saw, or the failure."""

    pods: set[str]
    clients: set[str]
    failures: set[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = tmp_path_factory.mktemp("config") / "cluster.yaml"
    config.write_text(CONFIG)
    servers = "".join(server(f"on-{n}", f"node-{n}", f"app: on-{n}, tier: web") for n in (1, 2))
    servers += server("shut", "node-2") + f"---\n{POLICIES}"
    client = shell_pod("client", "sleep 3600").replace("spec:\n", "spec:\n  nodeName: node-1\n", 1)
    with running(NAME, "--config", str(config), stdin=f"{servers}{SERVICES}---{client}") as cluster:
        cluster.kubectl("label", "node", "node-1", "topology.kubernetes.io/zone=z1", "--overwrite")
        item, two = (address_of(cluster, f"on-{n}") for n in (1, 2))
        slices = _SLICE % ("hinted-1", "hinted")
        slices += _ENDPOINT % (item, "node-1", READY, "z1") + _ENDPOINT % (two, "node-2", READY, "z2")
        slices += _SLICE % ("leaving-1", "leaving")
        slices += _ENDPOINT % (item, "node-1", LEAVING, "z1") + _ENDPOINT % (two, "node-2", READY, "z2")
        slices += _SLICE % ("left-1", "left") + _ENDPOINT % (two, "node-2", LEAVING, "z2")
        cluster.apply(slices)
        status = json.dumps({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.8", "ipMode": "VIP"}]}}})
        cluster.kubectl("patch", "service", "guarded", "--subresource=status", "--type=merge", "-p", status)
        yield cluster


@pytest.fixture(scope="module", params=("nftables", "iptables"))
def mode(world: Cluster, request: pytest.FixtureRequest) -> str:
    """The mode, once it is in force."""
    expected = str(request.param)
    patch = json.dumps({"data": {"proxy.mode": expected}})
    world.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "-p", patch)

    def in_force() -> bool:
        nodes = world.get("nodes")["items"]
        return {node["metadata"]["annotations"].get("podwire.io/proxy") for node in nodes} == {expected}

    eventually(in_force)
    eventually(lambda: why("client", "203.0.113.8:80")["hops"][0].get("service"))
    return expected


def why(*arguments: str) -> dict[str, Any]:
    """The answer, computed in this process: a process for each question would take most of the time."""
    done = CliRunner().invoke(root, ["why", "--name", NAME, *arguments, "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


@cache
def place_of(world: Cluster, place: str) -> Path | None:
    if place == "host":
        return None
    return Path(topology(world).netns(place)) if place.startswith("node-") else netns_of(world, place)


def connect(place: Path | None, address: str, port: int, times: int, patience_s: float = PATIENCE_S) -> Seen:
    """The results of so many connections."""
    result = Seen(set(), set(), set())
    for _ in range(times):
        with netns.inside(place):
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        with sock:
            sock.settimeout(patience_s)
            try:
                sock.connect((address, port))
                sock.sendall(b"podwire-probe\n")
                output = json.loads(sock.makefile().readline())
            except TimeoutError:
                result.failures.add("dropped")
            except ConnectionRefusedError:
                result.failures.add("refused")
            else:
                result.pods.add(output["pod"])
                result.clients.add(output["client"])
    return result


def check(world: Cluster, row: Row, mode: str) -> None:
    output = why(*row.words)
    hop = output["hops"][-1]
    assert output["outcome"] == row.outcome, hop["message"]
    assert (hop["mode"], hop["state"]) == (mode, "held")
    assert "drift" not in hop
    target = output["to"]
    times = TRIES if row.outcome == "forwarded" else 1
    patience_s = DROPPED_S if row.outcome == "dropped" else PATIENCE_S
    observed = connect(place_of(world, row.place), target["address"], target["port"], times, patience_s)
    if row.outcome != "forwarded":
        # Nobody listens on the node itself, so what no Service takes is refused there.
        assert observed.failures == {"refused" if row.outcome == "untouched" else row.outcome}
        return
    used = [endpoint for endpoint in hop["endpoints"] if endpoint["used"]]
    assert not observed.failures
    assert observed.pods == {on(world, endpoint) for endpoint in used}
    if not row.place.startswith("node-"):
        masked = {endpoint["masqueraded"] for endpoint in used}
        assert {client != output["from"]["address"] for client in observed.clients} == masked


def on(world: Cluster, endpoint: dict[str, Any]) -> str:
    """The pod of an endpoint, also when its slice does not name it."""
    return next(n for n in ("on-1", "on-2") if endpoint["address"] in addresses(world, n))


@cache
def addresses(world: Cluster, pod: str) -> set[str]:
    return {address_of(world, pod, version) for version in (4, 6)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row.words))
def test_what_is_stated_is_what_connections_get(world: Cluster, mode: str, row: Row) -> None:
    check(world, row, mode)


NEAR = "nearest rule default/shut ingress[0]: podSelector tier=web, "
POLICED = [
    Row(("client", "pod/shut", "80"), "client", "dropped"),
    Row(("client", "pod/shut", "80", "-6"), "client", "dropped"),
    Row(("client", "svc/shut"), "client", "dropped"),
    Row(("on-1", "pod/shut", "80"), "on-1", "allowed"),
    Row(("on-1", "pod/shut", "80", "-6"), "on-1", "allowed"),
    Row(("on-1", "svc/shut"), "on-1", "allowed"),
    Row(("on-1", "pod/shut", "81"), "on-1", "dropped"),
    Row(("node/node-2", "svc/shut"), "node-2", "allowed"),
    Row(("node/node-1", "svc/shut"), "node-1", "dropped"),
    Row(("host", "node/node-1", "30090"), "host", "dropped"),
    Row(("host", "node/node-2", "30090"), "host", "dropped"),
    Row(("on-1", "node/node-1", "30090"), "on-1", "dropped"),
    Row(("on-1", "node/node-2", "30090"), "on-1", "allowed"),
    Row(("on-2", "node/node-2", "30090"), "on-2", "allowed"),
]


@pytest.mark.parametrize("row", POLICED, ids=lambda row: " ".join(row.words))
def test_policies_do_what_why_states(world: Cluster, row: Row) -> None:
    output = why(*row.words)
    (policy,) = output["policies"]
    assert policy["outcome"] == row.outcome, policy["message"]
    assert {node["state"] for node in policy["nodes"]} <= {"held"}
    assert not any(node.get("drifted") for node in policy["nodes"])
    target = output["to"]
    patience_s = DROPPED_S if row.outcome == "dropped" else PATIENCE_S
    observed = connect(place_of(world, row.place), target["address"], target["port"], 1, patience_s)
    if row.outcome == "allowed":
        assert observed.pods == {"shut"}
        return
    assert (output["outcome"], observed.failures) == ("dropped", {"dropped"})
    assert policy["ingress"]["isolatedBy"] == [{"policy": "default/shut"}]
    missed = policy["ingress"]["nearest"][0]["misses"]
    assert NEAR in policy["message"] or missed[0]["text"] == "ports TCP 80"
    (rule,) = [step for step in policy["nodes"][-1]["steps"] if " drop comment " in step["rule"]]
    assert rule["object"] == "no ingress rule for pods app=shut of default"


def test_lines_are_those_of_files(world: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "shut.yaml"
    file.write_text(POLICIES)
    done = run("why", "--name", NAME, "client", "pod/shut", "80", "--manifests", str(file))
    assert done.returncode == 0, done.stderr
    assert f"isolated by default/shut ({file}:5); nearest rule default/shut ingress[0] ({file}:8)" in done.stdout
    assert f"podSelector tier=web ({file}:9): the pod has no label tier" in done.stdout
    assert "differs from the cluster's object" not in done.stdout


def test_policy_rules_that_are_not_what_they_should_be(world: Cluster) -> None:
    process = agent_of("node-2")
    os.kill(process, signal.SIGSTOP)
    try:
        in_node(world, "node-2", "nft", "delete", "table", "ip", "podwire-policy")
        output = why("client", "pod/shut", "80")
        (policy,) = output["policies"]
        assert (output["outcome"], policy["outcome"]) == ("untouched", "allowed")
        assert policy["nodes"][-1]["drifted"]
        assert any(line["sign"] == "+" and "drop" in line["text"] for line in policy["nodes"][-1]["drift"])
        target = output["to"]
        assert connect(place_of(world, "client"), target["address"], target["port"], 1).pods == {"shut"}
    finally:
        os.kill(process, signal.SIGCONT)
    eventually(lambda: why("client", "pod/shut", "80")["outcome"] == "dropped")


def test_reasons_are_those_of_kubernetes(world: Cluster, mode: str) -> None:
    reasons = {
        "hinted": {"on-1": "HintedForZone", "on-2": "HintedForOtherZone"},
        "leaving": {"on-1": "Terminating", "on-2": "Ready"},
        "left": {"on-2": "TerminatingFallback"},
        "inside": {"on-1": "Ready", "on-2": "NotLocal"},
    }
    for name, expected in reasons.items():
        hop = why("client", f"svc/{name}")["hops"][0]
        assert {on(world, endpoint): endpoint["reason"] for endpoint in hop["endpoints"]} == expected
    assert why("client", "svc/none")["hops"][0]["reason"] == "NoEndpoints"
    assert why("client", "svc/inside-far")["hops"][0]["reason"] == "NoLocalEndpoint"
    assert why("client", "203.0.113.8:80")["hops"][0]["reason"] == "SourceRanges"


def test_a_client_that_is_remembered(world: Cluster, mode: str) -> None:
    before = why("node/node-2", "svc/sticky")["hops"][0]
    address = why("node/node-2", "svc/sticky")["to"]["address"]
    assert before["affinity"] == {"timeoutSeconds": 10800}
    assert {endpoint["probability"] for endpoint in before["endpoints"]} == {0.5}
    observed = connect(place_of(world, "node-2"), address, 80, 1)
    after = why("node/node-2", "svc/sticky")["hops"][0]
    assert after["affinity"]["entries"]
    assert {on(world, e) for e in after["endpoints"] if e["probability"] == 1} == observed.pods
    assert {e["reason"] for e in after["endpoints"] if not e["used"]} == {"Affinity"}
    assert connect(place_of(world, "node-2"), address, 80, TRIES).pods == observed.pods


def agent_of(node: str) -> int:
    """The process of a node's agent."""
    lines = run("status", "--name", NAME).stdout.splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"agent-{node} ")))


def test_rules_that_are_not_what_they_should_be(world: Cluster, mode: str) -> None:
    damage: tuple[str, ...]
    if mode != "nftables":
        damage = ("iptables", "-t", "nat", "-F", "KUBE-SERVICES")
    else:
        damage = ("nft", "flush", "map", "ip", "podwire-proxy", "services")
    process = agent_of("node-1")
    os.kill(process, signal.SIGSTOP)
    try:
        in_node(world, "node-1", *damage)
        output = why("client", "svc/alone")
        hop = output["hops"][0]
        assert (hop["outcome"], hop["reason"]) == ("refused", "Drift")
        assert any(line["sign"] == "+" and "default/alone" in line["text"] for line in hop["drift"])
        assert {endpoint["reason"] for endpoint in hop["endpoints"]} == {"Ready"}
        assert any("agent of node-1 does not answer" in note for note in output["notes"])
        observed = connect(place_of(world, "client"), output["to"]["address"], 80, 1)
        assert observed.failures == {"refused"}
        assert why("client", "svc/alone", "--planned")["outcome"] == "forwarded"
    finally:
        os.kill(process, signal.SIGCONT)
    eventually(lambda: why("client", "svc/alone")["outcome"] == "forwarded")


def test_a_udp_flow_that_keeps_its_endpoint(world: Cluster, mode: str) -> None:
    arguments = ("client", "svc/kube-system/kube-dns:dns")
    address = why(*arguments)["to"]["address"]
    with netns.inside(place_of(world, "client")):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.settimeout(20)
        sock.connect((address, 53))
        port = sock.getsockname()[1]
        sock.send(b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\3web\7default\3svc\7cluster\5local\0\0\1\0\1")
        assert sock.recv(512)[:2] == b"\x12\x34"
    hop = why(*arguments)["hops"][0]
    (flow,) = [text for text in hop["flows"] if text.startswith(f"from port {port} to ")]
    assert flow.split()[4] in {endpoint["address"] for endpoint in hop["endpoints"]}


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (("client", "svc/missing"), 2, "there is no Service missing"),
        (("nobody", "svc/web"), 2, "names no running pod"),
        (("client", "svc/web", "99999"), 2, "expected a number"),
        (("client", "svc/web:http"), 2, "has no port 'http'"),
        (("client", "svc/none", "-6"), 2, "do not both have an IPv6 address"),
        (("client", "node/node-9", "80"), 2, "there is no node 'node-9'"),
        (("client", "svc/web", "--kubeconfig", "/nowhere"), 2, "/nowhere: cannot be read"),
    ],
)
def test_invalid_arguments_are_reported(world: Cluster, arguments: tuple[str, ...], status: int, problem: str) -> None:
    named = () if "--kubeconfig" in arguments else ("--name", NAME)
    done = run("why", *named, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_an_api_nothing_is_explained(world: Cluster, tmp_path: Path) -> None:
    text = Path(world.kubeconfig).read_text()
    port = text.partition("https://127.0.0.1:")[2].split()[0]
    other = tmp_path / "config"
    other.write_text(text.replace(f"127.0.0.1:{port}", "127.0.0.1:1"))
    done = run("why", "client", "svc/web", "--kubeconfig", str(other), "--planned")
    assert (done.returncode, done.stdout) == (1, "")


def test_on_a_node_itself(world: Cluster, mode: str) -> None:
    config = Path(topology(world).node_run("node-1")) / "agent.yaml"
    command = [*podwire(), "why", "--config", str(config), "-o", "json"]
    hop = json.loads(in_node(world, "node-1", *command, "client", "svc/web"))["hops"][0]
    assert (hop["node"], hop["state"], hop["mode"], hop["outcome"]) == ("node-1", "held", mode, "forwarded")
    other = run("exec", "--name", NAME, "node-1", *command, "node/node-2", "svc/web")
    assert (other.returncode, other.stdout) == (1, "")
    assert "node node-2 decides, and this is node-1" in other.stderr


def test_invalid_settings_are_reported(world: Cluster, mode: str) -> None:
    def settings(value: str) -> None:
        patch = json.dumps({"data": {"proxy.masqueradeBit": value}})
        world.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "-p", patch)

    settings("many")
    try:
        output = why("client", "svc/web")
    finally:
        world.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "--type=json", "-p",
                      '[{"op": "remove", "path": "/data/proxy.masqueradeBit"}]')  # fmt: skip
    assert output["outcome"] == "forwarded"
    assert any("masqueradeBit" in note and "last good settings" in note for note in output["notes"])


def test_a_cluster_that_is_not_local_is_explained_by_plan(world: Cluster, mode: str, tmp_path: Path) -> None:
    other = tmp_path / "config"
    other.write_text(Path(world.kubeconfig).read_text().replace("//127.0.0.1:", "//localhost:"))
    refused = run("why", "client", "svc/web", "--kubeconfig", str(other))
    assert refused.returncode == 2
    assert "--planned" in refused.stderr
    done = run("why", "client", "svc/web", "--kubeconfig", str(other), "--planned", "-o", "json")
    assert done.returncode == 0, done.stderr
    hop = json.loads(done.stdout)["hops"][0]
    assert (hop["outcome"], hop["state"], hop["mode"]) == ("forwarded", "planned", mode)
