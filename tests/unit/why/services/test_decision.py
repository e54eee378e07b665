"""What Kubernetes says of connections, and in which words."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.proxy.servicemap import IptablesSettings, NodeFacts, ResolvedEndpoint, ResolvedPort
from podwire.trace.packet import LocalAddresses, Packet
from podwire.why.services.decision import ServiceDecision, client_of, decide
from podwire.why.services.matching import Kind, Matched, find, is_node_port_address

FACTS = NodeFacts(name="n1", addresses=("192.168.0.1",), pod_cidrs=("10.180.0.0/16",), service_cidrs=("10.96.0.0/16",))
MACHINE = LocalAddresses(addresses=frozenset(("192.168.0.1", "192.168.0.9")))
NEAR, FAR = ResolvedEndpoint("10.180.0.5", 80, local=True), ResolvedEndpoint("10.180.1.5", 80)
POD, NODE, OUT = "10.180.0.7", "192.168.0.1", "203.0.113.9"


def port(**more: object) -> ResolvedPort:
    known = {
        "service": "shop/web",
        "port_name": "",
        "protocol": "tcp",
        "family": "ip",
        "port": 80,
        "cluster_ip": "10.96.0.10",
        "node_port": 30080,
        "cluster_endpoints": (NEAR, FAR),
        "local_endpoints": (NEAR,),
        "has_endpoints": True,
    }
    return ResolvedPort(**(known | more))  # type: ignore[arg-type]


def packet(source: str, destination: str = "10.96.0.10", number: int = 80) -> Packet:
    return Packet(
        source=source, destination=destination, destination_port=number, input="" if source == NODE else "eth0"
    )


def decided(kind: Kind, source: str, facts: NodeFacts = FACTS, **more: Any) -> ServiceDecision:
    return decide(Matched(kind, port(**more)), packet(source), facts, MACHINE, {})


@pytest.mark.parametrize(
    ("kind", "local", "source", "masquerade", "reason"),
    [
        ("ClusterIP", False, POD, False, "PodToClusterIP"),
        ("ClusterIP", False, NODE, True, "NodeToClusterIP"),
        ("ClusterIP", False, OUT, True, "ExternalToClusterIP"),
        ("NodePort", False, POD, True, "ExternalTrafficPolicyCluster"),
        ("LoadBalancerIP", False, NODE, True, "ExternalTrafficPolicyCluster"),
        ("ExternalIP", False, OUT, True, "ExternalTrafficPolicyCluster"),
        ("NodePort", True, POD, False, "PodToLocal"),
        ("NodePort", True, NODE, True, "NodeToLocal"),
        ("LoadBalancerIP", True, OUT, False, "ExternalTrafficPolicyLocal"),
    ],
)
def test_the_table_of_source_translation(kind: Kind, local: bool, source: str, masquerade: bool, reason: str) -> None:
    result = decided(kind, source, external_local=local)
    assert result.outcome == "forwarded"
    assert result.snat is not None
    assert (result.masquerade, result.snat.reason) == (masquerade, reason)


def test_settings_that_change_it() -> None:
    everyone = NodeFacts(name="n1", masquerade_all=True, pod_cidrs=FACTS.pod_cidrs)
    result = decided("ClusterIP", POD, everyone)
    assert result.snat is not None
    assert (result.masquerade, result.snat.reason) == (True, "MasqueradeAll")
    result = decided("ClusterIP", OUT, NodeFacts(name="n1"))
    assert result.snat is not None
    assert (result.masquerade, result.snat.reason) == (False, "PodsNotKnown")


@pytest.mark.parametrize(
    ("kind", "more", "source", "outcome", "reason"),
    [
        ("ClusterIP", {"cluster_endpoints": (), "has_endpoints": False}, POD, "refused", "NoEndpoints"),
        ("ClusterIP", {"internal_local": True, "local_endpoints": ()}, POD, "dropped", "NoLocalEndpoint"),
        ("NodePort", {"external_local": True, "local_endpoints": ()}, OUT, "dropped", "NoLocalEndpoint"),
        ("NodePort", {"external_local": True, "local_endpoints": ()}, POD, "forwarded", "Endpoints"),
        ("NodePort", {"cluster_endpoints": (), "has_endpoints": False}, OUT, "refused", "NoEndpoints"),
        ("LoadBalancerIP", {"source_ranges": ("10.0.0.0/8",)}, OUT, "dropped", "SourceRanges"),
        ("LoadBalancerIP", {"source_ranges": ("10.0.0.0/8",)}, POD, "forwarded", "Endpoints"),
        ("ExternalIP", {"source_ranges": ("10.0.0.0/8",)}, OUT, "forwarded", "Endpoints"),
    ],
)
def test_ends(kind: Kind, more: dict[str, Any], source: str, outcome: str, reason: str) -> None:
    result = decided(kind, source, **more)
    assert (result.outcome, result.reason.reason) == (outcome, reason)


@pytest.mark.parametrize(
    ("destination", "number", "outcome", "reason"),
    [
        ("10.96.0.10", 81, "refused", "NoSuchPort"),
        ("10.96.0.99", 80, "dropped", "NoSuchService"),
        ("192.168.0.1", 30099, "untouched", "NoNodePort"),
        ("203.0.113.77", 80, "untouched", "NoService"),
    ],
)
def test_packets_to_no_service_have_their_reason(destination: str, number: int, outcome: str, reason: str) -> None:
    sent = packet(POD, destination, number)
    services = {"shop/web": (port(),)}
    assert find(services, FACTS, MACHINE, sent) == ()
    result = decide(None, sent, FACTS, MACHINE, services)
    assert (result.outcome, result.reason.reason) == (outcome, reason)


def test_the_port_of_health_checks() -> None:
    services = {"shop/web": (port(health_check_node_port=32000),)}
    result = decide(None, packet(OUT, "192.168.0.1", 32000), FACTS, MACHINE, services)
    assert (result.outcome, result.reason.reason) == ("untouched", "HealthCheckNodePort")
    assert "shop/web" in result.reason.message


def test_each_frontend_of_a_service_is_found() -> None:
    item = port(external_ips=("203.0.113.7",), load_balancer_ips=("203.0.113.8",))
    two = port(service="shop/zzz", cluster_ip="10.96.0.11", external_ips=("203.0.113.7",), node_port=0)
    services = {"shop/zzz": (two,), "shop/web": (item,)}

    def frontends_of(destination: str, number: int = 80) -> list[tuple[str, str]]:
        result = find(services, FACTS, MACHINE, packet(POD, destination, number))
        return [(entry.kind, entry.port.service) for entry in result]

    assert frontends_of("10.96.0.11") == [("ClusterIP", "shop/zzz")]
    assert frontends_of("203.0.113.8") == [("LoadBalancerIP", "shop/web")]
    assert frontends_of("203.0.113.7") == [("ExternalIP", "shop/web"), ("ExternalIP", "shop/zzz")]
    assert frontends_of("192.168.0.1", 30080) == [("NodePort", "shop/web")]
    assert frontends_of("192.168.0.9", 30080) == []
    assert Matched("NodePort", port(external_local=True)).policy == "externalTrafficPolicy: Local"
    assert Matched("ClusterIP", port(external_local=True)).policy == "internalTrafficPolicy: Cluster"


def test_where_node_ports_answer() -> None:
    ranges = NodeFacts(name="n1", node_port_ranges=("192.168.0.8/29", "127.0.0.0/8"))
    assert is_node_port_address(FACTS, MACHINE, "192.168.0.1")
    assert not is_node_port_address(ranges, MACHINE, "192.168.0.1")
    assert is_node_port_address(ranges, MACHINE, "192.168.0.9")
    assert is_node_port_address(ranges, MACHINE, "127.0.0.1")
    assert not is_node_port_address(ranges, MACHINE, "::1")
    shut = msgspec.structs.replace(ranges, iptables=IptablesSettings(localhost_node_ports=False))
    assert not is_node_port_address(shut, MACHINE, "127.0.0.1")


def test_client_is_a_pod_a_node_or_outside() -> None:
    by_device = NodeFacts(name="n1", pod_interface="eth*")
    other = NodeFacts(name="n1", pod_interface="cni0")
    assert client_of(packet(POD), FACTS, MACHINE) == "pod"
    assert client_of(packet(NODE), FACTS, MACHINE) == "node"
    assert client_of(packet(OUT), FACTS, MACHINE) == "external"
    assert client_of(packet(OUT), by_device, MACHINE) == "pod"
    assert client_of(packet(POD), other, MACHINE) == "external"


def test_the_page_names_every_reason() -> None:
    root = Path(__file__).parents[4]
    page = (root / "docs/why.md").read_text()
    source = "".join(
        (root / f"src/podwire/why/services/{name}.py").read_text() for name in ("decision", "hop", "names")
    )
    arguments = set(re.findall(r'(?:reason=|reason, message = |_end\("[a-z]+", |snat = \w+, )"([A-Z]\w+)"', source))
    assert len(arguments) > 20
    assert {word for word in arguments if f"`{word}`" not in page} == set()
