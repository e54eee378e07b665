"""The agent replaces kube-proxy, whose rules are in force, and no connection fails.

The rules are those that kube-proxy 1.36 writes in its modes iptables and nftables for one Service with two endpoints.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.kube_proxy_rules import IPTABLES, NFTABLES

from podwire.kernel import netns
from podwire.kube.resources import ENDPOINTSLICES, SERVICECIDRS, SERVICES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

NODE = "10.89.0.11"
PODS = ("10.244.1.2", "10.244.1.3")
FOREIGN = (
    "*filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A KUBE-FIREWALL -s 198.51.100.7/32 -j DROP\nCOMMIT\n"
)
CONFIGURATION = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: {kubeconfig}}}
clusterCIDR: 10.244.0.0/16
hostnameOverride: node-1
mode: {mode}
"""
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "type": "NodePort",
        "clusterIP": "10.96.0.10",
        "ports": [{"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080}],
    },
}
SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "http", "port": 8080}],
    "endpoints": [{"addresses": [address], "nodeName": "node-1"} for address in PODS],
}
ECHO = """
import asyncio
async def serve(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "", 8080)
    print("up", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


class Node(Machine):
    """One node with two pods behind a bridge, kube-proxy's rules, and an outside host with a route to the node."""

    def prepare(self) -> None:
        self.add_node(1, ("proxy",), start=False)
        inside(self.root / "node-1", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for number, address in enumerate(PODS):
            self._add_pod(number, address)
        inside(self.fabric, "ip", "route", "add", "10.96.0.0/16", "via", NODE)
        inside(self.fabric, "ip", "route", "add", "10.244.1.0/24", "via", NODE)
        self.api("create", SERVICES, SERVICE, "default")
        self.api("create", ENDPOINTSLICES, SLICE, "default")

    def _add_pod(self, number: int, address: str) -> None:
        place = self.root / "pods" / str(number)
        netns.create(place)
        node = self.root / "node-1"
        inside(node, "ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", str(place))
        inside(node, "ip", "link", "set", f"v{number}", "address", f"02:00:00:00:01:0{number}", "up")
        inside(node, "ip", "route", "add", address, "dev", f"v{number}")
        for command in (
            "ip link set lo up",
            f"ip address add {address}/32 dev eth0",
            "ip link set eth0 up",
            "ip route add 169.254.1.1 dev eth0",
            "ip route add default via 169.254.1.1 dev eth0",
            f"ip neigh add 169.254.1.1 lladdr 02:00:00:00:01:0{number} dev eth0",
        ):
            inside(place, *command.split())
        server = subprocess.Popen(
            ["nsenter", f"--net={place}", sys.executable, "-c", ECHO], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.processes[f"pod {number}"] = server
        with server.stdout as out:  # type: ignore[union-attr]
            assert out.readline()

    def feed(self, text: str, *command: str) -> None:
        subprocess.run(["nsenter", f"--net={self.root}/node-1", *command], input=text.encode(), check=True)

    def replace_kube_proxy(self, mode: str) -> None:
        """Starts the agent with the configuration file of kube-proxy, in a separate /run."""
        file = self.root / "kube-proxy.yaml"
        file.write_text(CONFIGURATION.format(kubeconfig=self.kubeconfig, mode=mode))
        (self.root / "run").mkdir()
        own_run = f"mkdir -p /run/podwire && mount --bind {self.root}/run /run/podwire"
        script = f"{own_run} && exec {sys.executable} -m podwire.cli.main agent --kube-proxy-config {file}"
        with (self.root / "agent.log").open("ab") as log:
            self.processes["agent"] = subprocess.Popen(
                ["nsenter", f"--net={self.root}/node-1", "unshare", "--mount", "sh", "-c", script],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip


class Client(threading.Thread):
    """Connects to one address after another until it is stopped."""

    def __init__(self, place: Path, address: str, port: int) -> None:
        super().__init__(daemon=True)
        self.place, self.target = place, (address, port)
        self.connections, self.problems = 0, list[str]()
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            with netns.inside(self.place):
                item = socket.socket()
            with item:
                item.settimeout(20)
                try:
                    item.connect(self.target)
                    item.sendall(b"x")
                    assert item.recv(1) == b"x"
                except OSError as problem:
                    self.problems.append(f"{self.target}: {problem}")
            self.connections += 1
            time.sleep(0.005)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    created = Node(tmp_path)
    try:
        created.prepare()
        yield created
    finally:
        created.close()
        for log in tmp_path.glob("*.log"):
            print(log.name, log.read_text()[-3000:])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nftables", "iptables"])
@pytest.mark.parametrize("was", ["nftables", "iptables-nft", "iptables-legacy"])
def test_no_connection_fails_while_the_agent_takes_over(node: Node, was: str, mode: str) -> None:
    place = node.root / "node-1"
    kind = "iptables-nft" if was == "nftables" else was
    node.feed(FOREIGN, f"{kind}-restore", "--noflush")
    if was == "nftables":
        node.feed(NFTABLES, "nft", "-f", "-")
    else:
        node.feed(IPTABLES, f"{kind}-restore", "--noflush")

    def saved() -> str:
        return inside(place, f"{kind}-save")

    clients = [
        Client(node.fabric, "10.96.0.10", 80),
        Client(node.fabric, NODE, 30080),
        Client(node.root / "pods/0", "10.96.0.10", 80),
        Client(place, "10.96.0.10", 80),
    ]
    with netns.inside(node.fabric):
        lasting = socket.create_connection((NODE, 30080), 60)
    for client in clients:
        client.start()
    try:
        eventually(lambda: all(client.connections > 20 for client in clients))
        node.replace_kube_proxy(mode)
        if mode == "nftables":
            eventually(lambda: "podwire-proxy" in inside(place, "nft", "list", "tables"), 60)
            eventually(lambda: "KUBE-SVC" not in saved(), 60)
        else:
            # The comments are the agent's, the names of the chains are kube-proxy's.
            eventually(lambda: "default/web:http" in saved(), 60)
        eventually(lambda: "table ip kube-proxy" not in inside(place, "nft", "list", "tables"), 60)
        before = [client.connections for client in clients]
        eventually(
            lambda: all(client.connections > past + 100 for client, past in zip(clients, before, strict=True)), 60
        )
        lasting.sendall(b"y")
        assert lasting.recv(1) == b"y"
    finally:
        for client in clients:
            client.stopping = True
        for client in clients:
            client.join()
        lasting.close()
    assert [client.problems for client in clients] == [[], [], [], []]
    remaining = inside(place, kind, "-S", "KUBE-FIREWALL").splitlines()
    assert remaining == ["-N KUBE-FIREWALL", "-A KUBE-FIREWALL -s 198.51.100.7/32 -j DROP"]
    eventually(lambda: not node.drift_at(node.root / "run/agent.sock", "node-1"))


@pytest.mark.slow
def test_unallocated_addresses_follow_the_cluster_s_ranges(node: Node) -> None:
    """Without ``serviceCIDRs`` in the configuration, the ServiceCIDR objects of the API give the ranges."""
    node.replace_kube_proxy("nftables")
    place = node.root / "node-1"

    def table() -> str:
        return inside(place, "nft", "list", "table", "ip", "podwire-proxy")

    eventually(lambda: "10.96.0.0/16" in table(), 60)
    assert "10.112.0.0/16" not in table()
    more = {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
            "spec": {"cidrs": ["10.112.0.0/16"]}}  # fmt: skip
    node.api("create", SERVICECIDRS, more)
    eventually(lambda: "10.112.0.0/16" in table())
    assert "10.96.0.0/16" in table()
