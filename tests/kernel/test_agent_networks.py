"""Pod networks with agents as processes: annotations, Services, policies, a killed agent, and what ``why`` says."""

import errno
import json
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.datagram_stream import Stream
from tests.kernel.routing_nodes import ECHO_SERVER, SOURCE_REPLY_SERVER, Pod, Talk, source_seen

from podwire.cni import program
from podwire.kernel import netns
from podwire.kernel.features import Features
from podwire.kube.resources import ENDPOINTSLICES, NETWORKPOLICIES, NODES, PODS, SERVICES
from podwire.routing.backends.vlan.backend import VlanSegment

pytestmark = pytest.mark.uml

NETWORKS = [
    {"name": "blue", "id": 101, "cidrs": ["10.245.0.0/16"]},
    {"name": "red", "id": 102, "cidrs": ["10.246.0.0/16"]},
]
CONTRACTS = [
    {"name": "names", "consumer": "blue", "provider": "default", "ports": ["TCP/8"]},
    {"name": "web", "consumer": "blue", "provider": "red", "ports": ["TCP/8080"]},
]
SETTINGS: dict[str, Any] = {
    "routing": {"backend": "vlan", "vlan": {"id": 7, "networks": NETWORKS, "contracts": CONTRACTS}},
    "proxy": {"mode": "iptables"},
    "policy": {"mode": "iptables"},
    "serviceCIDRs": ["10.96.0.0/16"],
}
SERVICE = {"default": "10.96.0.10", "red": "10.96.0.11", "blue": "10.96.0.12"}
ONLY_FRIENDS = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "only-friends", "namespace": "default"},
    "spec": {
        "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["b-blue", "b-default"]}]},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}],
    },
}


WEB_SERVER = replace(SOURCE_REPLY_SERVER, port=8080)


def documented_policy() -> Any:
    """The policy between endpoint groups on the page of the backend."""
    page = (Path(__file__).parents[2] / "docs/backends/vlan.md").read_text()
    block = page[page.index("    kind: NetworkPolicy") :].partition("\n\n")[0]
    return yaml.load(textwrap.dedent(block), Loader=yaml.CSafeLoader)


