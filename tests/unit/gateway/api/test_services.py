"""The Services of Gateways and status in its API form."""

import msgspec

from podwire.cluster.names import GATEWAY_OF_SERVICE, GATEWAY_SERVICE
from podwire.gateway.api.references import ReferenceProblem
from podwire.gateway.api.services import (
    ADDRESSES,
    ENGINE_PORTS,
    GATEWAY_NAME,
    addresses_of_service,
    allocate_ports,
    desired_service,
    differs,
    engine_ports,
    gateway_services,
    needed_ports,
    service_name,
)
from podwire.gateway.api.status import condition
from podwire.gateway.api.written import gateway_json, merged_parents, parents_json, timed_gateway
from podwire.model.gatewayapi import (
    Gateway,
    GatewayAddress,
    GatewayStatus,
    GatewayStatusAddress,
    ListenerStatus,
    ParentReference,
    RouteParentStatus,
)
from podwire.model.service import Service

_GATEWAY = msgspec.convert(
    {"metadata": {"namespace": "shop", "name": "way"}, "spec": {"infrastructure": {"labels": {"team": "a"}}}}, Gateway
)


def _service(gateway: str, ports: dict[int, int], created: str = "") -> Service:
    return msgspec.convert(
        {
            "metadata": {
                "namespace": "kube-system",
                "name": service_name(gateway),
                "labels": {GATEWAY_SERVICE: "true"},
                "annotations": {GATEWAY_OF_SERVICE: gateway},
                "creationTimestamp": created,
            },
            "spec": {"ports": [{"port": port, "targetPort": target} for port, target in ports.items()]},
        },
        Service,
    )


def test_names_of_services_differ_where_gateways_do() -> None:
    names = {service_name(key) for key in ("a/b-c", "a-b/c", "a/b.c", "a/" + "x" * 200, "a/" + "x" * 201)}
    assert len(names) == 5
    assert all(len(name) <= 63 for name in names)


def test_ports_of_gateways_are_read_from_their_services() -> None:
    foreign = msgspec.convert({"metadata": {"namespace": "kube-system", "name": "dns"}}, Service)
    services = gateway_services([_service("shop/way", {80: 10000}), foreign], "kube-system")
    assert engine_ports(services) == {"shop/way": {80: 10000}}
    assert gateway_services(services.values(), "shop") == {}


def test_of_two_services_with_one_port_the_older_keeps_it() -> None:
    services = {
        "shop/new": _service("shop/new", {80: 10000, 81: 10001}, "2026-01-02T00:00:00Z"),
        "shop/old": _service("shop/old", {80: 10000}, "2026-01-01T00:00:00Z"),
    }
    assert engine_ports(services) == {"shop/old": {80: 10000}, "shop/new": {81: 10001}}


def test_ports_are_kept_and_the_lowest_free_ones_are_taken() -> None:
    assert allocate_ports((443, 80), {80: 10007}, (10000, 10007)) == {80: 10007, 443: 10001}
    assert allocate_ports((80,), {}, ENGINE_PORTS) == {}


def test_a_service_that_is_right_is_not_written() -> None:
    desired = desired_service(_GATEWAY, "kube-system", {80: 10000}, [(80, "TCP")], None)
    assert desired["metadata"]["labels"] == {"team": "a", GATEWAY_SERVICE: "true", GATEWAY_NAME: "way"}
    existing = msgspec.convert(desired, Service)
    assert not differs(existing, desired)
    more = [(80, "TCP"), (443, "TCP")]
    assert differs(existing, desired_service(_GATEWAY, "kube-system", {80: 10000, 443: 10001}, more, existing))
    assert differs(existing, desired_service(_GATEWAY, "kube-system", {80: 10000}, [(80, "TCP")], existing, "Cluster"))
    desired["spec"]["ports"][0]["nodePort"] = 31000
    kept = desired_service(_GATEWAY, "kube-system", {80: 10000}, [(80, "TCP")], msgspec.convert(desired, Service))
    assert kept["spec"]["ports"][0]["nodePort"] == 31000


