"""The choice of endpoints and what else resolving decides; more of it in the packet table."""

from typing import Any

import pytest
from msgspec.structs import replace

from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.model.service import SERVICE_NAME_LABEL
from podwire.proxy.resolve import handled, resolve, service_of
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, of_family
from podwire.proxy.validity import canonical_address

NODE = NodeFacts(name="n1", zone="z1")


def service(**spec: Any) -> api.Service:
    fields: dict[str, Any] = {
        "cluster_ip": "10.96.0.1",
        "cluster_ips": ("10.96.0.1",),
        "ports": (api.ServicePort(port=80),),
    }
    return api.Service(metadata=ObjectMeta(name="web", namespace="default"), spec=api.ServiceSpec(**fields | spec))


def piece(
    *endpoints: api.Endpoint,
    ports: tuple[api.EndpointPort, ...] = (api.EndpointPort(name="", port=8080),),
    **more: Any,
) -> api.EndpointSlice:
    meta = ObjectMeta(name="web-1", namespace="default", labels={SERVICE_NAME_LABEL: "web"})
    return api.EndpointSlice(metadata=meta, endpoints=endpoints, ports=ports, **more)


def endpoint(
    address: str, node: str = "n2", zones: tuple[str, ...] = (), nodes: tuple[str, ...] = (), **conditions: Any
) -> api.Endpoint:
    hints = api.EndpointHints(
        for_zones=tuple(api.HintTarget(name=z) for z in zones), for_nodes=tuple(api.HintTarget(name=n) for n in nodes)
    )
    return api.Endpoint(
        addresses=(address,),
        node_name=node,
        hints=hints if zones or nodes else None,
        conditions=api.EndpointConditions(**conditions),
    )


LEAVING: dict[str, Any] = {"ready": False, "serving": True, "terminating": True}

CHOICES = [
    ("ready ones", [endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False, serving=False)], ["10.0.0.1"], []),
    ("local ones", [endpoint("10.0.0.1"), endpoint("10.0.0.2", "n1")], ["10.0.0.1", "10.0.0.2"], ["10.0.0.2"]),
    ("leaving ones when none is ready", [endpoint("10.0.0.1", **LEAVING)], ["10.0.0.1"], []),
    ("no leaving one while one is ready", [endpoint("10.0.0.1", **LEAVING), endpoint("10.0.0.2")], ["10.0.0.2"], []),
    (
        "a local leaving one beside a remote ready one",
        [endpoint("10.0.0.1", "n1", **LEAVING), endpoint("10.0.0.2")],
        ["10.0.0.2"],
        ["10.0.0.1"],
    ),
    (
        "those of the zone",
        [endpoint("10.0.0.1", zones=("z1",)), endpoint("10.0.0.2", zones=("z2",))],
        ["10.0.0.1"],
        [],
    ),
    (
        "all when one has no hint",
        [endpoint("10.0.0.1", zones=("z1",)), endpoint("10.0.0.2")],
        ["10.0.0.1", "10.0.0.2"],
        [],
    ),
    ("all when no hint is for the zone", [endpoint("10.0.0.1", zones=("z2",))], ["10.0.0.1"], []),
    (
        "those of the node first",
        [endpoint("10.0.0.1", nodes=("n1",), zones=("z1",)), endpoint("10.0.0.2", nodes=("n2",), zones=("z1",))],
        ["10.0.0.1"],
        [],
    ),
    (
        "hints of unready ones are not looked at",
        [endpoint("10.0.0.1", zones=("z1",)), endpoint("10.0.0.2", ready=False)],
        ["10.0.0.1"],
        [],
    ),
    (
        "an address twice, not the leaving one",
        [endpoint("10.0.0.1", **LEAVING), endpoint("10.0.0.1")],
        ["10.0.0.1"],
        [],
    ),
]


@pytest.mark.parametrize(("why", "endpoints", "cluster", "local"), CHOICES, ids=[c[0] for c in CHOICES])
def test_choice(why: str, endpoints: list[api.Endpoint], cluster: list[str], local: list[str]) -> None:
    (port,) = resolve(service(), [piece(*endpoints)], NODE)
    assert [e.address for e in port.cluster_endpoints] == cluster
    assert [e.address for e in port.local_endpoints] == local


def test_ports_meet_by_name_and_protocol() -> None:
    ports = (api.ServicePort(name="http", port=80), api.ServicePort(name="dns", port=53, protocol="UDP"))
    slice_ports = (
        api.EndpointPort(name="http", port=8080),
        api.EndpointPort(name="http", port=1, protocol="UDP"),
        api.EndpointPort(name="dns", port=5353, protocol="UDP"),
        api.EndpointPort(name=None, port=9),
        api.EndpointPort(name="http", port=None),
    )
    http, dns = resolve(service(ports=ports), [piece(endpoint("10.0.0.1"), ports=slice_ports)], NODE)
    assert http.cluster_endpoints == (ResolvedEndpoint("10.0.0.1", 8080),)
    assert dns.cluster_endpoints == (ResolvedEndpoint("10.0.0.1", 5353),)
    assert (http.key, dns.key) == ("default/web:http/tcp", "default/web:dns/udp")


