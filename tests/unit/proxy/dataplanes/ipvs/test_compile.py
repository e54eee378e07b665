"""The kernel state of one Service, as text."""

from typing import Any

import pytest
from msgspec.structs import replace

from podwire.proxy.dataplanes.ipvs.compile import Compiled, compile_service, flags_of
from podwire.proxy.dataplanes.ipvs.layout import IpvsLayout
from podwire.proxy.frontends import frontends
from podwire.proxy.servicemap import IpvsSettings, NodeFacts, ResolvedEndpoint, ResolvedPort

FACTS = NodeFacts(
    name="n1", addresses=("192.168.99.1", "fd99::1"), pod_cidrs=("10.180.0.0/16",), service_cidrs=("172.30.0.0/16",)
)
ONE, TWO = ResolvedEndpoint("10.180.0.1", 8080, True), ResolvedEndpoint("10.180.0.2", 8080)


def port(**changes: Any) -> ResolvedPort:
    known: dict[str, Any] = {
        "service": "default/web",
        "port_name": "http",
        "protocol": "tcp",
        "family": "ip",
        "port": 80,
        "cluster_ip": "172.30.0.41",
        "cluster_endpoints": (ONE, TWO),
        "local_endpoints": (ONE,),
        "has_endpoints": True,
    }
    return ResolvedPort(**{**known, **changes})


def compiled(resolved_port: ResolvedPort, facts: NodeFacts = FACTS) -> Compiled:
    return compile_service(
        IpvsLayout(resolved_port.family, facts, facts.addresses), (resolved_port,), frontends(resolved_port)
    )


def text(result: Compiled) -> str:
    lines = [f"bind {address}" for address in result.addresses]
    lines += [f"{name} {element}" for name, elements in sorted(result.elements.items()) for element in elements]
    lines += [line for server in result.servers.values() for line in server.lines()]
    lines += [f"{chain} {rule}" for (_, chain), rules in result.rules.items() for rule in rules]
    return "\n".join(lines)


def test_a_cluster_ip() -> None:
    assert (
        text(compiled(port()))
        == """\
bind 172.30.0.41
KUBE-CLUSTER-IP 172.30.0.41,tcp:80
KUBE-IPVS-IPS 172.30.0.41
KUBE-LOOP-BACK 10.180.0.1,tcp:8080,10.180.0.1
KUBE-LOOP-BACK 10.180.0.2,tcp:8080,10.180.0.2
-A -t 172.30.0.41:80 -s rr -b flag-3
-a -t 172.30.0.41:80 -r 10.180.0.1:8080 -m -w 1
-a -t 172.30.0.41:80 -r 10.180.0.2:8080 -m -w 1"""
    )


def test_a_node_port_has_a_virtual_server_for_each_address() -> None:
    result = text(compiled(port(node_port=30080), replace(FACTS, addresses=("192.168.99.1", "192.168.98.1"))))
    assert "KUBE-NODE-PORT-TCP 30080" in result
    assert "-A -t 192.168.99.1:30080 -s rr" in result and "-A -t 192.168.98.1:30080 -s rr" in result
    sctp = text(compiled(port(node_port=30080, protocol="sctp")))
    assert "KUBE-NODE-PORT-SCTP-HASH 192.168.99.1,sctp:30080" in sctp
    assert "-A --sctp-service 192.168.99.1:30080" in sctp


def test_external_addresses_of_policy_local() -> None:
    """Outside this node's endpoints; pods and the node are translated to the cluster address, which has all."""
    result = compiled(port(external_local=True, external_ips=("203.0.113.7",), load_balancer_ips=("203.0.113.8",)))
    lines = text(result).splitlines()
    assert "KUBE-EXTERNAL-IP-LOCAL 203.0.113.7,tcp:80" in lines
    assert "KUBE-LOAD-BALANCER 203.0.113.8,tcp:80" in lines
    assert "KUBE-LOAD-BALANCER-LOCAL 203.0.113.8,tcp:80" in lines
    assert [line for line in lines if line.startswith("-a -t 203.0.113.7:80")] == [
        "-a -t 203.0.113.7:80 -r 10.180.0.1:8080 -m -w 1"
    ]
    assert (
        'KUBE-LOCAL-INSIDE -d 203.0.113.7/32 -p tcp -m comment --comment "default/web:http" -m tcp --dport 80 '
        "-j DNAT --to-destination 172.30.0.41:80" in lines
    )


