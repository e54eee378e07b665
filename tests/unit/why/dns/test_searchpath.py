"""The names that a pod's resolver asks for."""

import pytest

from podwire.embedded.kubelet.resolver import Resolver, pod_resolver
from podwire.model.meta import ObjectMeta
from podwire.model.pod import DNSConfigOption, Pod, PodDNSConfig, PodSpec
from podwire.why.dns.searchpath import search_of, tried_names

DOMAIN = "cluster.local"


def pod(**spec: object) -> Pod:
    return Pod(metadata=ObjectMeta(name="web", namespace="shop"), spec=PodSpec(**spec))  # type: ignore[arg-type]


CUSTOM = PodDNSConfig(nameservers=("192.0.2.53",), searches=("corp.example",), options=(DNSConfigOption("ndots", "2"),))


@pytest.mark.parametrize(
    ("text", "own_pod", "names"),
    [
        (
            "catalog",
            pod(),
            ["catalog.shop.svc.cluster.local", "catalog.svc.cluster.local", "catalog.cluster.local", "catalog"],
        ),
        ("catalog.", pod(), ["catalog"]),
        ("a.b.c.d.e.f", pod(), ["a.b.c.d.e.f", "a.b.c.d.e.f.shop.svc.cluster.local"]),
        ("www.example.com", pod(dns_config=CUSTOM), ["www.example.com", "www.example.com.shop.svc.cluster.local"]),
        ("www", pod(dns_policy="None", dns_config=CUSTOM), ["www.corp.example", "www"]),
        ("www", pod(dns_policy="Default"), ["www"]),
        ("www", pod(host_network=True), ["www"]),
        ("www", pod(host_network=True, dns_policy="ClusterFirstWithHostNet"), ["www.shop.svc.cluster.local"]),
    ],
)
def test_names_are_tried_in_the_resolvers_order(text: str, own_pod: Pod, names: list[str]) -> None:
    assert [item.name for item in tried_names(text, search_of(own_pod, DOMAIN))][: len(names)] == names


def test_without_a_pod_the_name_is_asked_as_it_is() -> None:
    assert [item.name for item in tried_names("catalog.shop", None)] == ["catalog.shop"]


@pytest.mark.parametrize(
    "own_pod",
    [
        pod(),
        pod(dns_config=CUSTOM),
        pod(dns_policy="None", dns_config=CUSTOM),
        pod(dns_policy="ClusterFirstWithHostNet", host_network=True),
    ],
)
def test_searches_are_those_that_the_kubelet_writes(own_pod: Pod) -> None:
    search, written = search_of(own_pod, DOMAIN), pod_resolver(own_pod, Resolver(), ["10.96.0.10"], DOMAIN)
    assert search.searches == written.searches
    assert f"ndots:{search.ndots}" in (*written.options, "ndots:1")
