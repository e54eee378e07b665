"""Blocks of addresses."""

import msgspec
import pytest
from tests.unit.policy.check.clusters import findings_of, ids, index, policy

from podwire.model.policy import NetworkPolicy
from podwire.policy.check.blocks import check
from podwire.policy.check.context import ClusterDetails, ClusterIndex

_OUT = "podSelector: {matchLabels: {app: db}}, policyTypes: [Egress], egress: [{to: [%s]}]"
_AT = "spec.egress[0].to[0].ipBlock"


@pytest.mark.parametrize(
    ("cidr", "kind", "text"),
    [
        ("10.96.0.0/24", "block-of-services", "10.96.0.0/24 is addresses of Services"),
        ("10.96.0.80/32", "block-of-services", "the address of Service shop/web"),
        ("10.244.0.2/32", "block-of-one-pod", "pod shop/web now"),
    ],
)
def test_blocks_with_addresses_of_services_or_pods(cidr: str, kind: str, text: str) -> None:
    result = findings_of(check, policy("shop/p", _OUT % f"{{ipBlock: {{cidr: {cidr}}}}}"))
    assert [item[:2] for item in result] == [(kind, f"{_AT}.cidr")]
    assert text in result[0][2]


def test_blocks_without_findings() -> None:
    for text in ("cidr: 192.0.2.0/24", "cidr: 10.0.0.0/8, except: [10.96.0.0/16]", "cidr: 10.244.0.0/16"):
        assert ids(check, policy("shop/p", _OUT % f"{{ipBlock: {{{text}}}}}")) == []


def test_addresses_of_pods() -> None:
    subset = policy("shop/p", _OUT % "{ipBlock: {cidr: 10.244.0.0/25}}")
    assert ids(check, subset, pod_cidrs=("10.244.0.0/24",)) == [("block-of-pods", f"{_AT}.cidr")]
    assert ids(check, subset, pod_cidrs=("10.244.1.0/24",)) == []
    assert ids(check, subset, pod_cidrs=("10.244.0.0/24",), assumed_addresses=True) == []


def test_block_of_one_family_for_dual_stack_pods() -> None:
    item = policy("shop/p", _OUT % "{ipBlock: {cidr: 0.0.0.0/0}}")
    both = policy("shop/p", _OUT % '{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: "::/0"}}')
    assert ids(check, item) == [("one-family", _AT)]
    assert ids(check, both) == []
    assert ids(check, item, assumed_addresses=True) == []


def index_with_stored_block(block: dict[str, object]) -> ClusterIndex:
    """With a policy that an API server took before it looked at blocks."""
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": block}]}]}
    old = msgspec.convert({"metadata": {"name": "old", "namespace": "shop"}, "spec": spec}, NetworkPolicy)
    return ClusterIndex(msgspec.structs.replace(index().world, policies=(old,)), ClusterDetails())


@pytest.mark.parametrize(
    ("block", "kind", "field"),
    [
        ({"cidr": "192.0.2.7/24"}, "host-bits", f"{_AT}.cidr"),
        ({"cidr": "192.0.2.0/24", "except": ["198.51.100.0/24"]}, "except-outside", f"{_AT}.except[0]"),
        ({"cidr": "192.0.2.0/24", "except": ["192.0.0.0/16"]}, "except-outside", f"{_AT}.except[0]"),
        ({"cidr": "192.0.2.0/24", "except": ["192.0.2.9/30"]}, "host-bits", f"{_AT}.except[0]"),
        ({"cidr": "192.0.2.0/24", "except": ["x"]}, "no-address", f"{_AT}.except[0]"),
        ({"cidr": "192.0.2"}, "no-address", f"{_AT}.cidr"),
    ],
)
def test_malformed_ranges_that_old_api_servers_accepted(block: dict[str, object], kind: str, field: str) -> None:
    assert [(item.id, item.field) for item in check(index_with_stored_block(block))] == [(kind, field)]


def test_networks_of_a_cluster_policy() -> None:
    out = policy("p", "egress: [{action: Deny, to: [{networks: [10.96.0.0/16]}]}]")
    assert ids(check, out) == [("block-of-services", "spec.egress[0].to[0].networks[0]")]
