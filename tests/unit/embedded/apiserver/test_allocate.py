"""Addresses and node ports of Services: choice, collisions, families, type changes."""

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.embedded.apiserver.allocate import ServiceAllocator
from podwire.embedded.apiserver.defaults import objects
from podwire.embedded.apiserver.kinds import BY_KIND
from podwire.embedded.apiserver.validate.objects import check as check_objects
from podwire.errors import ApiError, Invalid

SERVICE = BY_KIND["", "v1", "Service"]
V4, V6 = "10.96.0.0/16", "fd00:96::/108"


def service(name: str = "web", **spec: Any) -> dict[str, Any]:
    spec.setdefault("ports", [{"port": 80}])
    obj = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return objects.apply(SERVICE, obj)


def allocator(*cidrs: str, saved: tuple[dict[str, Any], ...] = ()) -> ServiceAllocator:
    service_allocator = ServiceAllocator(cidrs or (V4,), (30000, 32767))
    for item in saved:
        service_allocator.observe(None, item)
    return service_allocator


def store(
    service_allocator: ServiceAllocator, new: dict[str, Any], old: dict[str, Any] | None = None
) -> dict[str, Any]:
    out = service_allocator.assign(new, old)
    service_allocator.observe(old, out)
    return out


def test_an_address_of_the_upper_band() -> None:
    spec = allocator().assign(service())["spec"]
    assert spec["clusterIP"] == "10.96.1.1"
    assert spec["clusterIPs"] == ["10.96.1.1"]
    assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (["IPv4"], "SingleStack")
    assert "nodePort" not in spec["ports"][0]


def test_assign_reserves_nothing_and_changes_nothing() -> None:
    result, expected = allocator(), service(type="NodePort")
    assert result.assign(expected) == result.assign(expected)
    assert "clusterIP" not in expected["spec"]
    assert "nodePort" not in expected["spec"]["ports"][0]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"clusterIP": "10.96.5.5"},
     'spec.clusterIPs: Invalid value: ["10.96.5.5"]: failed to allocate IP 10.96.5.5: '
     "provided IP is already allocated"),
    ({"clusterIP": "10.97.0.1"},
     'spec.clusterIPs: Invalid value: ["10.97.0.1"]: failed to allocate IP 10.97.0.1: the provided IP '
     "(10.97.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16"),
    ({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]},
     "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"),
    ({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]},
     "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. "
     "The range of valid ports is 30000-32767"),
    ({"ipFamilyPolicy": "RequireDualStack"},
     'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for '
     "dual-stack services"),
    ({"ipFamilies": ["IPv6"]}, 'spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster'),
    ({"clusterIP": "nonsense"}, 'spec.clusterIPs[0]: Invalid value: "nonsense": must be a valid IP address'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cidr", "first", "last", "outside"),
    [
        ("10.96.0.0/12", "10.96.0.1", "10.111.255.254", "10.111.255.255"),
        ("10.96.0.0/16", "10.96.0.1", "10.96.255.254", "10.96.255.255"),
        ("10.96.0.0/30", "10.96.0.1", "10.96.0.2", "10.96.0.3"),
        ("fd00:96::/64", "fd00:96::1", "fd00:96::ffff:ffff:ffff:ffff", "fd00:96:0:1::"),
    ],
)
def test_a_range_is_used_to_its_ends(cidr: str, first: str, last: str, outside: str) -> None:
    result = allocator(cidr)
    for address in (first, last):
        assert result.assign(service(clusterIP=address))["spec"]["clusterIP"] == address
    with pytest.raises(Invalid, match="is not in the valid range"):
        result.assign(service(clusterIP=outside))
    assert result.assign(service())["spec"]["clusterIP"]


@pytest.mark.parametrize("address", ["10.97.1.1", "10.105.5.5"])
def test_choosing_goes_on_behind_the_last_address(address: str) -> None:
    result = allocator("10.96.0.0/12")
    store(result, service(clusterIP=address))
    assert result.assign(service("b"))["spec"]["clusterIP"] == str(ip_address(address) + 1)


def test_a_number_serves_one_port_of_a_new_service() -> None:
    def ports(second: int) -> list[dict[str, Any]]:
        return [
            {"name": "a", "port": 53, "protocol": "TCP", "nodePort": 30053},
            {"name": "b", "port": second, "protocol": "UDP", "nodePort": 30053},
        ]

    result = allocator()
    created = store(result, service(type="NodePort", ports=ports(53)))
    with pytest.raises(Invalid, match=r"spec\.ports\[1\]\.nodePort: Invalid value: 30053: provided port is already"):
        result.assign(service("new", type="NodePort", ports=ports(54)))
    changed = {**created, "spec": {**created["spec"], "ports": ports(54)}}
    assert result.assign(changed, created)["spec"]["ports"][1]["nodePort"] == 30053


def test_the_health_port_is_no_port_of_the_service() -> None:
    expected = service(
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=30080,
        ports=[{"port": 80, "nodePort": 30080}],
    )
    with pytest.raises(Invalid, match="HealthCheck NodePort 30080: provided port is already allocated"):
        allocator().assign(expected)


@pytest.mark.parametrize(("spec", "message"), REFUSED)
def test_refused(spec: dict[str, Any], message: str) -> None:
    used = service("old", type="NodePort", clusterIP="10.96.5.5", ports=[{"port": 1, "nodePort": 30080}])
    result = allocator(saved=(allocator().assign(used),))
    with pytest.raises(Invalid) as caught:
        result.assign(service(**spec))
    assert caught.value.message == f'Service "web" is invalid: {message}'