class NetworkNodes(Machine):
    """Two nodes whose agents have several pod networks, Services and policies."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for number in (1, 2):
            self.add_node(number, ("cni", "routing", "policy", "proxy"), start=False)
            self.start_with(f"node-{number}", NETWORKS)
        for number in (1, 2):
            eventually(lambda number=number: self.ready(f"node-{number}"), 120)
        eventually(lambda: "10.245.2.0/24" in inside(self.root / "node-1", "ip", "route"), 60)

    def start_with(self, node: str, networks: list[dict[str, Any]]) -> None:
        """Starts an agent whose configuration has these pod networks."""
        file = self.root / f"{node}.yaml"
        names = {"default", *(network["name"] for network in networks)}
        contracts = [each for each in CONTRACTS if {each["consumer"], each["provider"]} <= names]
        vlan = SETTINGS["routing"]["vlan"] | {"networks": networks, "contracts": contracts}
        routing = {"routing": SETTINGS["routing"] | {"vlan": vlan}}
        file.write_text(json.dumps(json.loads(file.read_text()) | SETTINGS | routing))
        self.start_agent(node)

    def add(self, node: str, name: str, network: str, group: str = "none") -> tuple[int, Any]:
        """Exit status and answer of ADD for a pod with the annotation of a network and the label of a group."""
        place = self.root / "pods" / name
        netns.create(place)
        meta = {"name": name, "namespace": "default", "labels": {"app": name, "group": group}}
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "x"}]}
        self.api("create", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "default")
        environment = {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": f"c-{name}",
            "CNI_NETNS": str(place),
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}",
            "PODWIRE_CNI_SOCKET": str(self.root / f"{node}-run" / "cni.sock"),
        }
        annotations = {"podwire.io/network": network}
        runtime = {"io.kubernetes.cri.pod-annotations": annotations}
        conf = {"cniVersion": "1.0.0", "name": "podwire", "runtimeConfig": runtime}
        done = subprocess.run(
            [str(program.path())], env=environment, capture_output=True, check=False, input=msgspec.json.encode(conf)
        )
        return done.returncode, json.loads(done.stdout)

    def attach(self, node: str, name: str, network: str, group: str = "none") -> Pod:
        status, answer = self.add(node, name, network, group)
        assert status == 0, answer
        address = answer["ips"][0]["address"].partition("/")[0]
        ips = {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running"}
        self.api("patch", PODS, name, {"status": ips}, "default", subresource="status")
        return Pod(self.root / "pods" / name, address)

    def service(self, network: str, endpoint: str) -> None:
        ports = [{"port": 8, "protocol": "TCP"}]
        meta = {"name": network, "namespace": "default", "labels": {"kubernetes.io/service-name": network}}
        spec = {"clusterIP": SERVICE[network], "clusterIPs": [SERVICE[network]], "ports": ports}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}
        self.api("create", SERVICES, service, "default")
        piece = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": meta,
            "addressType": "IPv4",
            "endpoints": [{"addresses": [endpoint], "nodeName": "node-2", "conditions": {"ready": True}}],
            "ports": ports,
        }
        self.api("create", ENDPOINTSLICES, piece, "default")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkNodes]:
    if missing := Features().lacks(VlanSegment.feature):
        pytest.skip(missing)
    root = tmp_path_factory.mktemp("networks")
    nodes = NetworkNodes(root)
    try:
        yield nodes
    finally:
        nodes.close()
        for log in root.glob("node*.log"):
            print(log.name, log.read_text()[-3000:])


REFUSED = (errno.EHOSTUNREACH, errno.EAGAIN)
"""The errors of a connection that a node refuses: the kernel limits the rate of ICMP errors."""


def result(pod: Pod, address: str, port: int = 8) -> int:
    """The error number of a connection; 0: it is established, and EAGAIN: there is no answer."""
    with netns.inside(pod.place):
        client = socket.socket()
    with client:
        client.settimeout(1)
        return client.connect_ex((address, port))


def test_services_and_policies_work_in_all_networks(machine: NetworkNodes) -> None:
    a = machine.attach("node-1", "a-blue", "blue")
    friend = machine.attach("node-1", "friend", "blue")
    ends = {network: machine.attach("node-2", f"b-{network}", network) for network in SERVICE}
    for network, pod in ends.items():
        machine.service(network, pod.address)
    with ends["default"].running(SOURCE_REPLY_SERVER), ends["red"].running(SOURCE_REPLY_SERVER):
        assert eventually(lambda: source_seen(a.place, SERVICE["default"])) == a.address, "joined by the contract"
        eventually(lambda: result(a, SERVICE["red"]) == errno.EHOSTUNREACH)
        assert result(a, ends["red"].address) in REFUSED
        assert result(a, ends["default"].address, 9) in REFUSED, "the contract has another port"
    with ends["blue"].running(SOURCE_REPLY_SERVER), ends["default"].running(SOURCE_REPLY_SERVER):
        assert eventually(lambda: source_seen(a.place, SERVICE["blue"])) == a.address
        machine.api("create", NETWORKPOLICIES, ONLY_FRIENDS, "default")
        eventually(lambda: result(a, ends["blue"].address) == errno.EAGAIN)
        assert source_seen(friend.place, ends["blue"].address) == friend.address
        assert result(a, ends["default"].address) == errno.EAGAIN, "the policy narrows the contract down by labels"
        assert source_seen(friend.place, SERVICE["default"]) == friend.address
        assert source_seen(friend.place, SERVICE["blue"]) == friend.address
        assert source_seen(machine.root / "node-2", ends["blue"].address), "its node reaches the pod"
        machine.api("delete", NETWORKPOLICIES, "only-friends", "default")
        eventually(lambda: result(a, ends["blue"].address) == 0)
    facts = json.loads(machine.api("get", NODES, "node-2")["metadata"]["annotations"]["podwire.io/routing-facts"])
    assert [(network["name"], network["vlan"]) for network in facts["networks"]] == [
        ("default", 7),
        ("blue", 101),
        ("red", 102),
    ]


def test_policies_are_contracts_between_endpoint_groups(machine: NetworkNodes) -> None:
    web = machine.attach("node-1", "g-web", "blue", "web")
    batch = machine.attach("node-1", "g-batch", "blue", "batch")
    near = machine.attach("node-2", "g-near", "red", "web")
    plain = machine.attach("node-2", "g-plain", "default", "web")
    db, cache = machine.attach("node-2", "g-db", "red", "db"), machine.attach("node-2", "g-cache", "red", "cache")
    with db.running(WEB_SERVER), cache.running(WEB_SERVER):
        assert [result(pod, db.address, 8080) for pod in (web, batch, near)] == [0, 0, 0]
        policy = documented_policy()
        machine.api("create", NETWORKPOLICIES, policy, "default")
        eventually(lambda: result(batch, db.address, 8080) == errno.EAGAIN)
        assert [result(pod, db.address, 8080) for pod in (web, near)] == [0, 0], "of both networks"
        assert result(plain, db.address, 8080) in REFUSED, "the group has no contract from this network"
        assert result(batch, cache.address, 8080) == 0, "no policy selects this group"
        labels = {"metadata": {"labels": {"group": "web"}}}
        machine.api("patch", PODS, "g-batch", labels, "default")
        eventually(lambda: result(batch, db.address, 8080) == 0)
        labels["metadata"]["labels"]["group"] = "none"
        machine.api("patch", PODS, "g-web", labels, "default")
        eventually(lambda: result(web, db.address, 8080) == errno.EAGAIN)
        machine.api("delete", NETWORKPOLICIES, policy["metadata"]["name"], "default")
        eventually(lambda: result(web, db.address, 8080) == 0)


def test_a_killed_agent_loses_no_packet_of_a_network(machine: NetworkNodes) -> None:
    a, b = machine.attach("node-1", "k-a", "red"), machine.attach("node-2", "k-b", "red")
    eventually(lambda: not machine.drift("node-1"))
    with b.running(ECHO_SERVER):
        talk = Talk(a, b)
        machine.kill("node-1")
        machine.start_agent("node-1")
        eventually(lambda: machine.ready("node-1") and not machine.drift("node-1"), 120)
        assert talk.end() == 0
    status, answer = machine.add("node-1", "k-lost", "green")
    assert (status, answer["code"]) == (1, 7)
    assert answer["msg"] == "annotation podwire.io/network: this node has no pod network 'green'"
    assert answer["details"] == "the pod networks are default, blue, red"


def test_no_packet_leaves_a_network_that_is_removed(machine: NetworkNodes) -> None:
    near, red = machine.attach("node-1", "r-near", "default"), machine.attach("node-1", "r-red", "red")
    blue, far = machine.attach("node-1", "r-blue", "blue"), machine.attach("node-2", "r-far", "default")
    eventually(lambda: not machine.drift("node-1"))
    streams = [Stream(red, near, 0.005), Stream(red, far, 0.005), Stream(red, blue, 0.005)]
    rule = f"1121:\tfrom {red.address} unreachable"
    machine.kill("node-1")
    machine.start_with("node-1", NETWORKS[:1])
    eventually(lambda: rule in inside(machine.root / "node-1", "ip", "rule"), 120)
    eventually(lambda: "10.246.0.0/16" not in inside(machine.root / "node-1", "ip", "rule"), 120)
    eventually(lambda: machine.ready("node-1") and not machine.drift("node-1"), 120)
    machine.kill("node-1")
    machine.start_with("node-1", NETWORKS)
    eventually(lambda: rule not in inside(machine.root / "node-1", "ip", "rule"), 120)
    eventually(lambda: machine.ready("node-1") and not machine.drift("node-1"), 120)
    arrived = [stream.arrived for stream in streams]
    sent = [stream.sent + stream.refused for stream in streams]
    for stream in streams:
        stream.close()
    assert arrived == [0, 0, 0] and min(sent) > 100
