"""What Services request: annotations of both prefixes, addresses, families, and refusals with the field."""

import pytest

from podwire.errors import ConfigError
from podwire.loadbalancer.request import read_request
from podwire.model.meta import ObjectMeta
from podwire.model.service import Service, ServicePort, ServiceSpec


def service(annotations: dict[str, str] | None = None, /, **spec: object) -> Service:
    default: dict[str, object] = {"type": "LoadBalancer", "ip_families": ("IPv4",), "cluster_ip": "10.96.0.1"}
    return Service(
        metadata=ObjectMeta(name="web", namespace="shop", uid="u", annotations=annotations or {}),
        spec=ServiceSpec(**(default | spec)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("prefix", ["metallb.io", "metallb.universe.tf"])
def test_annotations_of_both_prefixes_are_read(prefix: str) -> None:
    request = read_request(
        service(
            {
                f"{prefix}/loadBalancerIPs": "192.0.2.1, 2001:db8::1",
                f"{prefix}/address-pool": "gold",
                f"{prefix}/allow-shared-ip": "key",
            },
            ip_families=("IPv4", "IPv6"),
            ip_family_policy="RequireDualStack",
        )
    )
    assert [str(address) for address in request.addresses] == ["192.0.2.1", "2001:db8::1"]
    assert (request.pool, request.sharing, request.families) == ("gold", "key", (4, 6))


@pytest.mark.parametrize(
    ("spec", "families", "optional"),
    [
        ({}, (4,), ()),
        ({"ip_families": ("IPv6", "IPv4"), "ip_family_policy": "RequireDualStack"}, (6, 4), ()),
        ({"ip_families": ("IPv6", "IPv4"), "ip_family_policy": "PreferDualStack"}, (6,), (4,)),
        ({"ip_families": (), "cluster_ip": "fd00::1"}, (6,), ()),
        ({"ip_families": (), "cluster_ip": ""}, (4,), ()),
    ],
)
def test_families_follow_the_spec(
    spec: dict[str, object], families: tuple[int, ...], optional: tuple[int, ...]
) -> None:
    request = read_request(service({}, **spec))
    assert (request.families, request.optional) == (families, optional)


def test_local_policy_shares_by_selector() -> None:
    ports = (ServicePort(protocol="UDP", port=53),)
    cluster, local = (
        read_request(service(selector={"a": "b"}, ports=ports)),
        read_request(service(selector={"a": "b"}, external_traffic_policy="Local", ports=ports)),
    )
    assert (cluster.backend, local.backend, local.ports) == ("", "a=b", frozenset({("UDP", 53)}))
    assert read_request(service(external_traffic_policy="Local")).backend == "shop/web"


@pytest.mark.parametrize(
    ("annotations", "spec", "message"),
    [
        (
            {"metallb.io/loadBalancerIPs": "192.0.2.1"},
            {"load_balancer_ip": "192.0.2.2"},
            "Service shop/web: spec.loadBalancerIP: cannot be used together with the annotation loadBalancerIPs",
        ),
        (
            {"metallb.io/loadBalancerIPs": "192.0.2.1,x"},
            {},
            r"annotations\[metallb.io/loadBalancerIPs\]: 'x': expected",
        ),
        ({}, {"load_balancer_ip": "fe80::1%eth0"}, "spec.loadBalancerIP: 'fe80::1%eth0': expected an address"),
        ({"metallb.io/loadBalancerIPs": "192.0.2.1,192.0.2.2"}, {}, "two addresses of one family"),
        ({}, {"load_balancer_ip": "2001:db8::1"}, "2001:db8::1 is IPv6, which is not in spec.ipFamilies"),
        (
            {},
            {
                "load_balancer_ip": "192.0.2.1",
                "ip_families": ("IPv4", "IPv6"),
                "ip_family_policy": "RequireDualStack",
            },
            "has no IPv6 address",
        ),
    ],
)
def test_refusals_name_the_field(annotations: dict[str, str], spec: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_request(service(annotations, **spec))
