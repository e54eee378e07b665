"""Ports that no pod has so."""

import msgspec
import pytest
from tests.unit.policy.check.clusters import findings_of, ids, index, policy

from podwire.model.policy import NetworkPolicy
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.ports import check


@pytest.mark.parametrize(
    ("app", "ports", "kind", "text"),
    [
        (
            "web",
            "{port: htttp}",
            "port-name-unknown",
            "pod shop/web has no port named htttp: nothing matches; there is a port named http",
        ),
        ("web", "{port: admin}", "port-name-unknown", "port names are http"),
        (
            "web",
            "{port: http, protocol: UDP}",
            "port-name-protocol",
            "the pods declare http with protocol TCP, not UDP",
        ),
        ("web", "{port: 80}", "service-port", "80 is the port of Service shop/web, which forwards to port 8080"),
        ("db", "{port: 5432, protocol: UDP}", "port-protocol", "pods declare 5432 as TCP, not as UDP"),
    ],
)
def test_ingress(app: str, ports: str, kind: str, text: str) -> None:
    spec = f"podSelector: {{matchLabels: {{app: {app}}}}}, ingress: [{{ports: [{ports}]}}]"
    result = findings_of(check, policy("shop/p", spec))
    assert [item[:2] for item in result] == [(kind, "spec.ingress[0].ports[0]")]
    assert text in result[0][2]


@pytest.mark.parametrize(
    "ports",
    [
        "{port: http}",
        "{port: 8080}",
        "{port: 9999}",
        "{port: 80}, {port: 8080}",
        "{port: 80, endPort: 90}",
        "{port: 8080, protocol: UDP}, {port: http}, {port: 8080}",
    ],
)
def test_nothing_is_wrong(ports: str) -> None:
    spec = f"podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{ports: [{ports}]}}]"
    assert ids(check, policy("shop/p", spec)) == []


def test_a_port_name_that_only_some_pods_have() -> None:
    result = findings_of(check, policy("shop/p", "podSelector: {}, ingress: [{ports: [{port: sql}]}]"))
    assert [item[0] for item in result] == ["port-name-partly"]
    assert "shop/web" in result[0][2]


def test_egress_is_about_the_ports_of_the_peers() -> None:
    to_web = "to: [{podSelector: {matchLabels: {app: web}}}]"
    spec = "podSelector: {matchLabels: {app: db}}, policyTypes: [Egress], egress: [{%s}]"
    assert ids(check, policy("shop/p", spec % f"{to_web}, ports: [{{port: 80}}]")) == [
        ("service-port", "spec.egress[0].ports[0]")
    ]
    assert ids(check, policy("shop/p", spec % f"{to_web}, ports: [{{port: sql}}]")) == [
        ("port-name-unknown", "spec.egress[0].ports[0]")
    ]
    assert ids(check, policy("shop/p", spec % "ports: [{port: 80}]")) == [], "80 may be anybody's"
    outside = "to: [{podSelector: {matchLabels: {app: web}}}, {ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 80}]"
    assert ids(check, policy("shop/p", spec % outside)) == []


def test_reversed_port_range_is_reported() -> None:
    spec = {"podSelector": {}, "ingress": [{"ports": [{"port": 90, "endPort": 80}]}]}
    old = msgspec.convert({"metadata": {"name": "old", "namespace": "shop"}, "spec": spec}, NetworkPolicy)
    result = check(ClusterIndex(msgspec.structs.replace(index().world, policies=(old,))))
    assert [(item.id, item.field) for item in result] == [("end-before-port", "spec.ingress[0].ports[0]")]
