"""The agent with only the policy component, on a node whose pods are wired by the containernetworking plugins.

Once with podwire-cni as the last plugin of the list, so that no packet of a pod is ever without its policies, and once
without, where pods are found by their addresses.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.cni_node import ping
from tests.kernel.reference_plugins import BRIDGE, PLUGINS

from podwire.cni import program
from podwire.kernel import netns
from podwire.kernel.nft import Nft
from podwire.kube.resources import EVENTS, NETWORKPOLICIES, NODES, PODS

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not shutil.which("bridge", path=PLUGINS), reason="needs containernetworking-plugins"),
]

CALLS = "net.bridge.bridge-nf-call-iptables"
KNOCK = """
import socket, sys, time
while True:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", (sys.argv[1], 9))
    except OSError:
        pass
    time.sleep(0.0005)
"""


def deny(name: str, kind: str) -> dict[str, Any]:
    """A policy that isolates the pods named ``name`` in one direction."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"deny-{name}-{kind.lower()}", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"app": name}}, "policyTypes": [kind]},
    }


class Runtime:
    """Runs a list of plugins as a container runtime does."""

    def __init__(self, machine: Machine, *, chained: bool, kind: str = "bridge", version: str = "1.0.0") -> None:
        self.version = version
        self.machine = machine
        self.results: dict[str, dict[str, Any]] = {}
        span = {"bridge": ("10.244.1.2", "10.244.1.99"), "ptp": ("10.244.1.100", "10.244.1.199")}[kind]
        pools = [[{"subnet": "10.244.1.0/24", "rangeStart": span[0], "rangeEnd": span[1]}]]
        ipam = {"type": "host-local", "ranges": pools, "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"bridge": BRIDGE, "isGateway": True, "hairpinMode": True} if kind == "bridge" else {}
        directory = {"dataDir": str(machine.root / kind)}
        self.plugins: list[dict[str, Any]] = [{"type": kind, "ipMasq": True, "ipam": ipam | directory} | bridge]
        if chained:
            self.plugins += [
                {"type": "portmap", "capabilities": {"portMappings": True}},
                {"type": "firewall", "backend": "iptables"},
                {"type": "podwire-cni", "policy": True},
            ]

    def place(self, name: str) -> Path:
        """The pod's namespace."""
        place = self.machine.root / "pods" / name
        if not place.exists():
            netns.create(place)
        return place

    def _run(self, command: str, name: str, conf: dict[str, Any]) -> tuple[int, str]:
        own = conf["type"] == "podwire-cni"
        done = subprocess.run(
            [
                "nsenter",
                f"--net={self.machine.root}/node-1",
                str(program.path() if own else f"{PLUGINS}/{conf['type']}"),
            ],
            env={
                "CNI_COMMAND": command,
                "CNI_CONTAINERID": f"c-{name}",
                "CNI_NETNS": str(self.place(name)),
                "CNI_IFNAME": "eth0",
                "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}",
                "CNI_PATH": PLUGINS,
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "PODWIRE_CNI_SOCKET": str(self.machine.root / "node-1-run" / "cni.sock"),
            },
            input=json.dumps({"cniVersion": self.version, "name": "other"} | conf),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def add(self, name: str, host_port: int = 0) -> tuple[int, dict[str, Any]]:
        """Exit status and answer of the last plugin."""
        result: dict[str, Any] = {}
        status = 0
        mapping = [{"hostPort": host_port, "containerPort": 9, "protocol": "udp"}] if host_port else []
        for conf in self.plugins:
            more = {"prevResult": result} if result else {}
            status, answer = self._run("ADD", name, conf | more | {"runtimeConfig": {"portMappings": mapping}})
            before, result = result, json.loads(answer)
            if status:
                break
            if conf["type"] == "podwire-cni":
                assert result == before, "it answers what it got"
        self.results[name] = result
        return status, result

    def verb(self, command: str, name: str, **more: Any) -> tuple[int, str]:
        """Runs only podwire-cni."""
        return self._run(command, name, self.plugins[-1] | more)

    def delete(self, name: str) -> None:
        """Runs DEL for all plugins, the last one first."""
        for conf in reversed(self.plugins):
            status, answer = self._run("DEL", name, conf | {"prevResult": self.results[name]})
            assert status == 0, answer


@pytest.fixture
def machine(machine: Machine) -> Machine:
    """A cluster with one ready node that only enforces policies."""
    machine.add_node(1, ("policy",))
    for setting in ("net.ipv4.ip_forward=1", f"{CALLS}=1"):
        inside(machine.root / "node-1", "sysctl", "-qw", setting)
    eventually(lambda: machine.ready("node-1"))
    return machine


def pod(machine: Machine, name: str, address: str = "") -> None:
    """A Pod object on the node; with an address when it has one already."""
    spec = {"nodeName": "node-1", "containers": [{"name": "c", "image": "x"}]}
    meta = {"name": name, "namespace": "default", "labels": {"app": name}}
    machine.api("create", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "default")
    if address:
        runs(machine, name, address)


def runs(machine: Machine, name: str, address: str, phase: str = "Running") -> None:
    """The status that kubelet reports for a pod that has its network."""
    status = {"phase": phase, "podIP": address, "podIPs": [{"ip": address}]}
    machine.api("patch", PODS, name, {"status": status}, "default", subresource="status")


def address_of(result: dict[str, Any]) -> str:
    return str(result["ips"][0]["address"].partition("/")[0])


def received(machine: Machine, name: str) -> int:
    """The number of datagrams that reached a pod's kernel."""
    arguments = inside(machine.root / "pods" / name, "cat", "/proc/net/snmp").splitlines()
    names, values = (line.split() for line in arguments if line.startswith("Udp:"))
    return int(dict(zip(names, values, strict=True))["NoPorts"])


def table(machine: Machine, family: str = "ip") -> str:
    """The rules without their counters."""
    return inside(machine.root / "node-1", "nft", "--stateless", "list", "table", family, "podwire-policy")


def knock(machine: Machine, name: str, address: str) -> "subprocess.Popen[bytes]":
    """A process in the pod's namespace that sends again and again, from before the pod has a device."""
    place = machine.root / "pods" / name
    return subprocess.Popen(["nsenter", f"--net={place}", sys.executable, "-c", KNOCK, address])


@pytest.mark.slow
def test_no_packet_is_without_policies_behind_another_plugin(machine: Machine) -> None:
    runtime = Runtime(machine, chained=True)
    assert runtime.verb("STATUS", "a", cniVersion="1.1.0") == (0, "")
    for item in (deny("a", "Ingress"), deny("c", "Egress")):
        machine.api("create", NETWORKPOLICIES, item, "default")
    for name in ("a", "b", "c"):
        pod(machine, name)
    status, answer = runtime.add("a", host_port=8009)
    assert status == 0, answer
    target = address_of(answer)
    assert "goto in-" in table(machine)
    clients = []
    try:
        for name in ("b", "c"):
            runtime.place(name)
            clients.append(knock(machine, name, target))
        for name in ("b", "c"):
            assert runtime.add(name)[0] == 0
        restart(machine)
        assert received(machine, "a") == 0
        eventually(lambda: not machine.drift("node-1"))
        knock_once(machine)
        assert received(machine, "a") == 0
        machine.api("delete", NETWORKPOLICIES, "deny-a-ingress", "default")
        eventually(lambda: received(machine, "a"))
        clients[0].kill()
        clients[0].wait()
        before = eventually(lambda: settled(machine))
        assert received(machine, "a") == before, "firewall lets out what policies do not"
        knock_once(machine)
        assert eventually(lambda: received(machine, "a") - before) == 1, "by the port of the node"
    finally:
        for client in clients:
            client.kill()
            client.wait()
    remaining = {"prevResult": answer}
    assert runtime.verb("CHECK", "a", **remaining) == (0, "")
    rest = [{"containerID": f"c-{name}", "ifname": "eth0"} for name in ("a", "c")]
    assert runtime.verb("GC", "a", cniVersion="1.1.0", **{"cni.dev/valid-attachments": rest}) == (0, "")
    assert json.loads(runtime.verb("CHECK", "b", **remaining)[1])["code"] == 3
    runtime.delete("a")
    eventually(lambda: target not in table(machine) + table(machine, "bridge"))


def test_pending_changes_keep_a_node_ready_for_pods(machine: Machine) -> None:
    runtime = Runtime(machine, chained=True)

    def write() -> None:
        for number in range(15):
            machine.api("create", NETWORKPOLICIES, deny(str(number), "Ingress"), "default")

    writing = threading.Thread(target=write)
    writing.start()
    answers = []
    while writing.is_alive():
        answers.append((runtime.verb("STATUS", "a", cniVersion="1.1.0"), machine.ready("node-1")))
    writing.join()
    assert answers
    assert set(answers) == {((0, ""), True)}


def restart(machine: Machine) -> None:
    """Kills the agent and starts it again; asserts that it finds the desired state and writes nothing."""
    machine.kill("node-1")
    with Nft(machine.root / "node-1") as nft:
        held = nft.generation()
        machine.start_agent("node-1")
        eventually(lambda: machine.ready("node-1"))
        assert nft.generation() == held


def knock_once(machine: Machine) -> None:
    """Sends from outside to the node's port that portmap forwards to the pod."""
    with netns.inside(machine.fabric), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", ("10.89.0.11", 8009))


def settled(machine: Machine) -> int:
    """The number of datagrams, once no more come; 0 until then."""
    before = received(machine, "a")
    subprocess.run(["sleep", "0.3"], check=True)
    return before if received(machine, "a") == before else 0


@pytest.mark.slow
def test_pods_are_found_and_hidden_bridge_traffic_is_reported(machine: Machine) -> None:
    runtime = Runtime(machine, chained=False)
    node = machine.root / "node-1"
    machine.api("create", NETWORKPOLICIES, deny("a", "Ingress"), "default")
    addresses = {}
    for name, way in (
        ("a", runtime),
        ("b", runtime),
        ("c", runtime),
        ("d", Runtime(machine, chained=False, kind="ptp")),
    ):
        status, answer = way.add(name)
        assert status == 0, answer
        addresses[name] = address_of(answer)
        pod(machine, name)
    client = knock(machine, "b", addresses["c"])
    try:
        for name in ("a", "c", "d"):
            runs(machine, name, addresses[name])
        eventually(lambda: addresses["c"] in table(machine))
        assert received(machine, "c") == 0, "b is not known yet, and is shut off"
        runs(machine, "b", addresses["b"])
        eventually(lambda: received(machine, "c"))
    finally:
        client.kill()
        client.wait()
    assert "goto in-" in table(machine)
    wire = json.loads(inside(node, "ip", "-j", "route", "get", addresses["d"]))[0]["dev"]
    assert f'"{wire}" . {addresses["d"]} : accept' in table(machine), "a device of its own"
    restart(machine)
    pod(machine, "ghost", "10.244.1.250")
    inside(node, "sysctl", "-qw", f"{CALLS}=0")
    isolated = "pods that policies select are isolated from the bridge's other pods"
    reported = f"policy: {BRIDGE}: bridge-nf-call-iptables is 0; {isolated}"
    eventually(lambda: reported in str(machine.api("get", NODES, "node-1")["metadata"].get("annotations")))
    eventually(lambda: reported in str(machine.api("list", EVENTS)))
    lost = "policy: no device of default/ghost is known"
    eventually(lambda: lost in str(machine.api("get", NODES, "node-1")["metadata"].get("annotations")))
    assert f'"{port_of(machine, addresses["a"])}"' in inside(
        node, "nft", "list", "set", "bridge", "podwire-policy", "shut4"
    )
    (output,) = why(machine, "a", "b")["policies"]
    assert output["egress"]["allowed"] and output["ingress"]["allowed"]
    shut = f"isolated from the other pods of their bridge: {CALLS.rpartition('.')[2]} is 0"
    assert (output["outcome"], shut in output["message"]) == ("dropped", True), output["message"]
    assert output["nodes"][0]["steps"][-1]["where"] == "forward: bridge podwire-policy forward"
    assert why(machine, "b", "c")["policies"][0]["outcome"] == "allowed"
    inside(node, "sysctl", "-qw", f"{CALLS}=1")
    eventually(lambda: reported not in str(machine.api("get", NODES, "node-1")["metadata"].get("annotations")))
    runs(machine, "b", addresses["b"], "Succeeded")
    eventually(lambda: addresses["b"] not in table(machine))


def why(machine: Machine, source: str, target: str) -> dict[str, Any]:
    """The output of `podwire why` on the node."""
    arguments = ("why", f"default/{source}", f"default/{target}", "9/UDP", "-o", "json")
    command = (sys.executable, "-m", "podwire.cli.main", *arguments, "--config", str(machine.root / "node-1.yaml"))
    return dict(json.loads(inside(machine.root / "node-1", *command)))


def port_of(machine: Machine, address: str) -> str:
    """The bridge's port of a pod."""
    elements = inside(machine.root / "node-1", "nft", "list", "set", "bridge", "podwire-policy", "own4")
    return next(part.split('"')[1] for part in elements.split(",") if f". {address}" in part)


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
def test_pods_without_policies_communicate_behind_ptp(machine: Machine, version: str) -> None:
    runtime = Runtime(machine, chained=True, kind="ptp", version=version)
    addresses = {}
    for name in ("a", "b"):
        pod(machine, name)
        status, answer = runtime.add(name)
        assert status == 0, answer
        addresses[name] = address_of(answer)
    for _ in range(2):
        for name, target in (("a", addresses["b"]), ("b", addresses["a"]), ("a", "10.89.0.11"), ("b", "10.89.0.1")):
            assert ping(machine.root / "pods" / name, target, patience_s=5), (name, target)
        assert ping(machine.root / "node-1", addresses["a"], patience_s=10)
        restart(machine)
    for name in ("a", "b"):
        remaining = {"prevResult": runtime.results[name]}
        assert runtime.verb("CHECK", name, **remaining) == (0, "")
        runtime.delete(name)