def test_two_local_policies_limit_the_cluster_address_to_local_endpoints() -> None:
    lines = text(compiled(port(external_local=True, internal_local=True, node_port=30080))).splitlines()
    assert [line for line in lines if line.startswith("-a")] == [
        "-a -t 172.30.0.41:80 -r 10.180.0.1:8080 -m -w 1",
        "-a -t 192.168.99.1:30080 -r 10.180.0.1:8080 -m -w 1",
        "-a -t 192.168.99.1:30080 -r 10.180.0.2:8080 -m -w 1",
    ]
    assert lines[-1].startswith("KUBE-LOCAL-OUTSIDE -d 192.168.99.1/32") and "--dport 30080" in lines[-1]


def test_without_endpoints_everything_is_refused() -> None:
    none = {"cluster_endpoints": (), "local_endpoints": (), "has_endpoints": False}
    result = compiled(port(node_port=30080, external_ips=("203.0.113.7",), **none))
    assert not result.servers
    assert list(result.elements["KUBE-REFUSED"]) == [
        "172.30.0.41,tcp:80",
        "203.0.113.7,tcp:80",
        "192.168.99.1,tcp:30080",
    ]
    assert set(result.elements) == {"KUBE-REFUSED", "KUBE-IPVS-IPS"}


def test_without_local_endpoints_local_is_dropped() -> None:
    result = compiled(port(internal_local=True, node_port=30080, local_endpoints=()))
    assert list(result.elements["KUBE-DROPPED"]) == ["172.30.0.41,tcp:80"]
    assert [str(key) for key in result.servers] == ["-t 192.168.99.1:30080"]
    outside = compiled(port(external_local=True, node_port=30080, local_endpoints=()))
    assert list(outside.elements["KUBE-DROPPED-OUTSIDE"]) == ["192.168.99.1,tcp:30080"]
    assert [str(key) for key in outside.servers] == ["-t 172.30.0.41:80"]
    assert outside.rules, "pods and the node go to the cluster address"


def test_source_ranges() -> None:
    ranges = ("192.168.99.0/24", "10.180.0.1/32")
    result = compiled(port(load_balancer_ips=("203.0.113.8",), source_ranges=ranges)).elements
    assert list(result["KUBE-LOAD-BALANCER-FW"]) == ["203.0.113.8,tcp:80"]
    assert list(result["KUBE-LOAD-BALANCER-SOURCE-CIDR"]) == [
        "203.0.113.8,tcp:80,192.168.99.0/24",
        "203.0.113.8,tcp:80,10.180.0.1",
    ]
    assert list(result["KUBE-LOAD-BALANCER-SOURCE-IP"]) == ["203.0.113.8,tcp:80,203.0.113.8"]


def test_frontend_of_another_service_is_left_out() -> None:
    item = port(node_port=30080, external_ips=("203.0.113.7",))
    assert text(compile_service(IpvsLayout("ip", FACTS, FACTS.addresses), (item,), frozenset())) == ""


def test_ipv6() -> None:
    six = ResolvedEndpoint("fd18::1", 8080, True)
    result = compiled(port(family="ip6", cluster_ip="fd96::10", cluster_endpoints=(six,), node_port=30080))
    lines = text(result).splitlines()
    assert "KUBE-6-CLUSTER-IP fd96::10,tcp:80" in lines
    assert "-a -t [fd99::1]:30080 -r [fd18::1]:8080 -m -w 1" in lines
    assert not any("192.168" in line for line in lines)


def test_affinity_and_schedulers() -> None:
    facts = replace(FACTS, ipvs=IpvsSettings(scheduler="mh"))
    (server,) = compiled(port(affinity_s=600), facts).servers.values()
    assert next(server.lines()) == "-A -t 172.30.0.41:80 -s mh -p 600 -b mh-fallback,mh-port,flag-3"


@pytest.mark.parametrize(("scheduler", "flags"), [("rr", 0x20), ("sh", 0x28), ("mh", 0x38), ("wlc", 0x20)])
def test_flags(scheduler: str, flags: int) -> None:
    assert flags_of(scheduler) == flags


def test_a_health_check_port_is_opened() -> None:
    assert list(compiled(port(health_check_node_port=32000)).elements["KUBE-HEALTH-CHECK-NODE-PORT"]) == ["32000"]
