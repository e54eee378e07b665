"""Second interfaces of pods: agents as processes with real Services, and what takes which way."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.routing_nodes import ECHO_SERVER, SOURCE_REPLY_SERVER, Cluster, Pod, Talk, ip_batch, source_seen

from podwire.cni import program
from podwire.kernel import netns
from podwire.kube.resources import ENDPOINTSLICES, NODES, SERVICES
from podwire.routing.backends.macvlan.backend import MacvlanOptions, MacvlanSection
from podwire.routing.settings import RoutingSettings

PARTS = ("cni", "routing", "proxy")
FAR, NEAR = "10.96.0.10", "10.96.0.11"


class MacvlanNodes(Machine):
    """Nodes whose agents are configured with the backend macvlan."""

    def join(self, number: int, parts: tuple[str, ...] = PARTS) -> Path:
        name = f"node-{number}"
        self.add_node(number, parts, start=False)
        file = self.root / f"{name}.yaml"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"routing": {"backend": "macvlan"}}))
        self.start_agent(name)
        eventually(lambda: self.ready(name))
        return self.root / name

    def attach(self, node: str, name: str) -> Pod:
        address = self.pod(node, name)
        return Pod(self.root / "pods" / name, address)

    def cni(self, verb: str, node: str, name: str, previous: bytes = b"null") -> bytes:
        """A request of the container runtime for a namespace that exists; the answer."""
        environment = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": f"c-{name}",
            "CNI_NETNS": str(self.root / "pods" / name),
            "CNI_IFNAME": "eth0",
            "PODWIRE_CNI_SOCKET": str(self.root / f"{node}-run" / "cni.sock"),
        }
        conf = b'{"cniVersion": "1.0.0", "name": "podwire", "prevResult": ' + previous + b"}"
        command = [str(program.path())]
        return subprocess.run(command, env=environment, check=True, input=conf, stdout=subprocess.PIPE).stdout

    def service(self, name: str, address: str, endpoint: str, node: str) -> None:
        ports = [{"name": "one", "port": 8, "protocol": "TCP"}, {"name": "two", "port": 7, "protocol": "TCP"}]
        place = {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name}}
        spec = {"clusterIP": address, "clusterIPs": [address], "ports": ports}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": place, "spec": spec}
        self.api("create", SERVICES, service, "default")
        self.api(
            "create",
            ENDPOINTSLICES,
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": place,
                "addressType": "IPv4",
                "endpoints": [{"addresses": [endpoint], "nodeName": node, "conditions": {"ready": True}}],
                "ports": ports,
            },
            "default",
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[MacvlanNodes]:
    macvlan_nodes = MacvlanNodes(tmp_path)
    try:
        yield macvlan_nodes
    finally:
        macvlan_nodes.close()
        for log in tmp_path.glob("node*.log"):
            print(log.name, log.read_text()[-3000:])


def leaves_by(pod: Pod, address: str) -> str:
    """The interface of a pod by which packets to an address leave."""
    result: str = json.loads(inside(pod.place, "ip", "-j", "route", "get", address))[0]["dev"]
    return result


@contextmanager
def nothing_forwarded(place: Path) -> Iterator[None]:
    """The node forwards no packet."""
    for command in (
        ("add", "table", "inet", "closed"),
        ("add", "chain", "inet", "closed", "forward", "{ type filter hook forward priority -400; policy drop; }"),
    ):
        inside(place, "nft", *command)
    yield
    inside(place, "nft", "delete", "table", "inet", "closed")


def refused(pod: Pod, address: str) -> bool:
    """Whether a connection gets no answer within half a second."""
    with netns.inside(pod.place):
        item = socket.socket()
    with item:
        item.settimeout(0.5)
        try:
            item.connect((address, 8))
        except TimeoutError:
            return True
    return False


def test_pods_use_the_leg_only_to_pods_elsewhere(machine: MacvlanNodes) -> None:
    first, second = machine.join(1), machine.join(2)
    a, c, b = machine.attach("node-1", "a"), machine.attach("node-1", "c"), machine.attach("node-2", "b")
    eventually(lambda: leaves_by(a, b.address) == "lan0" and leaves_by(b, a.address) == "lan0")
    assert leaves_by(a, c.address) == leaves_by(a, "10.89.0.11") == leaves_by(a, "10.96.0.10") == "eth0"
    machine.service("far", FAR, b.address, "node-2")
    machine.service("near", NEAR, c.address, "node-1")
    own, other = Pod(first, "10.89.0.11"), Pod(second, "10.89.0.12")
    with b.running(SOURCE_REPLY_SERVER), c.running(SOURCE_REPLY_SERVER):
        with nothing_forwarded(first), nothing_forwarded(second):
            assert source_seen(a.place, b.address) == a.address
            assert refused(a, c.address), "pods of one node reach each other through the node"
        assert source_seen(a.place, c.address) == a.address
        assert eventually(lambda: source_seen(a.place, FAR)) == "10.89.0.11", "the answer passes the node again"
        assert eventually(lambda: source_seen(a.place, NEAR)) == a.address
        assert source_seen(first, b.address) == "10.89.0.11"
        assert source_seen(second, b.address)
    with own.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, own.address) == a.address
    with other.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, other.address) == a.address
    for node in ("node-1", "node-2"):
        assert eventually(lambda node=node: not machine.drift(node))


def test_legs_outlive_the_agent_and_go_with_the_pod(machine: MacvlanNodes) -> None:
    first = machine.join(1)
    machine.join(2)
    before = inside(first, "ip", "-br", "link")
    a, b = machine.attach("node-1", "a"), machine.attach("node-2", "b")
    eventually(lambda: leaves_by(a, b.address) == "lan0" and leaves_by(b, a.address) == "lan0")
    machine.service("far", FAR, b.address, "node-2")
    with b.running(ECHO_SERVER):
        eventually(lambda: Talk(a, Pod(b.place, FAR)).end() == 0)
        talks = [Talk(a, b), Talk(a, Pod(b.place, FAR))]
        leg = inside(a.place, "ip", "-o", "link", "show", "lan0")
        machine.kill("node-1")
        machine.start_agent("node-1")
        eventually(lambda: machine.ready("node-1") and not machine.drift("node-1"))
        assert [talk.end() for talk in talks] == [0, 0]
        assert leg == inside(a.place, "ip", "-o", "link", "show", "lan0")
    machine.cni("DEL", "node-1", "a")
    assert "lan0" not in inside(a.place, "ip", "link")
    assert eventually(lambda: inside(first, "ip", "-br", "link") == before)
    result = machine.cni("ADD", "node-1", "a")
    assert leaves_by(a, b.address) == "lan0", "the namespace may be used again"
    machine.cni("CHECK", "node-1", "a", result)
    inside(a.place, "ip", "link", "del", "lan0")
    with pytest.raises(subprocess.CalledProcessError):
        machine.cni("CHECK", "node-1", "a", result)


def test_legs_carry_both_families_and_follow_their_uplink(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2, families="46")
    try:
        for node in cluster.all:
            ip_batch(cluster.fabric, f"link add m{node.number} up type veth peer name eth1 netns {node.place}")
            ip_batch(node.place, "link set eth1 up mtu 1400")
        ports = [f"link set m{node.number} master lan mtu 1400" for node in cluster.all]
        ip_batch(cluster.fabric, "link add lan up type bridge", *ports)
        cluster.configure(RoutingSettings(backend="macvlan"))
        cluster.settle()
        a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
        lowers = []
        for uplink, mtu in (("", 1500), ("eth1", 1400)):
            options = {"macvlan": MacvlanOptions(macvlan=MacvlanSection(uplink=uplink))}
            cluster.configure(RoutingSettings(backend="macvlan", options=options))
            cluster.settle()
            with b.running(SOURCE_REPLY_SERVER), nothing_forwarded(cluster.all[0].place):
                assert source_seen(a.place, b.address) == a.address
                assert source_seen(a.place, b.address6) == a.address6
            leg = json.loads(inside(a.place, "ip", "-j", "link", "show", "lan0"))[0]
            assert leg["mtu"] == mtu
            lowers.append(leg["link_index"])
        assert lowers[0] != lowers[1]
        cluster.configure(RoutingSettings(backend="hostgw"))
        cluster.settle()
        assert "lan0" not in inside(a.place, "ip", "link")
        with b.running(SOURCE_REPLY_SERVER):
            assert source_seen(a.place, b.address6) == a.address6
    finally:
        cluster.close()


def test_a_pod_that_refuses_its_leg_affects_no_other(machine: MacvlanNodes) -> None:
    machine.join(1)
    a, c = machine.attach("node-1", "a"), machine.attach("node-1", "c")
    for command in ("link del lan0", "link add lan0 type bridge"):
        inside(c.place, "ip", *command.split())
    machine.join(2)
    b = machine.attach("node-2", "b")
    eventually(lambda: leaves_by(a, b.address) == "lan0" and leaves_by(b, a.address) == "lan0")
    with a.running(SOURCE_REPLY_SERVER):
        assert source_seen(b.place, a.address) == b.address
    assert "lan0" in inside(c.place, "ip", "link", "show", "type", "bridge")
    eventually(lambda: "- c-c: add" in (machine.root / "node-1.log").read_text())


def test_a_node_with_policies_gives_its_pods_no_legs(machine: MacvlanNodes) -> None:
    machine.join(1)
    guarded = machine.join(2, ("cni", "routing", "policy"))
    a, b = machine.attach("node-1", "a"), machine.attach("node-2", "b")

    def fallback() -> str:
        annotations = machine.api("get", NODES, "node-2")["metadata"].get("annotations", {})
        return str(annotations.get("podwire.io/fallback", ""))

    assert "NetworkPolicies are in force on this node" in eventually(fallback)
    assert "lan0" not in inside(b.place, "ip", "link")
    assert leaves_by(a, b.address) == "eth0", "packets to these pods pass their node"
    with b.running(SOURCE_REPLY_SERVER):
        assert eventually(lambda: source_seen(a.place, b.address)) == a.address
        with nothing_forwarded(guarded):
            assert refused(a, b.address)


def test_legs_go_when_the_agent_starts_to_enforce_policies(machine: MacvlanNodes) -> None:
    machine.join(1)
    machine.join(2)
    a, b = machine.attach("node-1", "a"), machine.attach("node-2", "b")
    eventually(lambda: leaves_by(a, b.address) == "lan0" and leaves_by(b, a.address) == "lan0")
    machine.kill("node-2")
    file = machine.root / "node-2.yaml"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"parts": [*PARTS, "policy"]}))
    machine.start_agent("node-2")
    eventually(lambda: machine.ready("node-2"))
    assert "lan0" not in inside(b.place, "ip", "link")
    eventually(lambda: leaves_by(a, b.address) == "eth0")
    with b.running(SOURCE_REPLY_SERVER):
        assert eventually(lambda: source_seen(a.place, b.address)) == a.address
    assert "podwire-macvlan" not in inside(machine.root / "node-2", "nft", "list", "tables")