def test_slices_may_give_different_numbers() -> None:
    first = piece(endpoint("10.0.0.1"))
    second = piece(endpoint("10.0.0.2"), ports=(api.EndpointPort(name="", port=9090),))
    (port,) = resolve(service(), [first, second], NODE)
    assert list(map(str, port.cluster_endpoints)) == ["10.0.0.1:8080", "10.0.0.2:9090"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, True),
        ({"cluster_ip": "None", "cluster_ips": ("None",)}, False),
        ({"type": "ExternalName"}, False),
        ({"cluster_ip": "", "cluster_ips": ()}, False),
    ],
)
def test_handled(spec: dict[str, Any], expected: bool) -> None:
    assert handled(service(**spec)) is expected
    assert bool(resolve(service(**spec), (), NODE)) is expected


def test_families_have_their_own_addresses_and_endpoints() -> None:
    both = service(cluster_ips=("10.96.0.1", "fd96::1"), external_ips=("203.0.113.7", "2001:db8::7"))
    four, six = resolve(both, [piece(endpoint("10.0.0.1")), piece(endpoint("fd00::1"), address_type="IPv6")], NODE)
    assert (four.family, four.cluster_ip, four.external_ips) == ("ip", "10.96.0.1", ("203.0.113.7",))
    assert (six.family, six.cluster_ip, six.external_ips) == ("ip6", "fd96::1", ("2001:db8::7",))
    assert [str(e) for e in six.cluster_endpoints] == ["[fd00::1]:8080"]


def test_load_balancers() -> None:
    ingress = (
        api.LoadBalancerIngress(ip="203.0.113.007"),
        api.LoadBalancerIngress(ip="203.0.113.8", ip_mode="Proxy"),
        api.LoadBalancerIngress(hostname="lb.example"),
    )
    balanced = service(
        type="LoadBalancer",
        load_balancer_source_ranges=(" 198.51.100.0/25 ", "nonsense", "192.000.002.1/32"),
        external_traffic_policy="Local",
        health_check_node_port=32000,
    )
    balanced = api.Service(
        metadata=balanced.metadata,
        spec=balanced.spec,
        status=api.ServiceStatus(load_balancer=api.LoadBalancerStatus(ingress=ingress)),
    )
    (port,) = resolve(balanced, (), NODE)
    assert port.load_balancer_ips == ("203.0.113.7",)
    assert port.source_ranges == ("198.51.100.0/25", "192.0.2.1/32")
    assert (port.external_local, port.health_check_node_port) == (True, 32000)


def test_a_range_of_everything_means_no_restriction() -> None:
    (port,) = resolve(service(load_balancer_source_ranges=("10.0.0.0/8", "0.0.0.0/0")), (), NODE)
    assert port.source_ranges == ()


@pytest.mark.parametrize(
    ("config", "seconds"),
    [(None, 10800), (api.SessionAffinityConfig(client_ip=api.ClientIPConfig(timeout_seconds=4)), 4)],
)
def test_affinity(config: api.SessionAffinityConfig | None, seconds: int) -> None:
    (port,) = resolve(service(session_affinity="ClientIP", session_affinity_config=config), (), NODE)
    assert port.affinity_s == seconds


def test_serving_counts_leaving_endpoints() -> None:
    (port,) = resolve(service(), [piece(endpoint("10.0.0.1"), endpoint("10.0.0.2", **LEAVING))], NODE)
    assert port.serving == {"10.0.0.1:8080", "10.0.0.2:8080"}


def test_a_slice_names_its_service() -> None:
    assert service_of(piece()) == "default/web"
    assert service_of(piece(address_type="FQDN")) == ""
    labels = {SERVICE_NAME_LABEL: "web", "service.kubernetes.io/service-proxy-name": "other"}
    of_other_proxy = replace(piece(), metadata=ObjectMeta(namespace="default", labels=labels))
    assert service_of(of_other_proxy) == "", "also for `why`, which reads all slices"


def test_health_check_counts_each_ready_local_endpoint_once() -> None:
    balanced = service(
        type="LoadBalancer",
        external_traffic_policy="Local",
        health_check_node_port=32000,
        ports=(api.ServicePort(name="a", port=80), api.ServicePort(name="b", port=81)),
    )
    both = (api.EndpointPort(name="a", port=8080), api.EndpointPort(name="b", port=8081))
    here, leaving, there = endpoint("10.0.0.1", "n1"), endpoint("10.0.0.2", "n1", **LEAVING), endpoint("10.0.0.3")
    for port in resolve(balanced, [piece(here, leaving, there, ports=both)], NODE):
        assert port.local_ready == ("10.0.0.1",)
    for port in resolve(balanced, [piece(leaving, there, ports=both)], NODE):
        assert port.local_ready == ()
        assert [e.address for e in port.local_endpoints] == ["10.0.0.2"], "which still serves"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("172.30.0.041", "172.30.0.41"),
        ("FD00::0001", "fd00::1"),
        ("x", ""),
        ("", ""),
        ("0.0.0.0", "0.0.0.0"),
        ("255.249.199.99", "255.249.199.99"),
        ("10.0.0.256", ""),
        ("10.0.0", ""),
        ("10.0.0.1.1", ""),
        ("00.0.0.1", "0.0.0.1"),
        (" 10.0.0.1\n", "10.0.0.1"),
        ("::ffff:10.0.0.1", "::ffff:a00:1"),
    ],
)
def test_addresses_are_brought_into_their_usual_form(text: str, shown: str) -> None:
    assert canonical_address(text) == shown


def test_addresses_by_family() -> None:
    assert of_family(("10.0.0.1", "fd00::1"), "ip6") == ("fd00::1",)
