"""Policies and connections, end to end: through Services and node ports, while policies change, with a slow agent."""

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
from tests.e2e.clusters import address_of, done, in_node, netns_of, policies_in_force, run, topology
from tests.e2e.driver import Cluster, eventually
from tests.e2e.handwritten_endpoints import api
from tests.e2e.traffic import Traffic

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
spec: {type: NodePort, externalTrafficPolicy: %s, selector: {name: db-1}, ports: [{port: 8080, targetPort: 80}]}
"""
_FROM = "ingress: [{from: [{podSelector: {matchLabels: {app: %s}}}]}]"
_FROM_BLOCK = "ingress: [{from: [{ipBlock: {cidr: %s/32}}]}]"
_FROM_RANGE = "ingress: [{from: [{ipBlock: {cidr: %s}}]}]"
_PUSH = 5300
_PATIENCE_S = 20.0
"""For what must come; it comes at once, but not on a machine that has much else to do."""


@pytest.fixture(scope="module")
def shop(guarded_cluster: Cluster) -> Iterator[Cluster]:
    """Two nodes, a database and a client on the first, another client on the second; Services of the database."""
    guarded_cluster.apply(_SERVICE % ("everywhere", "Cluster") + _SERVICE % ("here", "Local"))
    yield guarded_cluster
    guarded_cluster.kubectl("delete", "service", "everywhere", "here")


@pytest.fixture
def clean(shop: Cluster) -> Iterator[Cluster]:
    """The cluster without policies, and so again behind the test."""
    yield shop
    shop.delete_all("networkpolicies")
    policies_in_force(shop)


def _db(more: str) -> str:
    """The spec of a policy about the database."""
    return f"{{podSelector: {{matchLabels: {{name: db-1}}}}, {more}}}"


def connects(place: Path | None, address: str, port: int, seconds: float = 0.3) -> bool:
    """Whether a connection is made from a namespace, or from this machine when none is given."""
    with netns.inside(place) if place is not None else contextlib.nullcontext():
        sock = socket.socket()
    with sock:
        sock.settimeout(seconds)
        return sock.connect_ex((address, port)) == 0


def node_address(cluster: Cluster, name: str) -> str:
    result = cluster.get("node", name)["status"]["addresses"]
    return next(str(item["address"]) for item in result if item["type"] == "InternalIP" and "." in item["address"])


def test_node_port_shows_policies_the_client_or_the_entry_node(clean: Cluster) -> None:
    nodes = [node_address(clean, name) for name in ("node-1", "node-2")]
    ports = {name: clean.get("service", name)["spec"]["ports"][0]["nodePort"] for name in ("everywhere", "here")}
    host = str(topology(clean).host_address)

    def lets_in(**expected: tuple[bool, bool]) -> None:
        for name, answers in expected.items():
            for number, open_ in enumerate(answers):
                created = connects(None, nodes[number], ports[name], _PATIENCE_S if open_ else 0.3)
                assert created == open_, f"{name} by node-{number + 1}"

    for number, name in ((0, "everywhere"), (1, "everywhere"), (0, "here")):
        eventually(lambda number=number, name=name: connects(None, nodes[number], ports[name]))
    lets_in(everywhere=(True, True), here=(True, False))
    clean.apply(_POLICY % ("from", _db(_FROM_BLOCK % host)))
    policies_in_force(clean)
    lets_in(everywhere=(True, False), here=(True, False))  # the client itself
    clean.apply(_POLICY % ("from", _db(_FROM_BLOCK % nodes[1])))
    policies_in_force(clean)
    lets_in(everywhere=(False, True), here=(False, False))  # the node that it came by
    pod_range = str(clean.get("node", "node-2")["spec"]["podCIDR"])
    clean.apply(_POLICY % ("from", _db(_FROM_RANGE % pod_range)))
    policies_in_force(clean)
    lets_in(everywhere=(False, False), here=(False, False))  # a tunnel's address is no address of the node


@pytest.mark.parametrize("backend", ["vxlan", "hostgw"])
def test_ranges_of_pods_let_no_node_in(clean: Cluster, backend: str) -> None:
    """With a tunnel, packets of another node have an address of its pod range; no verdict depends on that.

    The kernel, ``why`` and ``probe``, which asks the evaluator, agree.
    """
    uses_backend(clean, backend)
    try:
        ranges = [clean.get("node", name)["spec"]["podCIDR"] for name in ("node-1", "node-2")]
        blocks = ", ".join(f"{{ipBlock: {{cidr: {cidr}}}}}" for cidr in ranges)
        clean.apply(_POLICY % ("ranges", _db(f"ingress: [{{from: [{blocks}]}}]")))
        policies_in_force(clean)
        address, port = address_of(clean, "db-1"), clean.get("service", "everywhere")["spec"]["ports"][0]["nodePort"]
        assert connects(netns_of(clean, "other"), address, 80, _PATIENCE_S)
        assert not connects(Path(topology(clean).netns("node-2")), address, 80)
        assert connects(Path(topology(clean).netns("node-1")), address, 80, _PATIENCE_S), "the pod's own node"
        entries = [("host", f"node/node-{number}", str(port)) for number in (1, 2)]
        for words in (*entries, ("node/node-2", "pod/db-1", "80")):
            answer = json.loads(done("why", "--name", clean.name, *words, "-o", "json"))
            assert answer["outcome"] == "dropped", words
        table = run("probe", "--name", clean.name, "--from", "host", "--to", "svc/everywhere", "--show", "all")
        assert table.returncode == 0, table.stdout
        assert table.stdout.splitlines()[-1].startswith("2 of 2 as expected, 2 denied by policies"), table.stdout
    finally:
        uses_backend(clean, "vxlan")


def uses_backend(cluster: Cluster, backend: str) -> None:
    """Changes the routing backend, and waits until all nodes use it."""
    patch = json.dumps({"data": {"routing.backend": backend}})
    cluster.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "-p", patch)

    def used() -> bool:
        nodes = cluster.get("nodes")["items"]
        return {node["metadata"]["annotations"].get("podwire.io/routing") for node in nodes} == {backend}

    eventually(used)


def test_only_the_pod_itself_reaches_itself_through_its_service(clean: Cluster) -> None:
    """Packets that come back to the pod are masqueraded, but do not count as packets of its node."""
    address = clean.get("service", "everywhere")["spec"]["clusterIP"]
    positions = {name: netns_of(clean, name) for name in ("db-1", "web", "other")}
    clean.apply(_POLICY % ("all", _db("policyTypes: [Ingress, Egress]")))
    policies_in_force(clean)
    assert connects(positions["db-1"], address, 8080, _PATIENCE_S)
    assert not connects(positions["web"], address, 8080)
    assert not connects(positions["other"], address, 8080)
    clean.apply(_POLICY % ("web", _db(_FROM_BLOCK % address)))
    clean.apply(_POLICY % ("in", _db(_FROM % "other")))
    policies_in_force(clean)
    assert connects(positions["other"], address, 8080, _PATIENCE_S)
    assert not connects(positions["web"], address, 8080), "a Service's address is nobody's"


def test_fast_policy_changes_lose_and_open_no_connection(clean: Cluster) -> None:
    clean.apply(_POLICY % ("in", _db(_FROM % "web")))
    other, address = netns_of(clean, "other"), address_of(clean, "db-1")
    policies_in_force(clean)
    assert not connects(other, address, 80)
    ending = threading.Event()
    turns = 0

    async def flap(client: Client) -> None:
        nonlocal turns
        while not ending.is_set():
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
            turns += 1

    thread = threading.Thread(target=api, args=(clean, flap))
    with Traffic(netns_of(clean, "web"), address, 80) as traffic:
        thread.start()
        try:
            while turns < 16:
                assert thread.is_alive()
                assert not connects(other, address, 80, 0.02)
        finally:
            ending.set()
            thread.join()
    assert traffic.problems == []
    clean.kubectl("delete", "networkpolicy", "in")
    policies_in_force(clean)
    assert connects(other, address, 80, _PATIENCE_S)


class Pusher(threading.Thread):
    """A pod that sends datagrams to its first client without end."""

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
    """A client in one pod that receives a stream from a server in another pod."""
    pusher = Pusher(netns_of(clean, "db-1"))
    pusher.start()
    with netns.inside(netns_of(clean, "other")):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.connect((address_of(clean, "db-1"), _PUSH))
        clean.apply(_POLICY % ("all", "{podSelector: {}, policyTypes: [Ingress, Egress]}"))
        clean.apply(_POLICY % ("out", "{podSelector: {matchLabels: {app: other}}, egress: [{}]}"))
        clean.apply(_POLICY % ("in", _db("ingress: [{}]")))
        policies_in_force(clean)  # a flow older than the last policy could be deleted between two of them
        eventually(lambda: pushed(sock))
        yield sock
    pusher.ending.set()
    pusher.join()
    pusher.sock.close()


def pushed(sock: socket.socket, seconds: float = 0.2) -> bool:
    """Asks for more; returns whether new data comes."""
    sock.send(b"go")
    return still(sock, seconds)


def still(sock: socket.socket, seconds: float = 0.2) -> bool:
    """Whether new data comes."""
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
    policies_in_force(clean)
    eventually(lambda: not still(stream, 0.5))
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
        arguments = ("nft", "list", "table", "ip", "podwire-policy")
        eventually(
            lambda: (
                not any(
                    "ct direction reply ct state established accept" in in_node(clean, n, *arguments) for n in nodes
                )
            ),
        )
        assert connects(web, address, 80, _PATIENCE_S)
        clean.kubectl("delete", "networkpolicy", "in")
        policies_in_force(clean)
        assert not connects(web, address, 80)
        for _ in range(5):
            assert pushed(stream, _PATIENCE_S)
        configure(None)
        eventually(lambda: not still(stream, 0.5))
    finally:
        configure(None)


def test_pod_added_while_agent_sleeps_waits_for_its_policies(clean: Cluster) -> None:
    clean.apply(_POLICY % ("quiet", "{podSelector: {matchLabels: {app: late}}, policyTypes: [Egress]}"))
    policies_in_force(clean)
    record = json.loads((Path(topology(clean).run) / "processes/agent-node-1.json").read_text())
    target = address_of(clean, "db-1")
    script = (
        "import socket,time\nend=time.monotonic()+1.5\nn=r=0\nwhile n<20 or time.monotonic()<end:\n n+=1\n"
        f" s=socket.socket()\n s.settimeout(0.02)\n r+=s.connect_ex(('{target}',80))==0\n s.close()\nprint(n,r)"
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
        assert clean.kubectl("logs", "late").split()[1] == "0"
    finally:
        clean.kubectl("delete", "pod", "late", "--now")
