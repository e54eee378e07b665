"""Policies and connections, end to end: through Services and node ports, while policies change, at a slow agent."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from byhand import api
from clusters import address_of, in_node, layout, netns_of, own_name, running, server
from driver import Cluster, eventually
from traffic import Traffic

from podwire.kernel import netns
from podwire.kube.client import Client
from podwire.kube.resources import NETWORKPOLICIES

_POLICY = """
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s}
spec: %s
"""
_SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {type: NodePort, externalTrafficPolicy: %s, selector: {app: db-1}, ports: [{port: 8080, targetPort: 80}]}
"""
_FROM = "ingress: [{from: [{podSelector: {matchLabels: {app: %s}}}]}]"
_FROM_BLOCK = "ingress: [{from: [{ipBlock: {cidr: %s/32}}]}]"
_PUSH = 5300


@pytest.fixture(scope="module")
def shop() -> Iterator[Cluster]:
    """Two nodes, a database and a client on the first, another client on the second."""
    pods = server("db-1", "node-1") + server("web", "node-1") + server("other", "node-2")
    manifest = pods + _SERVICE % ("everywhere", "Cluster") + _SERVICE % ("here", "Local")
    with running(own_name("connections"), "--nodes", "2", stdin=manifest) as cluster:
        cluster.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=90s")
        yield cluster


@pytest.fixture
def clean(shop: Cluster) -> Iterator[Cluster]:
    """The cluster without policies, and so again behind the test."""
    yield shop
    shop.kubectl("delete", "networkpolicy", "--all")


def _db(more: str) -> str:
    """The spec of a policy about the database."""
    return f"{{podSelector: {{matchLabels: {{app: db-1}}}}, {more}}}"


def connects(place: Path | None, address: str, port: int, seconds: float = 0.3) -> bool:
    """Whether a connection is made; from this machine itself where no place is given."""
    with netns.inside(place) if place is not None else contextlib.nullcontext():
        sock = socket.socket()
    with sock:
        sock.settimeout(seconds)
        return sock.connect_ex((address, port)) == 0


def node_address(cluster: Cluster, name: str) -> str:
    found = cluster.get("node", name)["status"]["addresses"]
    return next(str(one["address"]) for one in found if one["type"] == "InternalIP" and "." in one["address"])


def test_a_node_port_shows_policies_the_client_or_the_node_that_it_came_by(clean: Cluster) -> None:
    nodes = [node_address(clean, name) for name in ("node-1", "node-2")]
    ports = {name: clean.get("service", name)["spec"]["ports"][0]["nodePort"] for name in ("everywhere", "here")}
    host = str(layout(clean).host_address)

    def found() -> dict[str, bool]:
        return {f"{name} by node-{n}": connects(None, nodes[n - 1], ports[name]) for name in ports for n in (1, 2)}

    everybody = {"everywhere by node-1": True, "everywhere by node-2": True, "here by node-1": True}
    eventually(lambda: found() == {**everybody, "here by node-2": False})
    clean.apply(_POLICY % ("from", _db(_FROM_BLOCK % host)))
    eventually(lambda: not connects(None, nodes[1], ports["everywhere"]))
    assert found() == {**everybody, "everywhere by node-2": False, "here by node-2": False}, "the client itself"
    clean.apply(_POLICY % ("from", _db(_FROM_BLOCK % nodes[1])))
    eventually(lambda: connects(None, nodes[1], ports["everywhere"]))
    only = {"everywhere by node-1": False, "everywhere by node-2": True, "here by node-1": False}
    assert found() == {**only, "here by node-2": False}, "the node that it came by"


def test_a_pod_reaches_itself_through_its_service_and_nobody_else_does(clean: Cluster) -> None:
    """What comes back to a pod is masqueraded, and is for all that not taken for its node's."""
    address = clean.get("service", "everywhere")["spec"]["clusterIP"]
    places = {name: netns_of(clean, name) for name in ("db-1", "web", "other")}
    clean.apply(_POLICY % ("all", _db("policyTypes: [Ingress, Egress]")))
    eventually(lambda: not connects(places["web"], address, 8080))
    assert connects(places["db-1"], address, 8080)
    assert not connects(places["web"], address, 8080)
    assert not connects(places["other"], address, 8080)
    clean.apply(_POLICY % ("web", _db(_FROM_BLOCK % address)))
    clean.apply(_POLICY % ("in", _db(_FROM % "other")))
    eventually(lambda: connects(places["other"], address, 8080))
    assert not connects(places["web"], address, 8080), "a Service's address is nobody's"


