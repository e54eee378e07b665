"""The ranges of pods as nodes come and go."""

import random
from ipaddress import collapse_addresses, ip_network

import pytest

from podwire.cluster.ranges import ClusterRanges
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus


def node(name: str, address: str, *ranges: str) -> Node:
    return Node(
        metadata=ObjectMeta(name=name),
        spec=NodeSpec(pod_cidrs=ranges),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=address),)),
    )


def test_neighbouring_ranges_are_one_and_families_apart() -> None:
    cluster_ranges = ClusterRanges(("10.0.0.0/8",))
    assert list(cluster_ranges.ranges) == ["10.0.0.0/8"]
    cluster_ranges.follow("a", node("a", "192.0.2.1", "10.244.0.0/24", "fd00::/64"))
    cluster_ranges.follow("b", node("b", "192.0.2.2", "10.244.1.0/24", "fd00:0:0:1::/64"))
    assert list(cluster_ranges.ranges) == ["10.244.0.0/23", "fd00::/63"]
    cluster_ranges.follow("b", node("b", "192.0.2.2", "10.244.1.0/24", "fd00:0:0:1::/64"))
    assert list(cluster_ranges.ranges) == ["10.244.0.0/23", "fd00::/63"]
    cluster_ranges.follow("b", None)
    assert list(cluster_ranges.ranges) == ["10.244.0.0/24", "fd00::/64"]
    cluster_ranges.follow("b", None)
    cluster_ranges.follow("a", None)
    assert list(cluster_ranges.ranges) == ["10.0.0.0/8"]


def test_configured_range_that_contains_nodes_is_no_pod_range() -> None:
    cluster_ranges = ClusterRanges(("10.0.0.0/8", "fd00::/48", "nonsense"))
    cluster_ranges.follow("a", node("a", "10.1.2.3"))
    assert list(cluster_ranges.ranges) == ["fd00::/48"]
    cluster_ranges.follow("a", node("a", "192.0.2.1"))
    assert list(cluster_ranges.ranges) == ["10.0.0.0/8", "fd00::/48"]
    cluster_ranges.configure(("10.8.0.0/16",))
    assert list(cluster_ranges.ranges) == ["10.8.0.0/16"]


def test_everything_is_a_range_too() -> None:
    cluster_ranges = ClusterRanges()
    cluster_ranges.follow("a", node("a", "192.0.2.1", "128.0.0.0/1", "nonsense", "::/1", "8000::/1"))
    assert list(cluster_ranges.ranges) == ["128.0.0.0/1", "::/0"]
    cluster_ranges.follow("b", node("b", "192.0.2.2", "0.0.0.0/1"))
    assert list(cluster_ranges.ranges) == ["0.0.0.0/0", "::/0"]
    cluster_ranges.follow("c", node("c", "192.0.2.3", "10.0.0.0/8"))
    cluster_ranges.follow("b", None)
    assert list(cluster_ranges.ranges) == ["10.0.0.0/8", "128.0.0.0/1", "::/0"]


@pytest.mark.parametrize("seed", range(8))
def test_as_if_all_were_collapsed_anew(seed: int) -> None:
    rng = random.Random(seed)
    cluster_ranges = ClusterRanges()
    nodes: dict[str, tuple[str, ...]] = {}

    def random_network(version: int) -> str:
        # A range of sixteen addresses, cut into pieces that often are neighbours, in each other, or equal.
        bits = rng.randint(0, 4)
        number = rng.randrange(1 << bits) << (4 - bits)
        return f"10.0.0.{number}/{28 + bits}" if version == 4 else f"fd00::{number:x}/{124 + bits}"

    for _ in range(120):
        name = f"n{rng.randrange(12)}"
        if name in nodes and rng.random() < 0.4:
            del nodes[name]
            cluster_ranges.follow(name, None)
        else:
            nodes[name] = tuple(random_network(rng.choice((4, 6))) for _ in range(rng.randint(1, 3)))
            cluster_ranges.follow(name, node(name, "192.0.2.1", *nodes[name]))
        every = [ip_network(text) for texts in nodes.values() for text in texts]
        parts = [[item for item in every if item.version == version] for version in (4, 6)]
        collapsed = [network for part in parts for network in collapse_addresses(part)]  # type: ignore[type-var]
        assert cluster_ranges.ranges == tuple(map(str, collapsed))
