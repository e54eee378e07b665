"""Which node a pod of a case goes to."""

import pytest
from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.local.conformance.casefile import Case, CaseFile, CaseStep
from podwire.local.conformance.placing import ClusterNode, Placing, cluster_for, cluster_nodes, labels_to_set
from podwire.local.conformance.stage import CaseNode, CasePod, Stage
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus

ONE = ClusterNode(name="node-1", ranges=("10.244.1.0/24", "fd10::af4:100/120"), addresses=("10.89.0.11", "fd89::b"))
TWO = ClusterNode(name="node-2", ranges=("10.244.0.0/24", "fd10::af4:0/120"), addresses=("10.89.0.12",))


def pod(name: str, address: str, node: str = "", *, host: bool = False) -> CasePod:
    return CasePod(namespace="x", name=name, address=address, node_address=node, host_network=host)


def stage(*pods: CasePod, nodes: tuple[CaseNode, ...] = ()) -> Stage:
    return Stage(namespaces={"x": {}}, pods={item.key: item for item in pods}, nodes=nodes)


def test_a_pod_is_placed_by_its_address() -> None:
    a, b = pod("a", "10.244.0.11"), pod("b", "10.244.1.11")
    placing = Placing(stage(a, b), (ONE, TWO))
    assert (placing.node_of(a).name, placing.node_of(b).name) == ("node-2", "node-1")
    with pytest.raises(ValueError, match=r"10.9.0.1 is in no pod range .*10.244.1.0/24, 10.244.0.0/24"):
        placing.node_of(pod("c", "10.9.0.1"))


def test_host_network_pod_is_placed_with_its_neighbours() -> None:
    near, host = pod("a", "10.244.0.11", "172.18.0.9"), pod("h", "172.18.0.9", "172.18.0.9", host=True)
    other = pod("i", "172.18.0.8", "172.18.0.8", host=True)
    nodes = (CaseNode(address="172.18.0.9", labels={"zone": "a"}), CaseNode(address="172.18.0.8"))
    created = stage(near, host, other, nodes=nodes)
    placing = Placing(created, (ONE, TWO))
    assert (placing.node_of(host).name, placing.node_of(other).name) == ("node-2", "node-1")
    assert labels_to_set(created, placing) == {"node-2": {"zone": "a"}}
    with pytest.raises(ValueError, match="the cluster has 1 node, and"):
        Placing(created, (TWO,)).node_of(other)


def test_nodes_without_a_range_are_left_out() -> None:
    result = cluster_nodes(
        [
            Node(
                metadata=ObjectMeta(name="n2"),
                spec=NodeSpec(pod_cidrs=("10.244.0.0/24",)),
                status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address="10.89.0.12"),)),
            ),
            Node(metadata=ObjectMeta(name="n3")),
            Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(pod_cidr="10.244.1.0/24")),
        ]
    )
    assert [(item.name, item.ranges) for item in result] == [("n1", ("10.244.1.0/24",)), ("n2", ("10.244.0.0/24",))]
    assert (result[1].address(4), result[1].address(6), result[1].owns("10.244.0.9")) == ("10.89.0.12", "", True)


def _file(*created: Stage) -> CaseFile:
    cases = tuple(
        Case(id=f"c{number}", description="", tags=(), initial=item, steps=()) for number, item in enumerate(created)
    )
    return CaseFile(source="f.json", cases=cases)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["10.244.0.11"], (1, ("10.244.0.0/16", "fd10::af4:0/112"))),
        (["10.244.0.11", "10.244.2.40"], (3, ("10.244.0.0/16", "fd10::af4:0/112"))),
        (["192.168.1.7"], (2, ("192.168.0.0/16", "fd10::c0a8:0/112"))),
    ],
    ids=str,
)
def test_a_cluster_has_the_ranges_that_the_cases_need(
    addresses: list[str], expected: tuple[int, tuple[str, str]]
) -> None:
    created = _file(*(stage(pod("a", address)) for address in addresses))
    assert cluster_for([created]) == expected


def test_pods_created_in_steps_count() -> None:
    (case,) = _file(stage(pod("a", "10.244.0.11"))).cases
    step = CaseStep(number=0, actions=(), checks=(), stage=stage(pod("b", "10.244.3.1")))
    file = CaseFile(source="f.json", cases=(replace(case, steps=(step,)),))
    assert cluster_for([file])[0] == 4


@pytest.mark.parametrize("addresses", [["10.244.0.1", "10.245.0.1"], ["10.244.16.1"]], ids=str)
def test_addresses_that_are_too_far_apart_are_refused(addresses: list[str]) -> None:
    created = _file(*(stage(pod("a", address)) for address in addresses))
    with pytest.raises(ConfigError, match=r"f.json: case c\d: pod x/a: .* from 10.244.0.0 to 10.244.15.255"):
        cluster_for([created])


def test_there_are_as_many_nodes_as_a_case_names() -> None:
    nodes = tuple(CaseNode(address=f"172.18.0.{number}") for number in range(3))
    assert cluster_for([_file(stage(nodes=nodes))])[0] == 3


def test_own_ipv6_addresses_make_the_network_of_the_cluster() -> None:
    own = replace(pod("a", "10.244.1.11"), ipv6="fd20::1ff", translate=False)
    assert cluster_for([_file(stage(own))]) == (2, ("10.244.0.0/16", "fd20::/112"))
    with pytest.raises(ConfigError, match="fd20::1ff: expected an address of fd10::af4:100/120, the range of its node"):
        cluster_for([_file(stage(own)), _file(stage(pod("b", "10.244.1.12")))])
    with pytest.raises(ConfigError, match="fd20::2ff: expected an address of fd20::100/120"):
        cluster_for([_file(stage(replace(own, ipv6="fd20::2ff")))])


def test_a_pod_whose_addresses_are_of_two_nodes_is_refused() -> None:
    node = ClusterNode(name="n", ranges=("10.244.1.0/24", "fd20::100/120"), addresses=())
    own = replace(pod("a", "10.244.1.11"), ipv6="fd20::111")
    assert Placing(stage(own), (node,)).node_of(own) == node
    with pytest.raises(ValueError, match=r"fd20::11 is in no pod range of n \(10.244.1.0/24, fd20::100/120\)"):
        Placing(stage(own), (node,)).node_of(replace(own, ipv6="fd20::11"))
