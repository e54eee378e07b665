"""When a node of a local cluster serves."""

from podwire.cluster.names import NODE_POLICY, NODE_PROXY, NODE_ROUTING
from podwire.local.serving import lacking

NODES = ("node-1", "node-2")
KNOWN = {"nodes": {"node-1": "5", "node-2": "7"}}
ANNOUNCED = {NODE_ROUTING: "vxlan", NODE_PROXY: "nftables", NODE_POLICY: "nftables"}


def test_a_node_that_knows_all_and_announces_all_serves() -> None:
    assert lacking({"routing": KNOWN, "proxy": {}, "policy": KNOWN}, ANNOUNCED, NODES) == ""


def test_a_busy_part_is_named() -> None:
    assert lacking({"routing": KNOWN, "proxy": None}, ANNOUNCED, NODES) == "proxy is being programmed"


def test_a_node_that_another_does_not_know_is_named() -> None:
    parts = {"routing": {"nodes": {"node-1": "5"}}}
    assert lacking(parts, ANNOUNCED, NODES) == "routing does not know node-2 yet"


def test_a_data_plane_that_is_not_announced_is_named() -> None:
    announced = {NODE_ROUTING: "vxlan"}
    assert lacking({"routing": KNOWN, "proxy": {}}, announced, NODES) == "proxy is not announced yet"


def test_an_agent_without_parts_has_not_begun() -> None:
    assert lacking({}, ANNOUNCED, NODES) == "no part has begun"
