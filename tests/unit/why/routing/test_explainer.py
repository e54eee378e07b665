"""What ``why`` tells of the ways between nodes: by plan, for endpoints of Services, and when they are interrupted."""

import asyncio
import json

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.why.test_question import OBJECTS, Planned, answered, node, pod

from podwire.cluster.world import World
from podwire.model.node import Node
from podwire.routing.settings import RoutingSettings
from podwire.why import answer_text
from podwire.why.answer import Answer, Drift
from podwire.why.cluster import ClusterAccess
from podwire.why.explain import explain
from podwire.why.nodes import NodeAccess
from podwire.why.objects import Collection
from podwire.why.question import TypedQuestion
from podwire.why.registry import EXPLAINERS
from podwire.why.routing.explainer import explain_routing
from podwire.why.routing.planned import NodeRoutes


class Configured(Planned):
    """Nodes with settings of routing; ``lost`` interrupts the ways of one node."""

    def __init__(self, settings: RoutingSettings, parts: frozenset[str] = frozenset(("routing",))) -> None:
        super().__init__()
        self.settings, self.parts, self.lost = settings, parts, ""

    def access(self, name: str) -> NodeAccess:
        return replace(super().access(name), routing=self.settings, parts=self.parts)

    def routes(self, node: Node, peer: Node) -> NodeRoutes:
        routes = super().routes(node, peer)
        if routes.planned is None or node.metadata.name != self.lost:
            return routes
        remaining = replace(routes.desired.network, fdb=())
        return replace(routes, held=replace(routes.desired, network=remaining), drift=(("+", "fdb of the peer"),))

    async def settle(self) -> None:
        return


def ask(nodes: Configured, source: str = "client", target: str = "svc/shop/web") -> Answer:
    asked = TypedQuestion(source=source, target=target)
    return asyncio.run(explain(asked, ClusterAccess(objects=OBJECTS, nodes=nodes)))


def test_the_explainer_is_registered() -> None:
    assert EXPLAINERS.load("routing") is explain_routing


def test_routes_to_an_endpoint_and_back_are_explained() -> None:
    there, back = ask(Configured(RoutingSettings())).routes
    assert json.loads(msgspec.json.encode(there)) == {
        "direction": "request",
        "node": "node-1",
        "peer": "node-2",
        "backend": "vxlan",
        "state": "planned",
        "address": "10.244.2.5",
        "route": "10.244.2.0/24 via 10.244.2.1 dev podwire-vxlan onlink src 10.244.1.1",
        "device": "podwire-vxlan",
        "mtu": 1450,
        "tunnel": {
            "protocol": "VXLAN",
            "id": 4096,
            "port": 8472,
            "source": "192.168.0.1",
            "destination": "192.168.0.2",
            "device": "eth0",
        },
    }
    assert (back.direction, back.node, back.peer, back.address) == ("reply", "node-2", "node-1", "10.244.1.9")


@pytest.mark.parametrize("backend", ["hostgw", "vxlan", "ipip", "geneve", "none", "bgp", "bridge", "vlan"])
def test_each_backend_says_its_own(backend: str) -> None:
    answer = ask(Configured(RoutingSettings(backend=backend)))
    assert [route.backend for route in answer.routes] == [backend] * 2
    text = "\n".join(answer_text.render(answer))
    assert f"route     node-1 to node-2 by {backend}, as it should be" in text
    assert f"back      node-2 to node-1 by {backend}, as it should be" in text
    assumed = any("assumed to be on one subnet" in note for note in answer.notes)
    assert assumed == (backend in ("hostgw", "bridge", "vlan"))
    assert answer.outcome == "forwarded"


def test_a_lost_way_is_the_outcome() -> None:
    nodes = Configured(RoutingSettings())
    nodes.lost = "node-2"
    answer = ask(nodes)
    there, back = answer.routes
    assert (answer.outcome, answer.drifted, there.lost, back.lost) == ("dropped", True, False, True)
    assert back.drift == (Drift(where="routing", sign="+", text="fdb of the peer"),)
    lines = list(answer_text.render(answer))
    outcome = next(line for line in lines if line.startswith("outcome "))
    assert outcome.startswith("outcome   DROPPED replies, between node-2 and node-1: no forwarding entry for ")
    assert "  + fdb of the peer" in lines


def test_no_route_is_explained_on_one_node() -> None:
    assert answered("client", "shop/web-a", "http").routes == ()
    assert answered("client", "external", "443").routes == ()


def test_from_outside_only_the_route_to_the_pod_is_explained() -> None:
    answer = answered("external", "node/node-1", "30080")
    assert [(route.direction, route.node, route.peer) for route in answer.routes] == [("request", "node-1", "node-2")]


def test_node_that_another_program_routes_is_reported() -> None:
    answer = ask(Configured(RoutingSettings(), frozenset(("proxy",))))
    assert {route.backend for route in answer.routes} == {""}
    assert "route     node-1 to node-2, not routed by podwire, as it should be" in list(answer_text.render(answer))


def test_an_address_without_a_pod_has_a_way_too() -> None:
    world = World(
        nodes=tuple(node(f"node-{n}", f"192.168.0.{n}") for n in range(1, 3)),
        pods=(pod("shop/a", "node-1", "10.244.1.9"),),
    )
    answer = asyncio.run(
        explain(
            TypedQuestion(source="shop/a", target="10.244.2.77", port="80"),
            ClusterAccess(objects=Collection(world=world), nodes=Configured(RoutingSettings())),
        )
    )
    assert [route.address for route in answer.routes] == ["10.244.2.77", "10.244.1.9"]
