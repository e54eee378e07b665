"""The DNS server of a node at the address of the Service, in front of a foreign server: dnsmasq behind a Service.

The foreign server answers with a TTL of 33 s, the node's with 5 s, so a reply shows who has answered.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.test_agent_policy import add, pod

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.dns.wire import DnsMessage
from podwire.kernel import netns
from podwire.kube.resources import ENDPOINTSLICES, NETWORKPOLICIES, NODES, SERVICES

SERVER, WEB = "10.96.0.10", "web.default.svc.cluster.local"
NODE_TTL, CLUSTER_TTL = 5, 33
DENY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "restrict", "namespace": "default"},
    "spec": {"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"], "egress": [{}]},
}


class Node:
    """A node with the pods ``a`` and ``b``; the foreign server runs in ``b``."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.netns = machine.root / "node-1"
        self.pod = machine.root / "pods" / "a"
        self._foreign: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def build(self) -> None:
        machine = self.machine
        machine.add_node(1, ("cni", "routing", "policy", "proxy"), start=False)
        path = machine.root / "node-1.yaml"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"dns": {"nodeLocal": True}}))
        machine.start_agent("node-1")
        eventually(lambda: machine.ready("node-1"))
        for name in ("a", "b"):
            pod(machine, name)
            status, answer = add(machine, name)
            assert status == 0, answer
        replica = answer["ips"][0]["address"].partition("/")[0]
        ports = [{"name": name, "port": 53, "protocol": name.upper()} for name in ("udp", "tcp")]
        self._create_service("kube-system", "kube-dns", SERVER, ports)
        self._create_service("default", "web", "10.96.0.77", ports)
        labels = {"kubernetes.io/service-name": "kube-dns"}
        machine.api(
            "create",
            ENDPOINTSLICES,
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": "kube-dns-1", "namespace": "kube-system", "labels": labels},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [replica], "conditions": {"ready": True}}],
                "ports": ports,
            },
            "kube-system",
        )
        command = ["dnsmasq", "--no-daemon", "--no-resolv", "--no-hosts", f"--local-ttl={CLUSTER_TTL}", "--conf-file="]
        command += [f"--host-record={WEB},10.96.0.77,{CLUSTER_TTL}", "--pid-file=", "--user=root"]
        place = machine.root / "pods" / "b"
        self._foreign = subprocess.Popen(["nsenter", f"--net={place}", *command], stderr=subprocess.DEVNULL)
        eventually(lambda: ttl(self.ask(0.3)) == CLUSTER_TTL)
        eventually(lambda: self.rules("queries"))

    def _create_service(self, namespace: str, name: str, address: str, ports: list[dict[str, Any]]) -> None:
        meta = {"name": name, "namespace": namespace}
        body = {"apiVersion": "v1", "kind": "Service", "metadata": meta}
        self.machine.api("create", SERVICES, body | {"spec": {"clusterIP": address, "ports": ports}}, namespace)

    def rules(self, chain: str) -> str:
        return inside(self.netns, "nft", "list", "chain", "ip", "podwire-dns", chain)

    def clients(self) -> str:
        return inside(self.netns, "nft", "list", "set", "ip", "podwire-dns", "clients")

    def counted(self, protocol: str) -> float:
        """The metric of what the rules led to the node's server."""
        with netns.inside(self.netns), urlopen("http://127.0.0.1:9440/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        (line,) = (line for line in lines if line.startswith(f'podwire_dns_node_local_total{{protocol="{protocol}"}}'))
        return float(line.rpartition(" ")[2])

    def serve(self) -> None:
        """Starts the node's server; returns when it takes the queries."""
        config = self.machine.root / "dns.yaml"
        config.write_text("healthPort: 0\nreadyPort: 0\nmetricsPort: 0\nresolvConf: /nonexistent\n")
        command = [sys.executable, "-m", "podwire.cli.main", "dns", "--config", str(config), "--node-local", SERVER]
        with (self.machine.root / "dns.log").open("ab") as log:
            self._server = subprocess.Popen(
                ["nsenter", f"--net={self.netns}", *command, "--kubeconfig", str(self.machine.kubeconfig)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        eventually(lambda: ttl(self.ask()) == NODE_TTL)

    def keeper(self) -> int:
        assert self._server is not None
        return self._server.pid

    def kill_worker(self) -> None:
        """Kills the process that answers, and returns when the next one has taken its place."""
        victim = eventually(lambda: children(self.keeper()))[0]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: [child for child in children(self.keeper()) if child != victim])

    def end_server(self, number: signal.Signals) -> None:
        assert self._server is not None
        self._server.send_signal(number)
        self._server.wait()
        eventually(lambda: ttl(self.ask()) == CLUSTER_TTL)

    def client(self, kind: socket.SocketKind = socket.SOCK_DGRAM, port: int = 0) -> socket.socket:
        with netns.inside(self.pod):
            link = socket.socket(type=kind)
        if port:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            link.bind(("0.0.0.0", port))
        link.settimeout(10)
        link.connect((SERVER, 53))
        return link

    def ask(self, timeout_s: float = 10.0) -> DnsMessage | None:
        with self.client() as link:
            link.settimeout(timeout_s)
            link.send(query(7))
            try:
                return wire.parse_message(link.recv(512))
            except OSError:
                return None

    def close(self) -> None:
        for process in (self._server, self._foreign):
            if process is not None:
                process.kill()
                process.wait()


def children(parent: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def query(number: int) -> bytes:
    return wire.encode(DnsMessage(number, wire.RD, encode_name(WEB), wire.A))


def ttl(reply: DnsMessage | None) -> int:
    return reply.answer[0].ttl if reply is not None and reply.answer else -1


def tracked(place: Path) -> list[str]:
    """The connections of the node that have port 53."""
    with netns.inside(place):
        lines = Path("/proc/thread-self/net/nf_conntrack").read_text().splitlines()
    return [line for line in lines if "dport=53 " in line]


class Asker:
    """Asks without pause and without repetition, 20 queries at a time, half of them from ports of their own."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.ttls: dict[int, int] = {}
        self.asked = 0
        self.failures: list[str] = []

    def __enter__(self) -> "Asker":
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()
        print(f"asked {self.asked}", self.ttls, *self.failures)

    def _run(self) -> None:
        with self._node.client() as lasting:
            while not self._over.is_set():
                with contextlib.ExitStack() as stack:
                    links = [lasting] * 10 + [stack.enter_context(self._node.client()) for _ in range(10)]
                    for number, link in enumerate(links):
                        self._send(link, query(number))
                    for link in links:
                        self._receive(link)

    def _send(self, link: socket.socket, data: bytes) -> None:
        self.asked += 1
        try:
            link.send(data)
        except OSError as failure:
            self.failures.append(f"query {self.asked} was refused: {failure}")
            link.send(data)

    def _receive(self, link: socket.socket) -> None:
        try:
            seconds = ttl(wire.parse_message(link.recv(512)))
        except OSError as failure:
            self.failures.append(f"query {self.asked} has no reply: {failure}")
        else:
            self.ttls[seconds] = self.ttls.get(seconds, 0) + 1


@pytest.fixture
def node(machine: Machine) -> Iterator[Node]:
    if shutil.which("dnsmasq") is None:
        pytest.fail("dnsmasq is missing: make setup installs it")
    own = Node(machine)
    try:
        own.build()
        yield own
    finally:
        own.close()
        for log in machine.root.glob("dns.log"):
            print(log.read_text()[-3000:])


def test_queries_reach_the_own_server_untracked_and_policies_hold(node: Node) -> None:
    inside(node.netns, "conntrack", "-F")
    node.serve()
    inside(node.netns, "conntrack", "-F")
    for _ in range(50):
        assert ttl(node.ask()) == NODE_TTL
    assert not tracked(node.netns)
    assert not node.machine.drift("node-1")
    assert "proto 117" in inside(node.netns, "ip", "route", "show", "table", "local")
    with netns.inside(node.netns), socket.socket(type=socket.SOCK_DGRAM) as own:
        own.settimeout(10)
        own.connect((SERVER, 53))
        own.send(query(1))
        assert ttl(wire.parse_message(own.recv(512))) == CLUSTER_TTL, "processes of the node ask the cluster"
    assert node.counted("udp") >= 50
    inside(node.netns, "nft", "delete", "table", "ip", "podwire-dns")
    eventually(lambda: ttl(node.ask()) == NODE_TTL)
    node.machine.api("create", NETWORKPOLICIES, DENY, "default")
    eventually(lambda: ttl(node.ask()) == CLUSTER_TTL)
    assert f". {inside(node.pod, 'hostname', '-I').split()[0]}" not in node.clients()
    node.machine.api("delete", NETWORKPOLICIES, "restrict", "default")
    eventually(lambda: ttl(node.ask()) == NODE_TTL)


@pytest.mark.slow
def test_no_query_is_lost_while_servers_come_and_go(node: Node) -> None:
    with Asker(node) as asker:
        for _ in range(3):
            eventually(lambda: asker.ttls.get(CLUSTER_TTL, 0) > 1000)
            node.serve()
            node.kill_worker()
            asker.ttls.pop(NODE_TTL, None)
            eventually(lambda: asker.ttls.get(NODE_TTL, 0) > 1000)
            node.machine.kill("node-1")
            node.end_server(signal.SIGTERM)
            node.machine.start_agent("node-1")
            asker.ttls.pop(CLUSTER_TTL, None)
    assert asker.asked > 10_000
    assert not asker.failures
    node.serve()
    node.end_server(signal.SIGKILL)


def test_tcp_connections_stay_where_they_began(node: Node) -> None:
    def ask(link: socket.socket) -> int:
        link.sendall(struct.pack("!H", len(query(1))) + query(1))
        size = int.from_bytes(link.recv(2, socket.MSG_WAITALL), "big")
        return ttl(wire.parse_message(link.recv(size, socket.MSG_WAITALL)))

    with node.client(socket.SOCK_STREAM) as first:
        assert ask(first) == CLUSTER_TTL
        node.serve()
        with node.client(socket.SOCK_STREAM, 41000) as second:
            assert ask(second) == NODE_TTL
            assert not [line for line in tracked(node.netns) if "sport=41000 " in line]
            assert ask(first) == CLUSTER_TTL
    node.end_server(signal.SIGTERM)
    with node.client(socket.SOCK_STREAM, 41000) as third:
        assert ask(third) == CLUSTER_TTL


def test_rules_are_left_out_where_a_device_has_the_address(node: Node) -> None:
    """As with IPVS, and with another server of this kind."""
    inside(node.netns, "ip", "address", "add", f"{SERVER}/32", "dev", "lo")
    eventually(lambda: "podwire-dns" not in inside(node.netns, "nft", "list", "tables"))
    text = f"the node's own DNS server is not used: the device lo has its address {SERVER}"
    eventually(lambda: text in str(node.machine.api("get", NODES, "node-1")["metadata"].get("annotations")))
    inside(node.netns, "ip", "address", "del", f"{SERVER}/32", "dev", "lo")
    eventually(lambda: node.rules("queries"))
