"""What ``podwire why`` says of an address of a load balancer: its pool, and the nodes that announce it."""

import asyncio
from typing import Any

import msgspec
import pytest

from podwire.cluster.world import World
from podwire.model.metallb import BgpAdvertisement, IpAddressPool, L2Advertisement, MetalLbPeer
from podwire.model.node import Node
from podwire.model.service import EndpointSlice, Service
from podwire.why.answer import Answer, ConnectionEnd
from podwire.why.cluster import ClusterAccess
from podwire.why.loadbalancer.explainer import explain_balancers
from podwire.why.objects import BalancerObjects, Collection
from podwire.why.question import Question


def made(kind: type[Any], name: str, **fields: Any) -> Any:
    metadata = {"name": name, "namespace": "shop"} | fields.pop("metadata", {})
    return msgspec.convert({"metadata": metadata} | fields, kind)


NODES = tuple(
    made(Node, f"node-{n}", status={"addresses": [{"type": "InternalIP", "address": f"10.89.0.1{n}"}]}) for n in (1, 2)
)
SERVICE = made(
    Service,
    "web",
    metadata={"annotations": {"metallb.io/ip-allocated-from-pool": "p"}},
    spec={"type": "LoadBalancer", "clusterIP": "10.96.0.1"},
    status={"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
)
POOL = made(IpAddressPool, "p", spec={"addresses": ["192.0.2.0/24"]})
L2 = made(L2Advertisement, "l2")
BGP = made(BgpAdvertisement, "bgp")
PEER = made(MetalLbPeer, "tor", spec={"myASN": 1, "peerASN": 2, "peerAddress": "10.89.0.1"})
SPEAKERS = ("node-1", "node-2")


def explained(serving: tuple[str, ...] = ("node-2",), target: str = "192.0.2.1", **objects: Any) -> list[str]:
    end = ConnectionEnd(kind="External", address=target, port=80)
    source = ConnectionEnd(kind="External", address="198.51.100.1")
    question = Question(source=source, target=end, protocol="tcp", node=NODES[0], on_node=False)
    answer = Answer(source=source, target=end, protocol="TCP", outcome="untouched", hops=())
    endpoints = [{"addresses": ["10.244.0.1"], "nodeName": node} for node in serving]
    labels = {"kubernetes.io/service-name": "web"}
    slices = [made(EndpointSlice, "web-1", metadata={"labels": labels}, endpoints=endpoints)]
    balancers = BalancerObjects(**({"pools": (POOL,), "speakers": SPEAKERS} | objects))
    collection = Collection((SERVICE,), slices, World(nodes=NODES), balancers=balancers)
    access = ClusterAccess(objects=collection, nodes=None)  # type: ignore[arg-type]
    return [finding.message for finding in asyncio.run(explain_balancers(question, answer, access)).findings]


def test_pool_and_answering_node_are_named() -> None:
    messages = explained(l2_advertisements=(L2,), holders={"192.0.2.1": "node-1"})
    assert messages[0] == "192.0.2.1 of Service shop/web comes from IPAddressPool p"
    assert len(messages) == 2
    assert "ARP for 192.0.2.1: lowest hash of the candidates node-1, node-2" in messages[1]


@pytest.mark.parametrize(
    ("holder", "words"),
    [("node-1", "answers ARP"), ("node-2", "; node-2 still holds it"), ("", "; it does not hold it yet")],
)
def test_the_holder_may_differ_from_the_choice(holder: str, words: str) -> None:
    only = made(Node, "node-1")
    (_, message) = explained(l2_advertisements=(L2,), holders={"192.0.2.1": holder}, speakers=(only.metadata.name,))
    assert "node node-1 " in message and words in message


def test_the_reason_is_named_when_nobody_answers() -> None:
    (_, message) = explained((), l2_advertisements=(L2,))
    assert message == "no node answers ARP for 192.0.2.1: no endpoint of the Service serves"
    (_, message) = explained()
    assert message == "no L2Advertisement and no BGPAdvertisement announces 192.0.2.1"


def test_nodes_that_announce_by_bgp_are_named() -> None:
    (_, message) = explained(bgp_advertisements=(BGP,), peers=(PEER,))
    assert message == "node-1, node-2 announce 192.0.2.1/32 to BGPPeer tor"
    high = made(BgpAdvertisement, "high", spec={"localPref": 9})
    (_, message) = explained(bgp_advertisements=(BGP, high), peers=(PEER,))
    assert message == "192.0.2.1/32 is not announced to BGPPeer tor: advertisements ask for localPref 0 and 9"


def test_other_addresses_have_no_finding() -> None:
    assert explained(target="192.0.2.9") == explained(target="10.96.0.1") == []
