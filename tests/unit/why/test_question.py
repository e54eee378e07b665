"""From words to questions and answers, with objects in memory."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.fakes.clock import FakeClock

from podwire.cluster.world import World
from podwire.errors import ClusterError, ConfigError
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service
from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.state.nft_text import parse_table
from podwire.trace.nft import Tracer
from podwire.trace.packet import Packet
from podwire.why.answer import Answer
from podwire.why.cluster import ClusterAccess
from podwire.why.explain import explain
from podwire.why.kernels import NodeKernels
from podwire.why.nodes import NodeAccess
from podwire.why.objects import Collection, concerns
from podwire.why.question import Question, TypedQuestion, resolve_question
from podwire.why.services.hop import ServiceRules


def node(name: str, *addresses: str, ready: bool = True) -> Node:
    status = {
        "addresses": [{"type": "InternalIP", "address": address} for address in addresses],
        "conditions": [{"type": "Ready", "status": str(ready)}],
    }
    labels = {"topology.kubernetes.io/zone": f"z{name[-1]}"}
    spec = {"podCIDRs": [f"10.244.{name[-1]}.0/24"]}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}, Node)


def pod(name: str, on: str, *addresses: str, **spec: Any) -> Pod:
    namespace, _, short = name.partition("/")
    body = {
        "metadata": {"namespace": namespace, "name": short, "labels": {"app": short.partition("-")[0]}},
        "spec": {"nodeName": on, "containers": [], **spec},
        "status": {"phase": "Running", "podIPs": [{"ip": address} for address in addresses]},
    }
    return msgspec.convert(body, Pod)


def service(name: str, *ports: dict[str, Any], ingress: tuple[str, ...] = (), **spec: Any) -> Service:
    namespace, _, short = name.partition("/")
    body = {
        "metadata": {"namespace": namespace, "name": short},
        "spec": {"ports": list(ports), **spec},
        "status": {"loadBalancer": {"ingress": [{"ip": address} for address in ingress]}},
    }
    return msgspec.convert(body, Service)


def piece(of: str, on: str, *addresses: str, **conditions: bool) -> EndpointSlice:
    namespace, _, short = of.partition("/")
    labels = {"kubernetes.io/service-name": short}
    if short in ("headless", "unready"):
        labels["service.kubernetes.io/headless"] = ""
    body = {
        "metadata": {"namespace": namespace, "name": f"{short}-1", "labels": labels},
        "addressType": "IPv6" if ":" in addresses[0] else "IPv4",
        "ports": [{"name": "http" if short == "headless" else "", "port": 8080}],
        "endpoints": [{"addresses": [a], "nodeName": on, "conditions": conditions} for a in addresses],
    }
    return msgspec.convert(body, EndpointSlice)


WEB = service(
    "shop/web",
    {"port": 80, "nodePort": 30080},
    type="NodePort",
    clusterIP="10.96.0.10",
    clusterIPs=["10.96.0.10", "fd96::10"],
)
DNS = service(
    "kube-system/dns",
    {"name": "dns", "port": 53, "protocol": "UDP"},
    {"name": "dns-tcp", "port": 53},
    {"name": "metrics", "port": 9153},
    clusterIP="10.96.0.11",
)
BALANCED = service("shop/lb", {"port": 443}, type="LoadBalancer", clusterIP="10.96.0.12", ingress=("203.0.113.8",))
PORTS = [
    {"name": "http", "containerPort": 8080},
    {"name": "dns", "containerPort": 53, "protocol": "UDP"},
    {"name": "dns-tcp", "containerPort": 53},
]
OBJECTS = Collection(
    services=(
        WEB,
        DNS,
        BALANCED,
        service("shop/out", {"port": 443}, clusterIP="10.96.0.13"),
        service("shop/headless", {"name": "http", "port": 80}, clusterIP="None"),
        service("shop/unready", {"port": 80}, clusterIP="None"),
        service("shop/alias", type="ExternalName", externalName="example.com"),
    ),
    slices=(
        piece("shop/web", "node-2", "10.244.2.5"),
        piece("shop/web", "node-2", "fd44::5"),
        piece("shop/out", "", "192.168.0.77"),
        piece("shop/headless", "node-1", "10.244.1.5"),
        piece("shop/headless", "node-2", "10.244.2.5", ready=False),
        piece("shop/headless", "node-2", "10.244.2.5", ready=False, terminating=True),
        piece("shop/unready", "node-2", "10.244.2.5", ready=False),
    ),
    world=World(
        pods=(
            pod("shop/web-b", "node-2", "10.244.2.5"),
            pod("shop/web-a", "node-1", "10.244.1.5", "fd44::15", containers=[{"name": "c", "ports": PORTS}]),
            pod("shop/host", "node-1", "192.168.0.1", hostNetwork=True),
            pod("shop/waiting", ""),
            pod("default/client", "node-1", "10.244.1.9"),
        ),
        nodes=(
            node("node-2", "192.168.0.2", "fd89::2"),
            node("node-1", "192.168.0.1", "fd89::1"),
            node("bare", "none"),
        ),
    ),
)


def posed(source: str, target: str, port: str = "", **more: Any) -> Question:
    return asyncio.run(resolve_question(TypedQuestion(source=source, target=target, port=port, **more), OBJECTS))


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (("client", "svc/shop/web"), "10.244.1.9 10.96.0.10:80/tcp node-1"),
        (("shop/web-a", "svc/web"), "10.244.1.5 10.96.0.10:80/tcp node-1"),
        (("shop/web-a", "web"), "10.244.1.5 10.96.0.10:80/tcp node-1"),
        (("shop/web", "web.shop.svc"), "10.244.1.5 10.96.0.10:80/tcp node-1"),
        (("shop/app=web", "web.shop"), "10.244.1.5 10.96.0.10:80/tcp node-1"),
        (("10.244.2.5", "10.96.0.10"), "10.244.2.5 10.96.0.10:80/tcp node-2"),
        (("shop/host", "10.96.0.10:80"), "192.168.0.1 10.96.0.10:80/tcp node-1"),
        (("node/node-2", "svc/shop/web"), "192.168.0.2 10.96.0.10:80/tcp node-2"),
        (("node-2", "svc/shop/web"), "192.168.0.2 10.96.0.10:80/tcp node-2"),
        (("192.168.0.2", "svc/shop/web"), "192.168.0.2 10.96.0.10:80/tcp node-2"),
        (("node/node-2", "127.0.0.1:30080"), "127.0.0.1 127.0.0.1:30080/tcp node-2"),
        (("client", "svc/kube-system/dns:dns"), "10.244.1.9 10.96.0.11:53/udp node-1"),
        (("client", "svc/kube-system/dns", "53"), "10.244.1.9 10.96.0.11:53/tcp node-1"),
        (("client", "10.96.0.11", "53/UDP"), "10.244.1.9 10.96.0.11:53/udp node-1"),
        (("client", "10.96.0.11", "metrics"), "10.244.1.9 10.96.0.11:9153/tcp node-1"),
        (("client", "svc/shop/web", "81"), "10.244.1.9 10.96.0.10:81/tcp node-1"),
        (("client", "node/node-2", "30080"), "10.244.1.9 192.168.0.2:30080/tcp node-1"),
        (("client", "node-2:30080"), "10.244.1.9 192.168.0.2:30080/tcp node-1"),
        (("client", "pod/shop/web-b", "8080"), "10.244.1.9 10.244.2.5:8080/tcp node-1"),
        (("external", "node/node-2", "30080"), "192.0.2.1 192.168.0.2:30080/tcp node-2"),
        (("203.0.113.77", "192.168.0.2:30080"), "203.0.113.77 192.168.0.2:30080/tcp node-2"),
        (("external", "svc/shop/web"), "192.0.2.1 192.168.0.1:30080/tcp node-1"),
        (("external", "svc/shop/lb"), "192.0.2.1 203.0.113.8:443/tcp node-1"),
        (("client", "svc/shop/lb"), "10.244.1.9 10.96.0.12:443/tcp node-1"),
        (("client", "shop/web-a", "http"), "10.244.1.9 10.244.1.5:8080/tcp node-1"),
        (("client", "shop/web-a:dns"), "10.244.1.9 10.244.1.5:53/udp node-1"),
        (("client", "shop/web-a:80/SCTP"), "10.244.1.9 10.244.1.5:80/sctp node-1"),
        (("client", "10.96.0.11:53/UDP"), "10.244.1.9 10.96.0.11:53/udp node-1"),
    ],
)
def test_from_and_to_resolve_to_addresses_and_ports(arguments: tuple[str, ...], ends: str) -> None:
    result = posed(*arguments)
    target = result.target
    text = f"{result.source.address} {target.address}:{target.port}/{result.protocol} {result.node.metadata.name}"
    assert text == ends


def test_the_family_and_the_node_can_be_chosen() -> None:
    assert posed("shop/web-a", "svc/web", family="ip6").target.address == "fd96::10"
    assert posed("node/node-1", "svc/shop/web", family="ip6").source.address == "fd89::1"
    result = posed("external", "svc/shop/lb", node="node-2")
    assert (result.node.metadata.name, result.notes) == ("node-2", ())
    assert "--node" in posed("external", "svc/shop/lb").notes[0]
    assert "2 pods" in posed("shop/app=web", "web").notes[0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("client", "svc/shop/none"), "no Service none in namespace shop"),
        (
            ("client", "www.example.com"),
            "not the DNS name of a Service, such as .*; for a destination outside the cluster, give",
        ),
        (
            ("client", "example.com:443"),
            "no Service example in namespace com; for a destination outside the cluster, give",
        ),
        (("client", "web.shop:80/UDP", "80/TCP"), "'80/TCP' is not the port in 'web.shop:80/UDP'"),
        (("client", "shop/web-a"), "which port of shop/web-a; it declares http 8080/TCP, dns 53/UDP, dns-tcp 53/TCP"),
        (("client", "shop/web-a", "https"), "shop/web-a has no port 'https'; it declares http 8080/TCP, dns"),
        (("client", "shop/web-b", "http"), "shop/web-b has no port 'http'; it declares none, so give a number"),
        (("client", "0.0.0.0", "80"), "0.0.0.0 is not an address"),
        (("client", "224.0.0.1", "80"), "224.0.0.1 is not an address"),
        (("client", "none/web", "80"), "names no running pod; namespace none has no running pods"),
        (("client", "svc/kube-system/dns"), "dns 53/UDP, dns-tcp 53/TCP, metrics 9153/TCP"),
        (("client", "svc/kube-system/dns:http"), "no port 'http'"),
        (("client", "svc/shop/web:80", "81"), "not the port in"),
        (("client", "10.96.0.99"), "no Service has the address 10.96.0.99"),
        (("client", "127.0.0.1:80"), "the client itself"),
        (("client", "fd96::10"), "FROM and TO do not both have addresses of one family: FROM has .*, TO fd96::10"),
        (("external", "external:443"), "no node sees the connection"),
        (("nobody", "svc/web"), "name a pod of another namespace as NAMESPACE/POD"),
        (("shop/nobody", "svc/web"), "names no running pod; the running pods of namespace shop are host, web-a, web-b"),
        (("node/node-9", "svc/shop/web"), "the nodes are bare, node-1, node-2"),
        (("node/bare", "svc/shop/alias"), "FROM: Node bare has no address"),
        (("external", "svc/shop/lb", "", "node-9"), "--node: there is no node 'node-9'"),
    ],
)
def test_words_that_name_nothing(arguments: tuple[str, ...], problem: str) -> None:
    more = {"node": arguments[3]} if len(arguments) > 3 else {}
    with pytest.raises(ConfigError, match=problem):
        posed(*arguments[:3], **more)


def test_port_of_a_headless_service_is_not_translated() -> None:
    cases = {"svc/headless": 80, "svc/headless:80": 80, "svc/headless:8080": 8080, "svc/headless:http": 8080}
    for word, port in cases.items():
        (hop,) = answered("shop/web-a", word).hops
        assert {end.port for end in hop.endpoints} == {port}, word
        assert ("to port 80 of the pods, not to 8080" in hop.message) == (port == 80), word
    assert posed("shop/web-a", "svc/headless:53/UDP").protocol == "udp"
    with pytest.raises(ConfigError, match="do not both have an IPv6 address"):
        posed("shop/web-a", "svc/headless", family="ip6")


def test_a_headless_service_without_a_ready_endpoint() -> None:
    (hop,) = answered("shop/web-a", "svc/unready").hops
    assert hop.message == "the Service is headless and no endpoint is ready, so DNS answers with no address"


def test_services_that_dns_alone_knows() -> None:
    (hop,) = answered("shop/web-a", "svc/headless").hops
    assert (hop.outcome, hop.reason, hop.mode) == ("untouched", "Headless", "")
    assert [(e.address, e.used, e.reason) for e in hop.endpoints] == [
        ("10.244.1.5", True, "Ready"),
        ("10.244.2.5", False, "NotReady"),
        ("10.244.2.5", False, "Duplicate"),
    ]
    (hop,) = answered("shop/web-a", "svc/alias").hops
    assert (hop.outcome, hop.reason, hop.endpoints) == ("untouched", "ExternalName", ())
    assert "example.com" in hop.message


def test_client_outside_can_be_a_target() -> None:
    result = posed("shop/web-a", "external:443")
    assert (result.target.kind, result.target.address, result.target.port) == ("External", "192.0.2.1", 443)
    assert posed("node/node-1", "external", "53/UDP", family="ip6").target.address == "2001:db8::1"


def test_pod_without_node_has_no_answer() -> None:
    with pytest.raises(ClusterError, match="has no node yet"):
        posed("shop/waiting", "svc/web")
    with pytest.raises(ClusterError, match="no Node"):
        asyncio.run(resolve_question(TypedQuestion(source="external", target="10.96.0.10:80"), Collection()))


def test_what_a_service_names() -> None:
    assert concerns(WEB, "fd96::10", 0)
    assert concerns(WEB, "192.168.0.1", 30080)
    assert not concerns(WEB, "192.168.0.1", 0)
    assert concerns(BALANCED, "203.0.113.8", 443)
    assert not concerns(BALANCED, "203.0.113.9", 443)


BEYOND = """table ip beyond {
	map hostports {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 8443 : 10.244.1.5 . 443 }
	}
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local dnat ip to meta l4proto . th dport map @hostports
	}
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
	}
}"""


class Planned(NodeKernels):
    """Nodes whose kernels are not read; ``hides`` says whether routing hides pods from other nodes."""

    def __init__(self, *, hides: bool = False) -> None:
        super().__init__(access, FakeClock(), planned=True)
        self.hides = hides

    def service_rules(self, node: Node, services: ServiceMap) -> ServiceRules:
        rules = super().service_rules(node, services)
        beyond = Tracer([parse_table(BEYOND)], rules.machine) if self.hides else None
        return msgspec.structs.replace(rules, other_nat=beyond)

    def flows(self, node: Node, packet: Packet) -> tuple[str, ...]:
        return (f"of {packet.source}",)

    def notes(self, node: Node) -> tuple[str, ...]:
        return (f"read {node.metadata.name}",)


def access(name: str) -> NodeAccess:
    return NodeAccess(services=NodeFacts(name=name, pod_cidrs=("10.244.0.0/16",)), readable=False)


def explained(asked: TypedQuestion, objects: Collection, *, hides: bool = False) -> Answer:
    cluster = ClusterAccess(objects=objects, nodes=Planned(hides=hides))
    return asyncio.run(explain(asked, cluster))


def answered(source: str, target: str, port: str = "", *, hides: bool = False) -> Answer:
    return explained(TypedQuestion(source=source, target=target, port=port), OBJECTS, hides=hides)


def test_one_node_decides() -> None:
    result = answered("client", "svc/shop/web")
    (hop,) = result.hops
    assert (result.outcome, hop.node, hop.state) == ("forwarded", "node-1", "planned")
    assert [(e.address, e.used, e.probability) for e in hop.endpoints] == [("10.244.2.5", True, 1.0)]
    assert hop.flows == ("of 10.244.1.9",)
    assert result.notes == ("read node-1", "read node-2")


@pytest.mark.parametrize(("hides", "source"), [(False, "10.244.1.9"), (True, "192.168.0.1")])
def test_another_nodes_port_is_decided_there(hides: bool, source: str) -> None:
    result = answered("client", "node/node-2", "30080", hides=hides)
    here, there = result.hops
    assert (here.node, here.outcome, here.reason) == ("node-1", "untouched", "NoService")
    assert (there.node, there.outcome) == ("node-2", "forwarded")
    assert there.service is not None
    assert there.service.frontend == "NodePort"
    assert there.flows == (f"of {source}",)
    if hides:
        assert here.snat is not None
        assert here.snat.masqueraded


def test_endpoints_where_no_pods_are_see_the_node() -> None:
    (remaining,) = answered("client", "svc/shop/out").hops
    (hop,) = answered("client", "svc/shop/out", hides=True).hops
    assert remaining.snat is not None
    assert (remaining.snat.masqueraded, remaining.snat.reason) == (False, "PodToClusterIP")
    assert hop.snat is not None
    assert (hop.snat.masqueraded, hop.snat.reason) == (True, "Routing")
    assert [e.masqueraded for e in hop.endpoints] == [True]


def test_host_port_is_reported() -> None:
    (hop,) = answered("external", "node/node-1", "8443", hides=True).hops
    assert (hop.outcome, hop.reason) == ("untouched", "HostPort")
    assert "10.244.1.5 port 443" in hop.message
    (hop,) = answered("external", "node/node-1", "8444", hides=True).hops
    assert hop.reason == "NoNodePort"


def test_a_service_that_is_left_to_another_proxy() -> None:
    label = {"service.kubernetes.io/service-proxy-name": "mine"}
    other = msgspec.structs.replace(WEB, metadata=msgspec.structs.replace(WEB.metadata, labels=label))
    world = World(pods=(pod("default/client", "node-1", "10.244.1.9"),), nodes=(node("node-1", "192.168.0.1"),))
    result = explained(
        TypedQuestion(source="client", target="svc/shop/web"), Collection(services=(other,), world=world)
    )
    assert result.outcome == "untouched"
    assert "another proxy" in result.notes[0]


def test_an_address_is_that_of_the_running_pod() -> None:
    ended = pod("shop/job-1", "node-1", "10.244.2.9")
    ended = msgspec.structs.replace(ended, status=msgspec.structs.replace(ended.status, phase="Succeeded"))
    world = World(nodes=(node("node-1", "192.168.0.1"), node("node-2", "192.168.0.2")),
                  pods=(ended, pod("shop/new-1", "node-2", "10.244.2.9")))  # fmt: skip
    for address, name, first in (
        ("10.244.2.9", "shop/new-1", "node-2"),
        ("10.244.1.1", "node-1", "node-1"),
        ("192.168.0.2", "node-2", "node-2"),
    ):
        asked = TypedQuestion(source=address, target="203.0.113.4", port="80")
        question = asyncio.run(resolve_question(asked, Collection(world=world)))
        assert (question.source.name, question.node.metadata.name) == (name, first)
