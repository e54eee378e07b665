"""References between namespaces and fields that are not served."""

from typing import Any

import msgspec
import pytest

from podwire.gateway.api.attachment import common_hosts, covers, patterns_over
from podwire.gateway.api.authorities import ClientChecks
from podwire.gateway.api.backendrefs import BackendFacts
from podwire.gateway.api.backendtls import PolicyTable
from podwire.gateway.api.filters import Scheme, UnsupportedRule, seconds
from podwire.gateway.api.listeners import ListenerChecker
from podwire.gateway.api.references import ReferenceTarget, is_granted
from podwire.gateway.api.rules import compile_route
from podwire.gateway.api.status import GatewayProblems, gateway_status
from podwire.gateway.backends import UpstreamFacts
from podwire.model.gatewayapi import Gateway, HttpRoute, ReferenceGrant

_NO_SERVICES = UpstreamFacts(services={}, slices=lambda _key: ())
_GRANT = {
    "metadata": {"namespace": "data"},
    "spec": {
        "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "shop"}],
        "to": [{"group": "", "kind": "Service", "name": "web"}],
    },
}


@pytest.mark.parametrize(
    ("kind", "namespace", "target", "granted"),
    [
        ("HTTPRoute", "shop", "web", True),
        ("HTTPRoute", "shop", "other", False),
        ("HTTPRoute", "other", "web", False),
        ("Gateway", "shop", "web", False),
    ],
)
def test_a_grant_covers_what_it_names(kind: str, namespace: str, target: str, *, granted: bool) -> None:
    grants = [msgspec.convert(_GRANT, ReferenceGrant)]
    assert (
        is_granted(grants, kind, namespace, ReferenceTarget(kind="Service", namespace="data", name=target)) == granted
    )


_BACKEND = {"backendRefs": [{"name": "web", "port": 80}]}


def _compiled(rule: dict[str, Any]) -> str:
    route = msgspec.convert({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"rules": [rule]}}, HttpRoute)
    policies = PolicyTable((), lambda key: f"no {key}", "")
    facts = BackendFacts(grants=(), upstreams=_NO_SERVICES, policies=policies)
    return compile_route(route, Scheme("http", 80), facts).refused.message


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (
            {
                "filters": [
                    {"type": "RequestRedirect", "requestRedirect": {}},
                    {"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}},
                ]
            },
            "spec.rules[0].filters",
        ),
        ({"filters": [{"type": "ExtensionRef", "extensionRef": {}}]}, "spec.rules[0].filters[0]"),
        ({"filters": [{"type": "URLRewrite"}]}, "spec.rules[0].filters[0]"),
        ({**_BACKEND, "retry": {"codes": [200]}}, "spec.rules[0].retry.codes"),
        (
            {**_BACKEND, "sessionPersistence": {"idleTimeout": "1h"}},
            "spec.rules[0].sessionPersistence.idleTimeout",
        ),
        (
            {**_BACKEND, "sessionPersistence": {"absoluteTimeout": "1h"}},
            "spec.rules[0].sessionPersistence.absoluteTimeout",
        ),
        (
            {"backendRefs": [{"name": name, "port": 80} for name in ("a", "b")], "sessionPersistence": {}},
            "spec.rules[0].sessionPersistence",
        ),
        (
            {"timeouts": {"request": "1d"}, "backendRefs": [{"name": "web", "port": 80}]},
            "spec.rules[0].timeouts.request",
        ),
        ({"matches": [{"path": {"type": "RegularExpression", "value": "/("}}]}, "spec.rules[0].matches[0].path.value"),
        (
            {"backendRefs": [{"name": "web", "port": 80, "filters": [{"type": "RequestMirror", "requestMirror": {}}]}]},
            "spec.rules[0].backendRefs[0].filters[0]",
        ),
        (
            {
                "matches": [{"path": {"type": "Exact", "value": "/a"}}],
                "filters": [
                    {
                        "type": "URLRewrite",
                        "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
                    }
                ],
            },
            "spec.rules[0].filters[0].urlRewrite.path.type",
        ),
    ],
)
def test_a_field_that_is_not_served_is_named(rule: dict[str, Any], field: str) -> None:
    assert _compiled(rule).startswith(f"{field}:")


@pytest.mark.parametrize(
    ("pattern", "refused"),
    [
        (r"/(?!a).*", True),
        (r"/(?<=a)b", True),
        (r"/(a)\1", True),
        (r"/(?P<n>a)(?P=n)", True),
        (r"/a++", True),
        (r"/[*+?+]+", False),
        (r"/(?:a|b)\d+\+\?+", False),
        (r"/(?P<n>a)", False),
    ],
)
def test_an_expression_that_re2_lacks_is_refused(pattern: str, *, refused: bool) -> None:
    unsupported = _compiled({"matches": [{"path": {"type": "RegularExpression", "value": pattern}}]})
    assert bool(unsupported) == refused