def test_tcp_and_udp_share_a_port_of_the_engines() -> None:
    desired = desired_service(_GATEWAY, "kube-system", {53: 10000}, [(53, "TCP"), (53, "UDP")], None)
    ports = [(port["name"], port["protocol"], port["targetPort"]) for port in desired["spec"]["ports"]]
    assert ports == [("port-53", "TCP", 10000), ("port-53-udp", "UDP", 10000)]
    service = msgspec.convert(desired, Service)
    assert engine_ports({"shop/way": service}) == {"shop/way": {53: 10000}}
    assert needed_ports([(53, "TCP")], [53], service) == {(53, "TCP"), (53, "UDP")}
    assert needed_ports([(80, "TCP")], [80], service) == {(80, "TCP")}


def test_addresses_that_are_asked_for_go_to_the_load_balancer() -> None:
    asked = msgspec.structs.replace(
        _GATEWAY,
        spec=msgspec.structs.replace(_GATEWAY.spec, addresses=(GatewayAddress(value="192.0.2.7"), GatewayAddress())),
    )
    desired = desired_service(asked, "kube-system", {80: 10000}, [(80, "TCP")], None)
    assert desired["metadata"]["annotations"][ADDRESSES] == "192.0.2.7"
    existing = msgspec.convert(desired, Service)
    freed = desired_service(_GATEWAY, "kube-system", {80: 10000}, [(80, "TCP")], existing)
    assert freed["metadata"]["annotations"][ADDRESSES] is None
    assert differs(existing, freed)


def test_addresses_are_those_of_the_load_balancer() -> None:
    status = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "way.example"}]}}
    addresses = addresses_of_service(msgspec.convert({"status": status}, Service))
    assert [(entry.type, entry.value) for entry in addresses] == [
        ("IPAddress", "192.0.2.1"),
        ("Hostname", "way.example"),
    ]


def test_the_time_of_a_condition_changes_with_its_status() -> None:
    good, bad = condition("Accepted", None, 1), condition("Accepted", ReferenceProblem("Invalid", "text"), 1)
    first = timed_gateway(GatewayStatus(conditions=(good,)), GatewayStatus(), "t1")
    again = timed_gateway(GatewayStatus(conditions=(good,)), first, "t2")
    assert again == first
    changed = timed_gateway(GatewayStatus(conditions=(bad,)), again, "t3")
    assert changed.conditions[0].last_transition_time == "t3"


def test_entries_of_other_controllers_stay_in_a_route() -> None:
    parent = ParentReference(name="way")
    foreign = RouteParentStatus(parent_ref=parent, controller_name="example.net/other")
    old = RouteParentStatus(parent_ref=ParentReference(name="gone"), controller_name="podwire.io/gateway")
    own = RouteParentStatus(
        parent_ref=parent, controller_name="podwire.io/gateway", conditions=(condition("Accepted", None, 1),)
    )
    merged = merged_parents((own,), (foreign, old), "podwire.io/gateway", "t1")
    written = parents_json(merged)["parents"]
    assert [entry["controllerName"] for entry in written] == ["example.net/other", "podwire.io/gateway"]
    assert written[1]["conditions"] == [
        {
            "type": "Accepted",
            "status": "True",
            "reason": "Accepted",
            "message": "",
            "observedGeneration": 1,
            "lastTransitionTime": "t1",
        }
    ]


def test_required_fields_are_written_also_when_empty() -> None:
    status = GatewayStatus(addresses=(GatewayStatusAddress(value="192.0.2.1"),), listeners=(ListenerStatus(name="a"),))
    assert gateway_json(status) == {
        "addresses": [{"type": "IPAddress", "value": "192.0.2.1"}],
        "conditions": [],
        "listeners": [{"name": "a", "supportedKinds": [], "attachedRoutes": 0, "conditions": []}],
        "attachedListenerSets": 0,
    }
