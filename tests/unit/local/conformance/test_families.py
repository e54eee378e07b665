"""IPv4 cases in IPv6."""

from ipaddress import IPv6Network
from typing import Any

import pytest

from podwire.local.conformance.families import embedded, embedded_range, in_families, prefix_of

PREFIX = IPv6Network("fd10::/96")


def test_addresses_and_ranges_are_the_last_bits_of_the_prefix() -> None:
    assert embedded("10.244.2.9", PREFIX) == "fd10::af4:209"
    assert embedded_range("10.244.2.0/24", PREFIX) == "fd10::af4:200/120"
    assert embedded_range("10.244.2.9/28", PREFIX) == "fd10::af4:200/124"
    assert embedded_range("0.0.0.0/0", PREFIX) == "::/0"


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (("10.244.2.0/24", "fd10::af4:200/120"), PREFIX),
        (("fd10::af4:200/120", "10.244.2.0/24"), PREFIX),
        (("10.244.2.0/24", "fd10::af4:300/120"), None),
        (("10.244.2.0/24", "fd10:0:0:1::/64"), None),
        (("10.244.2.0/24",), None),
        (("fd10::af4:200/120",), None),
    ],
    ids=str,
)
def test_the_prefix_of_a_node(ranges: tuple[str, ...], expected: IPv6Network | None) -> None:
    assert prefix_of(ranges) == expected


def test_ranges_of_networkpolicies_stand_side_by_side() -> None:
    block = {"ipBlock": {"cidr": "10.244.2.0/24", "except": ["10.244.2.0/28"]}}
    other = {"ipBlock": {"cidr": "2001:db8::/32"}}
    policy: dict[str, Any] = {
        "kind": "NetworkPolicy",
        "spec": {"ingress": [{"from": [block, {"podSelector": {}}, other]}]},
    }
    six = {"ipBlock": {"cidr": "fd10::af4:200/120", "except": ["fd10::af4:200/124"]}}
    for families, expected in (((4, 6), [block, six]), ((4,), [block]), ((6,), [six])):
        result = in_families(policy, families, PREFIX)
        assert result["spec"]["ingress"] == [{"from": [*expected, {"podSelector": {}}, other]}]
    assert policy["spec"]["ingress"][0]["from"][0] is block


def test_networks_of_cluster_policies_stand_side_by_side_and_once() -> None:
    peer = {"networks": ["10.244.0.17/32", "0.0.0.0/0", "::/0"]}
    policy = {"spec": {"egress": [{"to": [peer, {"namespaces": {"matchLabels": {"networks": "x"}}}]}]}}
    result = in_families(policy, (4, 6), PREFIX)["spec"]["egress"][0]["to"]
    assert result[0] == {"networks": ["10.244.0.17/32", "fd10::af4:11/128", "0.0.0.0/0", "::/0"]}
    assert result[1] == {"namespaces": {"matchLabels": {"networks": "x"}}}
    assert in_families(policy, (6,), PREFIX)["spec"]["egress"][0]["to"][0] == {"networks": ["fd10::af4:11/128", "::/0"]}
