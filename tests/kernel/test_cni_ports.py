"""hostPorts: by protocol and address, on loopback, for clients of UDP whose pod was replaced, after a lost ledger."""

import json
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kernel import sctp
from tests.kernel.cni_node import NodeAgent, inside

from podwire.kernel import netns

SERVER = """
import socket, sys
kind, port = (socket.SOCK_DGRAM if sys.argv[1] == "udp" else socket.SOCK_STREAM), int(sys.argv[2])
server = socket.socket(socket.AF_INET6 if sys.argv[1] == "tcp6" else socket.AF_INET, kind)
server.bind(("", port))
if kind == socket.SOCK_STREAM:
    server.listen()
print("up", flush=True)
while True:
    if kind == socket.SOCK_DGRAM:
        data, peer = server.recvfrom(99)
        server.sendto(sys.argv[3].encode() + b" " + peer[0].encode(), peer)
    else:
        connection, peer = server.accept()
        connection.sendall(sys.argv[3].encode() + b" " + peer[0].encode())
        connection.close()
"""
ADDRESS = "192.0.2.1"


@contextmanager
def serving(place: Path, protocol: str, name: str = "web", port: int = 80) -> Iterator[None]:
    """Answers with a name and the client's address, in a namespace."""
    command = ["nsenter", f"--net={place}", sys.executable, "-c", SERVER, protocol, str(port), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline()
        try:
            yield
        finally:
            server.kill()


def mapping(port: int = 8080, target: int = 80, protocol: str = "tcp", **more: str) -> dict[str, Any]:
    return {"hostPort": port, "containerPort": target, "protocol": protocol, **more}


def asked(*mappings: dict[str, Any]) -> dict[str, Any]:
    return {"runtimeConfig": {"portMappings": list(mappings)}}


def connect(place: Path, host: str, port: int = 8080, patience_s: float = 10) -> str:
    with netns.inside(place):
        client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    with client:
        client.settimeout(patience_s)
        try:
            client.connect((host, port))
            return client.recv(99).decode()
        except OSError as failure:
            return f"{failure.__class__.__name__}"


def ask(client: socket.socket, host: str, port: int) -> str:
    try:
        client.sendto(b"x", (host, port))
        return client.recvfrom(99)[0].decode()
    except OSError:
        return ""


@pytest.fixture
def node(make: Callable[..., NodeAgent]) -> NodeAgent:
    """A node with an address of its own."""
    agent = make()
    inside(agent.place, "ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    return agent


@pytest.mark.parametrize("host_ip", ["", "0.0.0.0", "127.0.0.1"])
def test_host_port_answers_on_loopback(node: NodeAgent, host_ip: str) -> None:
    node.add("web", **asked(mapping(hostIP=host_ip), mapping(5353, 53, "udp", hostIP=host_ip)))
    with serving(node.pods / "web", "tcp"), serving(node.pods / "web", "udp", port=53):
        source = node.gateway if node.link == "bridge" else ADDRESS
        assert connect(node.place, "127.0.0.1") == f"web {source}"
        with netns.inside(node.place):
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with client:
            client.settimeout(10)
            assert ask(client, "127.0.0.1", 5353) == f"web {source}"
        assert (connect(node.place, ADDRESS) == f"web {ADDRESS}") is (host_ip != "127.0.0.1")


def test_pods_do_not_reach_the_loopback_network_of_the_node(node: NodeAgent) -> None:
    """The device of a pod with a hostPort routes packets of 127.0.0.0/8: the table drops those of the pod."""
    node.add("web", **asked(mapping()))
    setting = f"net.ipv4.conf.{node.device(node.links()[0])}.route_localnet"
    assert inside(node.place, "sysctl", "-n", setting).stdout.strip() == "1"
    pod = node.pods / "web"
    for command in (
        "sysctl -qw net.ipv4.conf.eth0.route_localnet=1",
        "ip address del 127.0.0.1/8 dev lo",
        f"ip route add 127.0.0.1/32 via {node.gateway} dev eth0 src 10.244.1.2",
    ):
        assert inside(pod, *command.split()).returncode == 0
    with netns.inside(node.place):
        server = socket.create_server(("127.0.0.1", 7070))
    with server:
        assert connect(pod, "127.0.0.1", 7070, 0.5) == "TimeoutError"
        inside(node.place, "nft", "flush", "chain", "inet", "podwire-hostport", "guard")
        server.settimeout(0.5)
        assert connect(pod, "127.0.0.1", 7070, 0.3) == "TimeoutError"
        arrived, _ = server.accept()
        arrived.close()  # Without the chain the connection arrives.


def test_client_of_udp_reaches_the_pod_that_replaces_another(node: NodeAgent) -> None:
    ports = asked(mapping(5353, 53, "udp"))
    inside(node.pod("client"), "true")
    assert node.call("ADD", "client")[0] == 0
    with netns.inside(node.pods / "client"):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with client:
        client.bind(("", 4000))
        client.settimeout(0.2)
        assert not ask(client, ADDRESS, 5353), "no pod has the port yet"
        for name in ("first", "second"):
            node.add(name, **ports)
            with serving(node.pods / name, "udp", name, 53):
                client.settimeout(10)
                assert ask(client, ADDRESS, 5353) == f"{name} 10.244.1.2"
            client.settimeout(0.2)
            assert not ask(client, ADDRESS, 5353), "no process listens"
            assert node.call("DEL", name) == (0, {})
            assert not ask(client, ADDRESS, 5353), "no pod has the port"
            assert not ask(client, ADDRESS, 5353)


def test_established_connections_of_the_node_survive_a_host_port(node: NodeAgent) -> None:
    node.add("client")
    node.add("other", **asked(mapping(9090)))  # From now on the node tracks connections.
    with netns.inside(node.place):
        server = socket.create_server((ADDRESS, 8080))
    with netns.inside(node.pods / "client"):
        client = socket.create_connection((ADDRESS, 8080), 10)
    with server, client:
        held = server.accept()[0]
        with held:
            node.add("web", **asked(mapping()))
            client.sendall(b"still")
            held.settimeout(10)
            assert held.recv(9) == b"still"


@contextmanager
def serving_sctp(place: Path, address: str, name: str) -> Iterator[None]:
    """Answers SCTP on port 8080 in a namespace."""
    end = threading.Event()
    with netns.inside(place):
        sockets = list(sctp.listeners((address,)))

    def answer() -> None:
        while not end.is_set():
            for sock in select.select(sockets, (), (), 0.05)[0]:
                sctp.answer(sock, name)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        for sock in sockets:
            sock.close()


def test_one_port_leads_to_pods_by_protocol_and_host_address(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24", "fd10:0:0:1::/64")
    addresses = {"one": ADDRESS, "two": "192.0.2.2", "six": "fd99::1"}
    for address in addresses.values():
        nodad = ["nodad"] * (":" in address)
        inside(node.place, "ip", "address", "add", f"{address}/{128 if nodad else 32}", "dev", "lo", *nodad)
    of_pods = {
        name: node.add(name, **asked(mapping(hostIP=address), mapping(8080, 8080, "sctp", hostIP=address)))
        for name, address in addresses.items()
    }
    for name, address in addresses.items():
        pod, own = node.pods / name, of_pods[name][":" in address]
        with serving(pod, "tcp6" if ":" in address else "tcp", name), serving_sctp(pod, own, name):
            assert connect(node.place, address) == f"{name} {address}"
            with netns.inside(node.place):
                assert sctp.connect(address, 8080, "", 10) == (name, address)


def test_one_port_leads_to_one_target(node: NodeAgent) -> None:
    node.pod("web")
    status, error = node.call("ADD", "web", **asked(mapping(), mapping(target=81)))
    assert (status, error["code"]) == (1, 7)
    assert "8080" in error["msg"]
    assert (node.links(), node.service.leases.held) == ([], {})
    assert node.call("ADD", "web", **asked(mapping(), mapping(), mapping(protocol="udp", target=81)))[0] == 0


def test_a_failed_add_leaves_no_host_port(node: NodeAgent) -> None:
    inside(node.pod("web"), "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    assert node.call("ADD", "web", **asked(mapping()))[1]["code"] == 102
    assert "podwire-hostport" not in inside(node.place, "nft", "list", "tables").stdout


def test_host_ports_survive_the_loss_of_the_ledger(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24", "fd00:1::/64")
    inside(node.place, "ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    node.add("web", **asked(mapping(), mapping(5353, 53, "udp"), mapping(9000, 90, hostIP=ADDRESS)))
    node.add("plain")
    table = inside(node.place, "nft", "list", "table", "inet", "podwire-hostport").stdout
    node.stop()
    for file in node.database.parent.glob("ipam.db*"):
        file.unlink()
    node.start()
    assert inside(node.place, "nft", "list", "table", "inet", "podwire-hostport").stdout == table
    with serving(node.pods / "web", "tcp"):
        assert connect(node.place, ADDRESS) == f"web {ADDRESS}"
    node.pod("other")
    assert node.call("ADD", "other", **asked(mapping()))[1]["code"] == 103
    assert node.call("DEL", "web") == (0, {})
    assert "podwire-hostport" not in json.dumps(inside(node.place, "nft", "list", "tables").stdout)
