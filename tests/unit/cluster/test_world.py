"""Who stands behind an address."""

from pathlib import Path

import msgspec
from tests.cases.policy_table import read_cases

from podwire.cluster.addresses import pod_side_addresses, pods_by_address
from podwire.cluster.world import Party, World
from podwire.model.meta import ObjectMeta, key_of
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.model.pod import Pod, PodSpec, PodStatus
from podwire.model.policy import NetworkPolicy
from podwire.policy.compile import compile_world
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import evaluate

CASES = {case.name: case for case in read_cases(Path(__file__).parents[2] / "cases/policies")}
WORLD = CASES["without a policy everything passes"].world


def test_parties_have_names() -> None:
    names = {address: WORLD.party(address).name for address in ("10.180.0.2", "fd18::2", "192.168.99.2", "203.0.113.9")}
    assert names == {
        "10.180.0.2": "shop/db",
        "fd18::2": "shop/db",
        "192.168.99.2": "node n2",
        "203.0.113.9": "203.0.113.9",
    }
    assert WORLD.party("10.180.0.2").node == "n1"


def test_finished_and_host_network_pods_own_no_address() -> None:
    assert "192.168.99.2" not in pods_by_address(WORLD.pods)
    ended = CASES["a pod that ended is nobody, and its address may be another's"].world
    assert key_of(pods_by_address(ended.pods)["10.180.0.1"].metadata) == "shop/next"


def test_who_owns_an_address_does_not_depend_on_the_order() -> None:
    for name in ("an address that two pods list is that of the one that stays", "without a policy everything passes"):
        pods = CASES[name].world.pods
        assert pods_by_address(pods) == pods_by_address(tuple(reversed(pods)))


def test_namespaces_have_their_name_as_a_label() -> None:
    assert WORLD.labels_of("shop")["kubernetes.io/metadata.name"] == "shop"
    assert WORLD.labels_of("not-there") == {"kubernetes.io/metadata.name": "not-there"}


def test_sidecar_ports_count_and_init_container_ports_do_not() -> None:
    world = CASES["a named port is that of the destination, whatever its number there"].world
    pod = next(pod for pod in world.pods if key_of(pod.metadata) == "blog/web")
    assert [port.name for port in pod.declared_ports] == ["http", "mesh"]


def test_node_is_recognised_by_each_of_its_addresses() -> None:
    listed = (NodeAddress(type="InternalIP", address="192.0.2.1"), NodeAddress(type="Hostname", address="n"))
    node = Node(
        metadata=ObjectMeta(name="n"),
        spec=NodeSpec(pod_cidrs=("10.0.1.0/24", "fd00::/64", "10.0.9.9/32", "nonsense")),
        status=NodeStatus(addresses=listed),
    )
    assert pod_side_addresses(node) == {"10.0.1.0": ("192.0.2.1",), "10.0.1.1": ("192.0.2.1",)}
    pod = Pod(metadata=ObjectMeta(name="p", namespace="a"), status=PodStatus(pod_ip="10.0.1.1"))
    world = World(nodes=(node,))
    assert world.party("10.0.1.1") == Party(address="10.0.1.1", node="n", node_addresses=("192.0.2.1",))
    assert world.party("10.0.1.1").addresses == ("192.0.2.1",)
    assert msgspec.structs.replace(world, pods=(pod,)).party("10.0.1.1").pod == pod
    assert world.party("10.0.1.2") == Party(address="10.0.1.2")


def test_ip_blocks_match_tunnel_traffic_by_the_nodes_status_address() -> None:
    """The reference and the compiler agree on it, and on exceptions."""
    node = Node(
        metadata=ObjectMeta(name="n2"),
        spec=NodeSpec(pod_cidrs=("10.180.1.0/24",)),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address="192.168.99.2"),)),
    )
    here = Pod(
        metadata=ObjectMeta(name="db", namespace="shop"),
        spec=PodSpec(node_name="n1"),
        status=PodStatus(pod_ip="10.180.0.2"),
    )
    for blocks, allowed in (
        ([{"cidr": "192.168.99.2/32"}], True),
        ([{"cidr": "192.168.99.0/24", "except": ["192.168.99.2/32"]}], False),
        ([{"cidr": "10.180.0.0/16"}], False),
        ([{"cidr": "10.180.1.1/32"}], False),
        ([{"cidr": "192.168.99.3/32"}], False),
        ([{"cidr": "0.0.0.0/0", "except": ["10.180.0.0/16"]}], True),
    ):
        spec = {"podSelector": {}, "ingress": [{"from": [{"ipBlock": block} for block in blocks]}]}
        policy = msgspec.convert({"metadata": {"name": "in", "namespace": "shop"}, "spec": spec}, NetworkPolicy)
        world = World(pods=(here,), nodes=(node,), policies=(policy,))
        ends = world.party("10.180.1.1"), world.party("10.180.0.2")
        connection = Connection(source=ends[0], destination=ends[1], protocol="TCP", port=80)
        assert evaluate(world, connection).allowed == allowed, blocks
        created = compile_world(world, "n1")
        (profile,) = created.profiles.values()
        assert profile.at("10.180.1.1").ruling("TCP", 80).accept == allowed, blocks
