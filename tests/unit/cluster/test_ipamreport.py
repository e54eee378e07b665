"""The report of addresses, blocks and leaks, and which blocks may be released."""

from ipaddress import ip_address, ip_network

import pytest
from msgspec.structs import replace

from podwire.cluster.blocks import Block, BlockPool
from podwire.cluster.ipamreport import ClusterAddresses, HeldAddress, HeldRange, releasable, report
from podwire.model.meta import ObjectMeta
from podwire.model.node import POD_BLOCKS, Node
from podwire.model.pod import Pod, PodIP, PodSpec, PodStatus

POOL = BlockPool(name="default", network=ip_network("10.0.0.0/26"), block_size=28)
A = Block(name="a", network=POOL.block(0), pool="default", node="one", confirmed=True)
B = Block(name="b", network=POOL.block(1), pool="default", node="gone", confirmed=True)


def node(name: str, *ranges: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, annotations={POD_BLOCKS: ",".join(ranges)}))


def pod(name: str, address: str, where: str = "one") -> Pod:
    status = PodStatus(phase="Running", pod_ips=(PodIP(ip=address),))
    meta = ObjectMeta(name=name, namespace="shop", uid=f"uid-{name}")
    return Pod(metadata=meta, spec=PodSpec(node_name=where), status=status)


ONE = node("one", "10.0.0.0/28")
WEB = pod("web", "10.0.0.3")
LINES = (
    HeldRange(cidr="10.0.0.0/28", size=13, held=1, cooling=2, lent=3),
    HeldAddress(address="10.0.0.3", pod="shop/web", uid="uid-web"),
)
CLUSTER = ClusterAddresses(pools=(POOL,), blocks=(A,), nodes=(ONE,), pods=(WEB,), agents={"one": LINES})


def test_addresses_blocks_and_pools_are_counted() -> None:
    result = report(CLUSTER)
    assert [(row.name, row.claimed, row.blocks) for row in result.pools] == [("default", 1, 4)]
    (row,) = result.ranges
    assert (row.node, row.cidr, row.pool, row.held, row.free, row.cooling) == ("one", "10.0.0.0/28", "default", 1, 9, 2)
    assert [(row.address, row.pod, row.cidr) for row in result.addresses] == [("10.0.0.3", "shop/web", "10.0.0.0/28")]
    assert result.leaks == ()


def test_agents_that_were_not_asked_leave_numbers_open() -> None:
    result = report(replace(CLUSTER, agents={}))
    assert [(row.held, row.free) for row in result.ranges] == [(None, None)]
    assert [row.address for row in result.addresses] == ["10.0.0.3"]
    assert result.leaks == ()


def test_address_without_a_pod_is_a_leak() -> None:
    stale = HeldAddress(address="10.0.0.4", pod="shop/old", uid="uid-old")
    assert report(replace(CLUSTER, agents={"one": (*LINES, stale)})).leaks == (
        "10.0.0.4 on one: held for the pod shop/old, which does not exist",
    )


def test_pod_without_a_held_address_is_reported() -> None:
    result = report(replace(CLUSTER, pods=(WEB, pod("lost", "10.0.0.9"))))
    assert result.leaks == ("10.0.0.9 on one: the pod shop/lost has it, and the agent does not hold it",)


def test_static_pods_are_known_by_their_names() -> None:
    line = HeldAddress(address="10.0.0.3", pod="shop/web", uid="another")
    assert report(replace(CLUSTER, agents={"one": (line,)})).leaks == ()


def test_blocks_and_loans_of_missing_nodes_are_leaks() -> None:
    lent = replace(A, lent={ip_address("10.0.0.5"): "gone", ip_address("10.0.0.6"): "one"})
    orphan = replace(B, name="c", network=POOL.block(2), node="", pool="other")
    assert report(replace(CLUSTER, blocks=(orphan, B, lent))).leaks == (
        "10.0.0.5 of block 10.0.0.0/28: lent to gone, which does not exist",
        "block 10.0.0.16/28: its node gone does not exist",
        "block 10.0.0.32/28: no node has it, and 0 addresses of it are lent",
        "block 10.0.0.32/28: there is no valid IPPool other",
    )


@pytest.mark.parametrize(
    ("block", "pods", "reason"),
    [
        (A, (), "node one has it"),
        (replace(B, lent={ip_address("10.0.0.20"): "one"}), (), "lent to one"),
        (B, (pod("web", "10.0.0.20"),), "the pod shop/web has an address of it"),
    ],
)
def test_block_in_use_is_not_releasable(block: Block, pods: tuple[Pod, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        releasable(replace(CLUSTER, blocks=(block,), pods=pods), str(block.network))


def test_block_that_nobody_uses_is_releasable() -> None:
    assert releasable(replace(CLUSTER, blocks=(A, B)), "10.0.0.16/28") is B
    with pytest.raises(ValueError, match="no IPAMBlock has the range"):
        releasable(CLUSTER, "10.0.0.48/28")
