"""What becomes of one DNS name, and the reason."""

from typing import Any

import pytest
from msgspec.structs import replace

from podwire.dns.config import DnsConfig, ForwardConfig
from podwire.dns.zone import Zone, zone_options
from podwire.errors import ProtocolError
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointConditions, EndpointSlice, Service, ServicePort, ServiceSpec
from podwire.why.dns.lookup import DnsAnswer, DnsObjects, DnsStep, changes, explain_name, fill, kernel_answer
from podwire.why.dns.searchpath import PodSearch
from podwire.why.dns.text import render

CONFIG = DnsConfig(
    upstreams=("192.0.2.53",),
    stub_domains={"corp.example": ForwardConfig(upstreams=("192.0.2.99:5353",))},
    hosts={"fixed.example": ("192.0.2.7",)},
)


def service(name: str, **spec: Any) -> Service:
    return Service(metadata=ObjectMeta(name=name, namespace="shop"), spec=ServiceSpec(**spec))


SERVICES = {
    "shop/catalog": service(
        "catalog", cluster_ip="10.96.3.4", cluster_ips=("10.96.3.4",), ports=(ServicePort(name="http", port=80),)
    ),
    "shop/db": service("db", cluster_ip="None", cluster_ips=("None",)),
    "shop/mail": service("mail", type="ExternalName", external_name="mx.corp.example"),
}
SLICE = EndpointSlice(
    metadata=ObjectMeta(name="db-1", namespace="shop", labels={"kubernetes.io/service-name": "db"}),
    address_type="IPv4",
    endpoints=(
        Endpoint(addresses=("10.244.1.2",), hostname="db-0"),
        Endpoint(addresses=("10.244.1.3",), conditions=EndpointConditions(ready=False)),
    ),
)
OBJECTS = DnsObjects(
    namespaces=frozenset({"shop"}),
    services=SERVICES,
    slices={"shop/db": (SLICE,)},
    near={"shop": ("catalog", "db", "mail")},
)


def test_text_names_the_entry_of_the_kernel() -> None:
    zone = Zone(zone_options(CONFIG))
    fill(zone, OBJECTS)
    name = "catalog.shop.svc.cluster.local"
    assert kernel_answer("mail.shop.svc.cluster.local", "A", zone, CONFIG) == ""
    kernel = kernel_answer(name, "A", zone, CONFIG)
    step = replace(explain(name), kernel=kernel)
    shown = list(render(DnsAnswer(name, "A", "shop/web-1", PodSearch("ClusterFirst"), (step,), "defaults")))
    assert f"   answered in the kernel of the pod's node: entry {name}. with 10.96.3.4" in shown


def explain(name: str, record_type: str = "A") -> DnsStep:
    zone = Zone(zone_options(CONFIG))
    fill(zone, OBJECTS)
    return explain_name(name, record_type, zone, CONFIG, OBJECTS)


@pytest.mark.parametrize(
    ("name", "record_type", "outcome", "reason", "records"),
    [
        (
            "catalog.shop.svc.cluster.local", "A", "answer",
            "Service shop/catalog has the address 10.96.3.4", ("A 10.96.3.4",),
        ),
        ("catalog.shop.svc.cluster.local", "AAAA", "no data", "has the address 10.96.3.4", ()),
        (
            "_http._tcp.catalog.shop.svc.cluster.local", "SRV", "answer",
            "_http._tcp is a port or an endpoint of it", ("SRV 80 catalog.shop.svc.cluster.local.",),
        ),
        ("db.shop.svc.cluster.local", "A", "answer", "headless and has 1 ready endpoint", ("A 10.244.1.2",)),
        ("db-0.db.shop.svc.cluster.local", "A", "answer", "db-0 is a port or an endpoint of it", ("A 10.244.1.2",)),
        (
            "mail.shop.svc.cluster.local", "A", "answer",
            "is an alias (ExternalName) of mx.corp.example; forwarded to 192.0.2.99:5353", ("CNAME mx.corp.example.",),
        ),
        (
            "catalgo.shop.svc.cluster.local", "A", "no such name",
            "there is no Service shop/catalgo; namespace shop has catalog, db, mail", (),
        ),
        ("catalog.shpo.svc.cluster.local", "A", "no such name", "there is no namespace shpo", ()),
        ("catalog.cluster.local", "A", "no such name", "the zone cluster.local has no such name", ()),
        ("10-244-1-2.shop.pod.cluster.local", "A", "answer", "an address of a pod in shop", ("A 10.244.1.2",)),
        ("www.corp.example", "A", "forwarded", "forwarded to 192.0.2.99:5353, the servers of the stub domain", ()),
        ("example.com", "A", "forwarded", "forwarded to 192.0.2.53", ()),
        ("fixed.example", "A", "answer", "the fixed name in hosts", ("A 192.0.2.7",)),
    ],
)  # fmt: skip
def test_a_name_leads_to_its_object_or_reason(
    name: str, record_type: str, outcome: str, reason: str, records: tuple[str, ...]
) -> None:
    step = explain(name, record_type)
    assert (step.outcome, step.records) == (outcome, records)
    assert reason in step.reason