@pytest.mark.parametrize(
    ("text", "expected"), [("10s", 10), ("1m30s", 90), ("500ms", 0.5), ("0s", None), ("1h1m1s1ms", 3661.001)]
)
def test_durations_are_read_in_seconds(text: str, expected: float | None) -> None:
    assert seconds(text, "") == expected


def test_a_duration_without_a_unit_is_refused() -> None:
    with pytest.raises(UnsupportedRule, match="field: expected a duration"):
        seconds("10", "field")


@pytest.mark.parametrize(
    ("pattern", "name", "covered"),
    [
        ("*", "a.example", True),
        ("*.example", "*", False),
        ("*.example", "a.b.example", True),
        ("*.example", "*.b.example", True),
        ("*.b.example", "*.example", False),
        ("*.example", "example", False),
        ("a.example", "a.example", True),
    ],
)
def test_a_wildcard_covers_one_or_more_labels(pattern: str, name: str, *, covered: bool) -> None:
    assert covers(pattern, name) == covered


@pytest.mark.parametrize(
    ("host", "patterns"),
    [
        ("a.b.example", ["a.b.example", "*.b.example", "*.example", "*"]),
        ("*.b.example", ["*.b.example", "*.example", "*"]),
        ("*", ["*"]),
    ],
)
def test_patterns_over_a_host_all_cover_it(host: str, patterns: list[str]) -> None:
    assert list(patterns_over(host)) == patterns
    assert all(covers(pattern, host) for pattern in patterns)


def test_hosts_in_common_are_the_narrower_ones() -> None:
    assert common_hosts("*.Example", ("a.example", "*", "other")) == ("a.example", "*.example")


def _conditions(spec: dict[str, Any]) -> dict[str, tuple[str, str]]:
    gateway = msgspec.convert({"metadata": {"name": "way"}, "spec": spec}, Gateway)
    clients = ClientChecks(gateway, (), lambda key: f"ConfigMap {key} does not exist")
    listeners = ListenerChecker(gateway, (), lambda key: f"Secret {key} does not exist", clients).check()
    status = gateway_status(gateway, listeners, {}, frozenset(), (), GatewayProblems(insecure=clients.insecure))
    groups = {"": status.conditions} | {entry.name: entry.conditions for entry in status.listeners}
    return {
        f"{name} {value.type}".strip(): (value.status, value.reason)
        for name, values in groups.items()
        for value in values
    }


def test_listeners_that_share_a_port_conflict() -> None:
    http = {"protocol": "HTTP", "port": 80}
    conditions = _conditions(
        {"listeners": [{"name": "a", **http}, {"name": "b", **http}, {"name": "c", **http, "port": 81}]}
    )
    assert conditions["a Conflicted"] == conditions["b Conflicted"] == ("True", "HostnameConflict")
    assert conditions["a Accepted"] == ("False", "HostnameConflict")
    assert conditions["c Conflicted"] == ("False", "NoConflicts")
    https = {"name": "b", "protocol": "HTTPS", "port": 80}
    assert _conditions({"listeners": [{"name": "a", **http}, https]})["a Conflicted"] == ("True", "ProtocolConflict")


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"addresses": [{"type": "Hostname", "value": "a.example"}]}, "UnsupportedAddress"),
        ({"infrastructure": {"parametersRef": {"group": "", "kind": "x", "name": "y"}}}, "InvalidParameters"),
    ],
)
def test_a_gateway_field_that_is_not_served_is_refused(field: dict[str, Any], reason: str) -> None:
    listeners = [{"name": "a", "protocol": "HTTP", "port": 80}]
    conditions = _conditions({"listeners": listeners, **field})
    assert conditions["Accepted"] == ("False", reason)
    assert conditions["a Programmed"] == ("False", "Invalid")


def test_an_address_that_is_not_given_is_not_usable() -> None:
    listeners = [{"name": "a", "protocol": "HTTP", "port": 80}]
    conditions = _conditions({"listeners": listeners, "addresses": [{"value": "192.0.2.7"}]})
    assert conditions["Accepted"] == ("True", "Accepted")
    assert conditions["Programmed"] == ("False", "AddressNotUsable")


def test_tcp_and_udp_listeners_can_share_a_port_number() -> None:
    tcp, udp = {"protocol": "TCP", "port": 53}, {"protocol": "UDP", "port": 53}
    conditions = _conditions({"listeners": [{"name": "a", **tcp}, {"name": "b", **udp}]})
    assert conditions["a Accepted"] == conditions["b Accepted"] == ("True", "Accepted")
    conditions = _conditions({"listeners": [{"name": "a", **tcp}, {"name": "b", **tcp}, {"name": "c", **udp}]})
    assert conditions["a Accepted"] == conditions["b Accepted"] == ("False", "ProtocolConflict")
    assert conditions["c Accepted"] == ("True", "Accepted")


def test_a_gateway_without_an_address_is_not_programmed() -> None:
    conditions = _conditions({"listeners": [{"name": "a", "protocol": "HTTP", "port": 80}]})
    assert conditions["Programmed"] == ("False", "AddressNotAssigned")
    assert conditions["a Programmed"] == ("False", "Pending")
