"""The ways between nodes below the results of a probe, planned for nodes whose kernels are not read."""

import json

from msgspec.structs import replace
from tests.unit.why.test_question import Planned, node, pod

from podwire.cluster.names import NODE_ROUTING_FACTS
from podwire.cluster.world import World
from podwire.errors import ClusterError
from podwire.local.probe.plan import HOST, Attempt, PacketSource, ProbeInputs, ProbePort
from podwire.local.probe.result import NodePair, ProbeResult
from podwire.local.probe.routes import pairs, read_routes
from podwire.model.node import Node
from podwire.why.routing.planned import NodeRoutes

NODES = (node("node-1", "10.0.0.1"), node("node-2", "10.0.0.2"))
PODS = (pod("shop/web", "node-1", "10.244.1.5"), pod("shop/db", "node-2", "10.244.2.5"))
INPUTS = ProbeInputs(pods=PODS, services=(), world=World(pods=PODS, nodes=NODES))
WEB = PacketSource(name="shop/web", node="node-1")
FAR_NETWORKS = (("default", 7, "10.244.2.0/24"), ("blue", 101, "10.245.2.0/24"))


def result(source: PacketSource, target: str, address: str, answered_by: str = "") -> ProbeResult:
    attempt = Attempt(source, target, address, ProbePort(80))
    return ProbeResult(attempt, reached=bool(answered_by), answered_by=answered_by)


def test_connections_between_nodes_are_one_pair_for_each_direction() -> None:
    back = PacketSource(name="shop/db", node="node-2")
    results = pairs(
        [
            result(WEB, "shop/db", "10.244.2.5"),
            result(WEB, "svc/shop/db", "db.shop", "shop/db"),
            result(WEB, "shop/web", "10.244.1.5"),
            result(PacketSource(name=HOST), "shop/db", "10.244.2.5"),
            result(back, "svc/shop/web", "web.shop", "shop/web"),
            result(back, "svc/shop/away", "away.shop"),
        ],
        INPUTS,
    )
    assert {pair: str(address) for pair, address in results.items()} == {
        NodePair("node-1", "node-2"): "10.244.2.5",
        NodePair("node-2", "node-1"): "10.244.1.5",
    }


def test_routes_name_backend_device_and_tunnel() -> None:
    routes = read_routes(pairs([result(WEB, "shop/db", "10.244.2.5")], INPUTS), INPUTS, Planned())
    first, *rest = routes.text().splitlines()
    assert first == "route     node-1 to node-2 by vxlan, as it should be"
    assert any("podwire.vxlan" in line or "VXLAN" in line for line in rest), rest
    (line,) = map(json.loads, routes.as_json().splitlines())
    assert (line["nodeRoute"]["backend"], line["nodeRoute"]["peer"]) == ("vxlan", "node-2")


class Unreadable(Planned):
    def routes(self, node: Node, peer: Node) -> NodeRoutes:
        raise ClusterError(f"node {node.metadata.name} does not run")


def test_nodes_that_cannot_be_read_leave_a_note() -> None:
    routes = read_routes(pairs([result(WEB, "shop/db", "10.244.2.5")], INPUTS), INPUTS, Unreadable())
    assert routes.text() == "note: the route from node-1 to node-2 is not known: node node-1 does not run"
    assert routes.as_json() == ""


def test_each_pod_network_has_a_route_of_its_own() -> None:
    networks = [{"name": name, "vlan": vlan, "cidrs": [cidr]} for name, vlan, cidr in FAR_NETWORKS]
    facts = {"backend": "vlan", "networks": networks}
    annotations = {NODE_ROUTING_FACTS: json.dumps(facts)}
    far = next(node for node in INPUTS.world.nodes if node.metadata.name == "node-2")
    joined = replace(far, metadata=replace(far.metadata, annotations=annotations))
    blue = pod("shop/blue", "node-2", "10.245.2.5")
    nodes = tuple(joined if node is far else node for node in INPUTS.world.nodes)
    inputs = replace(INPUTS, pods=(*INPUTS.pods, blue), world=replace(INPUTS.world, nodes=nodes))
    crossed = pairs([result(WEB, "shop/db", "10.244.2.5"), result(WEB, "shop/blue", "10.245.2.5")], inputs)
    assert {pair: str(address) for pair, address in crossed.items()} == {
        NodePair("node-1", "node-2", "default (VLAN 7)"): "10.244.2.5",
        NodePair("node-1", "node-2", "blue (VLAN 101)"): "10.245.2.5",
    }
    text = read_routes(crossed, inputs, Planned()).text()
    assert "node-1 to node-2 by vxlan, network blue (VLAN 101)" in text
