"""What a Node object says about itself."""

from ipaddress import ip_network

import pytest

from podwire.model.meta import ObjectMeta
from podwire.model.node import ZONE_LABEL, Node, NodeSpec


@pytest.mark.parametrize(
    ("spec", "cidrs"),
    [
        (NodeSpec(pod_cidr="10.0.1.0/24", pod_cidrs=("10.0.1.0/24", "fd00:1::/64")), ("10.0.1.0/24", "fd00:1::/64")),
        (NodeSpec(pod_cidr="10.0.1.0/24"), ("10.0.1.0/24",)),
        (NodeSpec(), ()),
    ],
)
def test_pod_cidrs_fall_back_to_the_single_field(spec: NodeSpec, cidrs: tuple[str, ...]) -> None:
    assert Node(spec=spec).pod_cidrs == cidrs


def test_pod_networks_leave_out_invalid_ranges() -> None:
    node = Node(spec=NodeSpec(pod_cidrs=("10.0.1.7/24", "all of them", "fd00:1::/64")))
    assert node.pod_networks == (ip_network("10.0.1.0/24"), ip_network("fd00:1::/64"))


def test_zone_is_empty_without_the_label() -> None:
    assert Node().zone == ""
    assert Node(metadata=ObjectMeta(labels={ZONE_LABEL: "north"})).zone == "north"
