"""Which addresses of single Services a node announces beside their ranges."""

from ipaddress import ip_network
from typing import Any

import msgspec
import pytest
from tests.unit.routing.backends.test_bgp_objects import TOR, conf, configuration, me, peer_values

from podwire.model.service import EndpointSlice, Service
from podwire.routing.backends.bgp.objects import NO_SERVICES, BgpObjects
from podwire.routing.backends.bgp.serviceaddresses import AnnouncedRanges, service_addresses

Json = dict[str, Any]

RANGES = AnnouncedRanges(
    cluster=(ip_network("10.96.0.0/12"), ip_network("fd00:1::/112")),
    external=(ip_network("192.0.2.0/25"), ip_network("192.0.2.200/32")),
    balancers=(ip_network("198.51.100.0/24"), ip_network("203.0.113.9/32")),
)
SPEC: Json = {
    "type": "LoadBalancer",
    "clusterIP": "10.96.0.9",
    "clusterIPs": ["10.96.0.9", "fd00:1::9"],
    "ipFamilies": ["IPv4", "IPv6"],
    "externalIPs": ["192.0.2.7", "203.0.113.1"],
}
LOCAL = {"externalTrafficPolicy": "Local"}


def service(*ingress: str, **spec: Any) -> Service:
    status = {"loadBalancer": {"ingress": [{"ip": text} for text in ingress]}}
    body = {"metadata": {"namespace": "shop", "name": "web"}, "spec": {**SPEC, **spec}, "status": status}
    return msgspec.convert(body, Service)


def endpoints(node: str, *, ready: bool | None = None, family: str = "IPv4") -> EndpointSlice:
    conditions = {} if ready is None else {"ready": ready}
    endpoint = {"addresses": ["10.244.1.5"], "nodeName": node, "conditions": conditions}
    return msgspec.convert({"addressType": family, "endpoints": [endpoint]}, EndpointSlice)


def announced(item: Service, *slices: EndpointSlice, ranges: AnnouncedRanges = RANGES) -> list[str]:
    return [str(network) for network in service_addresses(ranges, item, slices, "node-1")]


HERE, THERE = endpoints("node-1"), endpoints("node-2")


def test_local_service_is_announced_where_it_has_endpoints() -> None:
    item = service("198.51.100.3", "203.0.113.1", **LOCAL)
    everything = ["10.96.0.9/32", "fd00:1::9/128", "192.0.2.7/32", "198.51.100.3/32"]
    assert announced(item, THERE, HERE) == everything, "addresses outside of all ranges are left out"
    assert announced(item, THERE) == []
    assert announced(item, endpoints("node-1", ready=False), endpoints("node-1", ready=True)) == everything
    assert announced(item, endpoints("node-1", ready=False)) == []


def test_endpoints_of_another_family_do_not_count() -> None:
    item = service(**LOCAL, ipFamilies=["IPv4"])
    assert announced(item, endpoints("node-1", family="IPv6")) == []
    assert announced(item, HERE)


def test_ranges_carry_services_of_all_nodes() -> None:
    assert announced(service("198.51.100.3"), HERE) == []
    assert [str(network) for network in RANGES.announced] == [
        "10.96.0.0/12",
        "fd00:1::/112",
        "192.0.2.0/25",
        "198.51.100.0/24",
    ]


def test_single_address_is_announced_while_a_service_has_it() -> None:
    item = service("198.51.100.3", "203.0.113.9", externalIPs=["192.0.2.7", "192.0.2.200"])
    assert announced(item) == ["192.0.2.200/32", "203.0.113.9/32"]


def test_without_aggregation_addresses_of_load_balancers_are_announced_alone() -> None:
    ranges = msgspec.structs.replace(RANGES, aggregates=False)
    assert "198.51.100.0/24" not in map(str, ranges.announced)
    assert announced(service("198.51.100.3"), THERE, ranges=ranges) == ["198.51.100.3/32"]
    assert announced(service("198.51.100.3"), endpoints("node-2", ready=False), ranges=ranges) == []


@pytest.mark.parametrize(
    "spec",
    [{"type": "ExternalName", **LOCAL}, {"clusterIP": "None", **LOCAL}, {"clusterIP": "", **LOCAL}],
)
def test_services_without_own_address_are_not_announced(spec: Json) -> None:
    assert announced(service("198.51.100.3", **spec), HERE) == []


def test_services_and_tags_are_announced_but_not_by_excluded_nodes() -> None:
    default = configuration(
        {
            "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}, {"cidr": "fd00:1::/112"}],
            "prefixAdvertisements": [{"cidr": "10.96.0.0/12", "communities": ["64512:7"]}],
        }
    )
    objects = BgpObjects(default=default, peers=(peer_values(TOR),))
    text = conf(objects, me())
    assert "  route 10.96.0.0/12 blackhole;\n" in text and "fd00:1::" not in text, "the node's pods have IPv4 only"
    assert "  if net ~ [ 10.96.0.0/12+ ] then { bgp_community.add((64512, 7)); }\n" in text
    assert "10.96.0.0/12 blackhole" not in conf(objects, me(labels={NO_SERVICES: ""}))
