"""The ranges of pods as nodes come and go."""

from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.policy.ranges import ClusterRanges


def node(name: str, address: str, *ranges: str) -> Node:
    return Node(
        metadata=ObjectMeta(name=name),
        spec=NodeSpec(pod_cidrs=ranges),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=address),)),
    )


def test_neighbouring_ranges_are_one_and_families_apart() -> None:
    found = ClusterRanges(("10.0.0.0/8",))
    assert found.ranges == ("10.0.0.0/8",)
    assert found.follow("a", node("a", "192.0.2.1", "10.244.0.0/24", "fd00::/64"))
    assert found.follow("b", node("b", "192.0.2.2", "10.244.1.0/24", "fd00:0:0:1::/64"))
    assert found.ranges == ("10.244.0.0/23", "fd00::/63")
    assert not found.follow("b", node("b", "192.0.2.2", "10.244.1.0/24", "fd00:0:0:1::/64"))
    assert found.follow("b", None)
    assert not found.follow("b", None)
    assert found.ranges == ("10.244.0.0/24", "fd00::/64")


def test_a_configured_range_in_which_nodes_are_is_not_the_pods() -> None:
    found = ClusterRanges(("10.0.0.0/8", "fd00::/48", "nonsense"))
    assert found.follow("a", node("a", "10.1.2.3"))
    assert found.ranges == ("fd00::/48",)
    assert found.follow("a", node("a", "192.0.2.1"))
    assert found.ranges == ("10.0.0.0/8", "fd00::/48")
