"""What ``why`` says of pod networks: the same one, two with and without a contract, and endpoints of Services."""

import asyncio
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.unit.why.test_question import OBJECTS, Planned, pod, service

from podwire.cluster.names import NODE_ROUTING_FACTS
from podwire.cluster.podnetworks import NodePodNetwork
from podwire.cluster.world import World
from podwire.model.node import Node
from podwire.model.service import EndpointSlice
from podwire.routing.backends.vlan.options import VlanOptions, VlanSection
from podwire.routing.podnetworks import Contract, PodNetworkSection
from podwire.routing.settings import RoutingSettings
from podwire.why import answer_text
from podwire.why.answer import Answer
from podwire.why.cluster import ClusterAccess
from podwire.why.explain import explain
from podwire.why.networks.explainer import explain_networks
from podwire.why.nodes import NodeAccess
from podwire.why.objects import Collection
from podwire.why.question import TypedQuestion
from podwire.why.registry import EXPLAINERS

NETWORKS = (
    PodNetworkSection(name="blue", id=101, cidrs=("10.245.0.0/16",)),
    PodNetworkSection(name="red", id=102, cidrs=("10.246.0.0/16",)),
)
WEB = Contract(name="web", consumer="blue", provider="red", ports=("TCP/8080",))


def node(number: int) -> Node:
    networks = [
        NodePodNetwork("default", 7, (f"10.244.{number}.0/24",)),
        NodePodNetwork("blue", 101, (f"10.245.{number}.0/24",)),
        NodePodNetwork("red", 102, (f"10.246.{number}.0/24",)),
    ]
    facts = {
        "backend": "vlan",
        "receives": ["vlan"],
        "vlan": {"mac": f"02:00:00:00:00:0{number}"},
        "networks": networks,
    }
    body: dict[str, Any] = {
        "metadata": {
            "name": f"node-{number}",
            "annotations": {NODE_ROUTING_FACTS: msgspec.json.encode(facts).decode()},
        },
        "spec": {"podCIDRs": [f"10.244.{number}.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": f"192.168.0.{number}"}]},
    }
    return msgspec.convert(body, Node)


ENDPOINTS: dict[str, Any] = {
    "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "", "port": 8080}],
    "endpoints": [{"addresses": ["10.246.2.5"], "nodeName": "node-2", "conditions": {"ready": True}}],
}
CLUSTER = Collection(
    services=(service("shop/web", {"port": 80}, clusterIP="10.96.0.10", clusterIPs=["10.96.0.10"]),),
    slices=(msgspec.convert(ENDPOINTS, EndpointSlice),),
    world=World(
        pods=(
            pod("shop/a", "node-1", "10.245.1.9"),
            pod("shop/b", "node-2", "10.245.2.9"),
            pod("shop/red", "node-2", "10.246.2.5"),
            pod("shop/plain", "node-1", "10.244.1.9"),
        ),
        nodes=(node(1), node(2)),
    ),
)


class Configured(Planned):
    """Nodes with pod networks and contracts."""

    def __init__(self, *contracts: Contract) -> None:
        super().__init__()
        section = VlanSection(id=7, networks=NETWORKS, contracts=contracts)
        self.settings = RoutingSettings(backend="vlan", options={"vlan": VlanOptions(vlan=section)})

    def access(self, name: str) -> NodeAccess:
        cidrs = ("10.244.0.0/16",)
        return replace(super().access(name), routing=self.settings, cluster_cidrs=cidrs, parts=frozenset(("routing",)))

    async def settle(self) -> None:
        return


def ask(target: str, port: str = "", *contracts: Contract, source: str = "shop/a") -> Answer:
    asked = TypedQuestion(source=source, target=target, port=port)
    return asyncio.run(explain(asked, ClusterAccess(objects=CLUSTER, nodes=Configured(*contracts))))


def test_the_networks_explainer_is_registered() -> None:
    assert EXPLAINERS.load("networks") is explain_networks


def test_ends_of_one_network_are_named_with_its_vlan() -> None:
    answer = ask("shop/b", "8080")
    assert [finding.message for finding in answer.findings] == ["both ends are in the pod network blue (VLAN 101)"]
    there, back = answer.routes
    assert (there.network, there.device, there.missing) == ("blue (VLAN 101)", "podwire-v101", ())
    assert (back.network, back.device, back.address) == ("blue (VLAN 101)", "podwire-v101", "10.245.1.9")
    text = "\n".join(answer_text.render(answer))
    assert "route     node-1 to node-2 by vlan, network blue (VLAN 101), as it should be" in text


def test_networks_without_a_contract_refuse_the_packet() -> None:
    for answer, port in ((ask("shop/red", "8080"), 8080), (ask("svc/shop/web"), 8080), (ask("shop/red", "9", WEB), 9)):
        assert (answer.outcome, answer.routes) == ("refused", ())
        text = "\n".join(answer_text.render(answer))
        assert (
            "outcome   REFUSED by networks: 10.246.2.5 is in the pod network red (VLAN 102), and the client in blue "
            f"(VLAN 101); no contract joins them for TCP/{port}, so node-1 refuses the packet by "
            "10.246.0.0/16 type unreachable table 20101"
        ) in text


def test_a_contract_joins_the_networks_of_a_service() -> None:
    answer = ask("svc/shop/web", "", WEB)
    assert answer.outcome == "forwarded"
    message = "from the pod network blue (VLAN 101) to red (VLAN 102), joined by the contract web"
    assert [finding.message for finding in answer.findings] == [message]
    assert answer.routes[0].network == "red (VLAN 102)"
    assert ask("shop/a", "8080", WEB, source="shop/red").outcome == "refused", "the provider begins no connection"


def test_clusters_with_one_network_say_nothing_of_networks() -> None:
    asked = TypedQuestion(source="client", target="svc/shop/web")
    answer = asyncio.run(explain(asked, ClusterAccess(objects=OBJECTS, nodes=Planned())))
    assert not answer.findings
    assert not any(route.network for route in answer.routes)
