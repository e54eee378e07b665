"""Objects behind the API's validation: what is wrong is left out and named, everything else is programmed."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import NODE, SERVICE, SLICE, hostile

from podwire.kube.decode import decode_object
from podwire.model import service as api
from podwire.model.node import Node
from podwire.proxy import registry
from podwire.proxy.frontends import admitted, frontends
from podwire.proxy.metrics import ProxyMetrics
from podwire.proxy.resolve import resolve, service_of
from podwire.proxy.servicemap import NodeFacts, ResolvedPort
from podwire.proxy.tracing import open_tracing
from podwire.proxy.trim import trim_service, trim_slice
from podwire.proxy.validity import service_problems, slice_problems
from podwire.runtime.clock import SystemClock
from podwire.trace.packet import LocalAddresses

FACTS = NodeFacts(name="n1", zone="z1", addresses=("192.168.99.1",), pod_cidrs=("10.0.0.0/8",))
MACHINE = LocalAddresses(addresses=frozenset(FACTS.addresses))


def valid(written: dict[str, Any], kind: type[Any]) -> Any:
    return decode_object(msgspec.json.encode(written), kind)


SERVICE_OBJECT: api.Service = valid(SERVICE, api.Service)
SLICE_OBJECT: api.EndpointSlice = valid(SLICE, api.EndpointSlice)


def resolved() -> Iterator[tuple[str, tuple[ResolvedPort, ...], NodeFacts]]:
    """What each hostile object resolves to; equal results once."""
    known: set[object] = set()
    for label, service in hostile(SERVICE, api.Service):
        ports = resolve(trim_service(service), (SLICE_OBJECT,), FACTS)
        assert tuple(service_problems(service)) is not None
        if ports not in known:
            known.add(ports)
            yield f"Service {label}", ports, FACTS
    metrics = ProxyMetrics("nftables", SystemClock())
    for label, item in hostile(SLICE, api.EndpointSlice):
        trimmed = trim_slice(item)
        service_of(trimmed)
        metrics.endpoints_changed(trimmed)
        assert tuple(slice_problems(item)) is not None
        ports = resolve(SERVICE_OBJECT, (trimmed,), FACTS)
        if ports not in known:
            known.add(ports)
            yield f"EndpointSlice {label}", ports, FACTS
    for label, node in hostile(NODE, Node):
        facts = msgspec.structs.replace(FACTS, zone=node.zone, addresses=node.internal_ips, pod_cidrs=node.pod_cidrs)
        if facts not in known:
            known.add(facts)
            yield f"Node {label}", resolve(SERVICE_OBJECT, (SLICE_OBJECT,), facts), facts


RESOLVED = tuple(resolved())


@pytest.mark.parametrize("mode", registry.DATAPLANES)
def test_every_mode_programs_whatever_an_invalid_object_leaves(mode: str) -> None:
    tracing = open_tracing(mode)
    assert tracing is not None
    for label, ports, facts in RESOLVED:
        try:
            tracing.planned({"default/web": ports}, facts, MACHINE)
        except Exception as failure:
            raise AssertionError(label) from failure


def test_resolved_ports_have_only_valid_numbers_and_addresses() -> None:
    for label, ports, facts in RESOLVED:
        for port in ports:
            numbers = [port.port, *(endpoint.port for endpoint in port.cluster_endpoints)]
            assert all(0 < number < 65536 for number in numbers), label
            assert 0 <= port.node_port < 65536 and 0 <= port.health_check_node_port < 65536, label
            assert 0 <= port.affinity_s <= 86400, label
            addresses = [*port.external_ips, *port.load_balancer_ips, *(e.address for e in port.cluster_endpoints)]
            assert {":" in address for address in (port.cluster_ip, *addresses)} == {port.family == "ip6"}, label
            assert frontends(port) and admitted(port, facts) is not None


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("spec", "ports", 0, "port"), -1, "spec.ports[0].port -1: expected 1 to 65535"),
        (("spec", "ports", 1, "nodePort"), 70000, "spec.ports[1].nodePort 70000: expected 1 to 65535"),
        (("spec", "ports", 0, "protocol"), "ICMP", "spec.ports[0].protocol 'ICMP': expected TCP, UDP or SCTP"),
        (("spec", "healthCheckNodePort"), 70000, "spec.healthCheckNodePort 70000: expected 1 to 65535"),
        (("spec", "clusterIPs"), ["127.0.0.1"], "spec.clusterIPs[0] '127.0.0.1': expected the address of a host"),
        (
            ("spec", "externalIPs"),
            ["fe80::1%e"],
            "spec.externalIPs[0] 'fe80::1%e': expected the address of a host",
        ),
        (
            ("spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"),
            0,
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds 0: expected 1 to 86400",
        ),
    ],
)
def test_invalid_fields_of_a_service_are_named(path: tuple[Any, ...], value: object, problem: str) -> None:
    assert tuple(service_problems(valid(_with(SERVICE, path, value), api.Service))) == (problem,)
    assert tuple(service_problems(SERVICE_OBJECT)) == ()


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("ports", 0, "port"), 70000, "ports[0].port 70000: expected 1 to 65535"),
        (
            ("endpoints", 0, "addresses"),
            ["fd00::9"],
            "endpoints[0].addresses[0] 'fd00::9': expected the IPv4 address of a host",
        ),
    ],
)
def test_invalid_fields_of_a_slice_are_named(path: tuple[Any, ...], value: object, problem: str) -> None:
    assert tuple(slice_problems(valid(_with(SLICE, path, value), api.EndpointSlice))) == (problem,)
    assert tuple(slice_problems(SLICE_OBJECT)) == ()


def test_valid_endpoints_beside_an_invalid_endpoint_are_used() -> None:
    endpoints = [{"addresses": ["fd00::9"]}, {"addresses": ["10.0.0.2"]}]
    mixed = valid(_with(SLICE, ("endpoints",), endpoints), api.EndpointSlice)
    ports = resolve(SERVICE_OBJECT, (mixed,), FACTS)
    assert {str(e) for port in ports for e in port.cluster_endpoints} == {"10.0.0.2:8080", "10.0.0.2:53"}


def _with(written: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    changed = msgspec.json.decode(msgspec.json.encode(written))
    holder = changed
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    return dict(changed)