def test_policies_that_change_ten_times_a_second_lose_nothing_and_open_nothing(clean: Cluster) -> None:
    clean.apply(_POLICY % ("in", _db(_FROM % "web")))
    other, address = netns_of(clean, "other"), address_of(clean, "db-1")
    eventually(lambda: not connects(other, address, 80))
    ending = threading.Event()

    async def flap(client: Client) -> int:
        turns = 0
        while not ending.is_set():
            turns += 1
            spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 1000 + turns}]}]}
            body = {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": "flap", "namespace": "default"},
                "spec": spec,
            }
            await client.create(NETWORKPOLICIES, body, "default")
            await asyncio.sleep(0.05)
            await client.delete(NETWORKPOLICIES, "flap", "default")
            await asyncio.sleep(0.05)
        return turns

    turns: list[int] = []
    thread = threading.Thread(target=lambda: turns.append(api(clean, flap)))
    with Traffic(netns_of(clean, "web"), address, 80) as traffic:
        thread.start()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert not connects(other, address, 80, 0.02)
        ending.set()
        thread.join()
    assert traffic.problems == []
    assert turns[0] > 5
    clean.kubectl("delete", "networkpolicy", "in")
    eventually(lambda: connects(other, address, 80))


class Pusher(threading.Thread):
    """A pod that sends datagrams to its first client for ever."""

    def __init__(self, place: Path) -> None:
        super().__init__(daemon=True)
        with netns.inside(place):
            self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("", _PUSH))
        self.ending = threading.Event()

    def run(self) -> None:
        _, client = self.sock.recvfrom(10)
        while not self.ending.wait(0.005):
            with contextlib.suppress(OSError):
                self.sock.sendto(b"x", client)


@pytest.fixture
def stream(clean: Cluster) -> Iterator[socket.socket]:
    """A client in one pod to which a server in another one pushes."""
    pusher = Pusher(netns_of(clean, "db-1"))
    pusher.start()
    with netns.inside(netns_of(clean, "other")):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.connect((address_of(clean, "db-1"), _PUSH))
        clean.apply(_POLICY % ("all", "{podSelector: {}, policyTypes: [Ingress, Egress]}"))
        clean.apply(_POLICY % ("out", "{podSelector: {matchLabels: {app: other}}, egress: [{}]}"))
        clean.apply(_POLICY % ("in", _db("ingress: [{}]")))
        eventually(lambda: pushed(sock))
        yield sock
    pusher.ending.set()
    pusher.join()
    pusher.sock.close()


def pushed(sock: socket.socket, seconds: float = 0.2) -> bool:
    """Asks for more, and says whether anything new comes."""
    sock.send(b"go")
    return still(sock, seconds)


def still(sock: socket.socket, seconds: float = 0.2) -> bool:
    """Whether anything comes that was not there before."""
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while sock.recv(100):
            pass
    sock.settimeout(seconds)
    try:
        return bool(sock.recv(100))
    except TimeoutError:
        return False


def test_what_a_server_pushes_stops_when_no_policy_allows_it(clean: Cluster, stream: socket.socket) -> None:
    clean.kubectl("delete", "networkpolicy", "in")
    eventually(lambda: not still(stream))
    clean.apply(_POLICY % ("in", _db("ingress: [{}]")))
    eventually(lambda: pushed(stream))


def test_with_keep_what_was_allowed_lives_on(clean: Cluster, stream: socket.socket) -> None:
    def configure(value: str | None) -> None:
        patch = json.dumps({"data": {"policy.established": value}})
        clean.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "--type=merge", "-p", patch)

    web, address = netns_of(clean, "other"), address_of(clean, "db-1")
    configure("keep")
    try:
        nodes = ("node-1", "node-2")
        words = ("nft", "list", "table", "ip", "podwire-policy")
        eventually(
            lambda: (
                not any("ct direction reply ct state established accept" in in_node(clean, n, *words) for n in nodes)
            ),
        )
        assert connects(web, address, 80)
        clean.kubectl("delete", "networkpolicy", "in")
        eventually(lambda: not connects(web, address, 80, 0.1))
        for _ in range(5):
            assert pushed(stream)
        configure(None)
        eventually(lambda: not still(stream))
    finally:
        configure(None)


def test_a_pod_that_comes_while_the_agent_sleeps_waits_for_its_policies(clean: Cluster) -> None:
    clean.apply(_POLICY % ("quiet", "{podSelector: {matchLabels: {app: late}}, policyTypes: [Egress]}"))
    record = json.loads((Path(layout(clean).run) / "processes/agent-node-1.json").read_text())
    target = address_of(clean, "db-1")
    script = (
        f"import socket,time\nend=time.monotonic()+1.5\nn=r=0\nwhile time.monotonic()<end:\n n+=1\n s=socket.socket()\n"
        f" s.settimeout(0.02)\n r+=s.connect_ex(('{target}',80))==0\n s.close()\nprint(n,r)"
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "late", "labels": {"app": "late"}},
        "spec": {
            "nodeName": "node-1",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "busybox", "command": ["python3", "-c", script]}],
        },
    }
    os.kill(record["pid"], signal.SIGSTOP)
    try:
        clean.apply(json.dumps(pod))
        time.sleep(1)
        assert clean.get("pod", "late")["status"]["phase"] == "Pending"
    finally:
        os.kill(record["pid"], signal.SIGCONT)
    try:
        clean.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/late", "--timeout=90s")
        tries, reached = map(int, clean.kubectl("logs", "late").split())
        assert tries > 10
        assert reached == 0
    finally:
        clean.kubectl("delete", "pod", "late", "--now")
