"""The sets and chains that both nftables modes have."""

import pytest

from podwire.proxy.nft_layout import NftLayout, with_contents
from podwire.proxy.servicemap import NodeFacts
from podwire.state.nft import Element, Table

FACTS = NodeFacts(
    name="n1",
    addresses=("192.168.0.1", "fd00::1"),
    pod_cidrs=("10.0.0.0/16", "fd01::/64"),
    service_cidrs=("10.96.0.0/12", "fd02::/108"),
)


def text(facts: NodeFacts, family: str) -> str:
    frame = NftLayout(family, facts)
    return str(
        Table(
            family=family,
            name="frame",
            chains=(*frame.guards(), *frame.refusals()),
            sets=(*frame.refusing_sets(), *frame.node_sets()),
        ).canonical()
    )


def test_frontends_without_endpoints_are_refused_after_flushes() -> None:
    output = text(FACTS, "ip")
    unserved = output.partition("chain unserved {")[2].partition("}")[0].split("\n\t\t")[1:]
    assert [line.strip() for line in unserved] == [
        "ip daddr @service-cidrs ct status confirmed drop",
        "goto refuse",
    ]
    assert "ip daddr . meta l4proto . th dport vmap @refused-services" in output
    assert "fd0" not in output, "each family has its own"
    assert "192.168" not in text(FACTS, "ip6")


@pytest.mark.parametrize(
    ("facts", "pod", "outside", "to_node"),
    [
        (NodeFacts(name="n1"), "", "fib saddr type != local", "ip daddr @node-addresses"),
        (FACTS, "ip saddr @pod-cidrs", "ip saddr != @pod-cidrs fib saddr type != local", "ip daddr @node-addresses"),
        (
            NodeFacts(name="n1", pod_interface="cni0", node_port_ranges=("0.0.0.0/0",)),
            'iifname "cni0"',
            'iifname != "cni0" fib saddr type != local',
            "fib daddr type local ip daddr @node-port-ranges",
        ),
    ],
)
def test_pods_and_the_node_are_recognized(facts: NodeFacts, pod: str, outside: str, to_node: str) -> None:
    frame = NftLayout("ip", facts)
    assert (frame.pod, frame.outside, frame.to_node) == (pod, outside, to_node)


def test_sets_get_their_elements_and_keep_the_present_ones() -> None:
    frame = NftLayout("ip", FACTS)
    subset = {"cluster-ips": {b"\x0a\x60\x00\x01": Element()}}
    result = {
        with_content.name: with_content
        for with_content in with_contents((*frame.refusing_sets(), *frame.node_sets()), subset)
    }
    assert result["cluster-ips"].elements == subset["cluster-ips"]
    assert result["node-addresses"] == next(
        node_set for node_set in frame.node_sets() if node_set.name == "node-addresses"
    )
    assert not result["guarded-services"].elements