def test_headless_and_external_name_have_no_address() -> None:
    headless = allocator().assign(service(clusterIP="None", selector={"a": "b"}))["spec"]
    assert headless["clusterIPs"] == ["None"]
    assert headless["ipFamilies"] == ["IPv4"]
    external = allocator().assign(service(type="ExternalName", externalName="a.b", ports=[]))["spec"]
    assert not {"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"} & external.keys()


def test_dual_stack() -> None:
    result = allocator(V4, V6)
    spec = result.assign(service(ipFamilyPolicy="PreferDualStack"))["spec"]
    assert spec["ipFamilies"] == ["IPv4", "IPv6"]
    assert spec["clusterIPs"][1].startswith("fd00:96::")
    spec = result.assign(service(ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv6", "IPv4"]))["spec"]
    assert spec["clusterIP"].startswith("fd00:96::")
    assert result.assign(service(ipFamilies=["IPv6"]))["spec"]["ipFamilyPolicy"] == "SingleStack"
    single = store(result, service())
    upgraded = store(result, service(ipFamilyPolicy="PreferDualStack"), single)
    assert upgraded["spec"]["clusterIPs"][0] == single["spec"]["clusterIP"]
    assert len(upgraded["spec"]["clusterIPs"]) == 2
    again = {**upgraded, "spec": {**upgraded["spec"], "ipFamilyPolicy": "SingleStack"}}
    assert store(result, again, upgraded)["spec"]["clusterIPs"] == [single["spec"]["clusterIP"]]


def test_an_update_keeps_omitted_fields() -> None:
    result = allocator()
    old = store(result, service(type="NodePort"))
    new = store(result, service(type="LoadBalancer"), old)
    assert new["spec"]["clusterIP"] == old["spec"]["clusterIP"]
    assert new["spec"]["ports"][0]["nodePort"] == old["spec"]["ports"][0]["nodePort"]


def test_type_changes_give_back() -> None:
    result = allocator()
    old = store(result, service(type="NodePort", ports=[{"port": 80, "nodePort": 30080}]))
    plain = {**old, "spec": {**old["spec"], "type": "ClusterIP"}}
    new = store(result, plain, old)
    assert "nodePort" not in new["spec"]["ports"][0]
    assert "externalTrafficPolicy" not in new["spec"]
    assert store(result, service("b", type="NodePort", ports=[{"port": 1, "nodePort": 30080}]))
    gone = store(result, service(type="ExternalName", externalName="x.y"), new)
    assert "clusterIP" not in gone["spec"]
    assert store(result, service("c", clusterIP=old["spec"]["clusterIP"]))


def test_a_changed_cluster_address_is_refused_by_validation() -> None:
    result = allocator()
    old = store(result, service())
    new = {**old, "spec": {**old["spec"], "clusterIP": "10.96.7.7"}}
    changed = result.assign(new, old)
    assert changed["spec"]["clusterIPs"] == ["10.96.7.7"]
    assert [cause.field for cause in check_objects(SERVICE, changed, old)] == ["spec.clusterIPs[0]"]


def test_a_former_alias_forgets_its_target() -> None:
    result = allocator()
    old = store(result, service(type="ExternalName", externalName="x.y"))
    new = {**old, "spec": {**old["spec"], "type": "ClusterIP"}}
    assert "externalName" not in result.assign(new, old)["spec"]


def test_health_check_port() -> None:
    result = allocator()
    local = store(result, service(type="LoadBalancer", externalTrafficPolicy="Local"))
    number = local["spec"]["healthCheckNodePort"]
    assert number != local["spec"]["ports"][0]["nodePort"]
    cluster = {**local, "spec": {**local["spec"], "externalTrafficPolicy": "Cluster"}}
    assert "healthCheckNodePort" not in store(result, cluster, local)["spec"]


def test_two_protocols_share_one_number() -> None:
    ports = [{"port": 53, "protocol": "UDP", "name": "u"}, {"port": 53, "protocol": "TCP", "name": "t"}]
    given_ports = allocator().assign(service(type="NodePort", ports=ports))["spec"]["ports"]
    assert given_ports[0]["nodePort"] == given_ports[1]["nodePort"]


def test_full_ranges() -> None:
    service_allocator = ServiceAllocator(("10.96.0.0/29",), (30000, 30001))
    for index in range(6):
        store(service_allocator, service(f"s{index}"))
    with pytest.raises(ApiError, match="range is full"):
        service_allocator.assign(service("more"))


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["put", "drop"])), max_size=40))
def test_no_address_and_no_port_is_held_twice(steps: list[tuple[int, str]]) -> None:
    service_allocator = ServiceAllocator(("10.0.0.0/27",), (30000, 30031))
    held: dict[str, dict[str, Any]] = {}
    for number, action in steps:
        name = f"s{number}"
        if action == "put":
            held[name] = store(service_allocator, service(name, type="NodePort"), held.get(name))
        elif name in held:
            service_allocator.observe(held.pop(name), None)
    assert len({item["spec"]["clusterIP"] for item in held.values()}) == len(held)
    assert len({item["spec"]["ports"][0]["nodePort"] for item in held.values()}) == len(held)