def test_servers_that_are_asked_next_are_named() -> None:
    last = ForwardConfig(upstreams=("192.0.2.3",))
    second = ForwardConfig(upstreams=("192.0.2.2",), except_zones=("a.example",), next_forward=last)
    first = ForwardConfig(
        upstreams=("192.0.2.1",), next_codes=("NXDOMAIN",), next_without_data=True, next_forward=second
    )
    config = DnsConfig(forward=first)
    step = explain_name("example.com", "A", Zone(zone_options(config)), config, DnsObjects())
    assert step.reason == (
        "forwarded to 192.0.2.1, and for NXDOMAIN, no data to 192.0.2.2, and for names below a.example to 192.0.2.3"
    )


def test_a_text_that_is_no_name_is_refused() -> None:
    with pytest.raises(ProtocolError):
        explain("a" * 64 + ".cluster.local")


def test_the_answer_names_resolver_settings_and_every_step() -> None:
    steps = (explain("catalog.cluster.local"), explain("catalog.shop.svc.cluster.local"))
    search = PodSearch("ClusterFirst", ("shop.svc.cluster.local",), 5)
    text = "\n".join(render(DnsAnswer("catalog", "A", "shop/web", search, steps, "ConfigMap kube-system/podwire-dns")))
    assert text.startswith("catalog A from shop/web\n\nresolver  dnsPolicy ClusterFirst, ndots 5, search shop.svc")
    assert "server    ConfigMap kube-system/podwire-dns\n\n1. catalog.cluster.local: no such name\n" in text
    assert text.endswith(
        "2. catalog.shop.svc.cluster.local: answer\n   Service shop/catalog has the address 10.96.3.4\n   A 10.96.3.4"
    )


def test_text_says_who_answers_and_when_the_service_changed() -> None:
    step = replace(explain("catalog.shop.svc.cluster.local"), node_local=True, age_s=12_000.0)
    shown = list(render(DnsAnswer("catalog", "A", "shop/web-1", PodSearch("ClusterFirst"), (step,), "defaults")))
    assert "   the server of the pod's node answers while it takes queries, otherwise a server of the cluster" in shown
    assert "   last change 3h20m ago" in shown


def test_changes_are_those_of_the_service_and_its_slices() -> None:
    meta = replace(SERVICES["shop/db"].metadata, creation_timestamp="2026-01-01T00:00:00Z")
    trigger = {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-03T00:00:00Z"}
    own = replace(
        SLICE, metadata=replace(SLICE.metadata, annotations=trigger, creation_timestamp="2026-01-02T00:00:00Z")
    )
    objects = replace(
        OBJECTS, services={"shop/db": replace(SERVICES["shop/db"], metadata=meta)}, slices={"shop/db": (own,)}
    )
    days = [text[:10] for text in changes("db-0.db.shop.svc.cluster.local.", CONFIG, objects)]
    assert days == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert not list(changes("db.example", CONFIG, objects))
