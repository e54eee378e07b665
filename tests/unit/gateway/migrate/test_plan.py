"""Ingresses as objects of Gateway API: the same requests take the same way, and what is lost is named."""

from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cases.gateway.ingress_cases import CaseRequest, IngressCase, facts_of, ingress_cases, services_of
from tests.cases.gateway.migrated_cases import api_facts_of, migration_of

from podwire.gateway.api.translate import translate_api
from podwire.gateway.ingress.annotations import ANNOTATIONS, PREFIX, PROTECTING
from podwire.gateway.ingress.translate import IngressFacts, IngressPorts, translate
from podwire.gateway.matching import HttpRequest, RouteDecision, decide
from podwire.gateway.migrate.annotations import CARRIED, LOST
from podwire.gateway.migrate.plan import MigrationFacts, MigrationPlan, migrate
from podwire.gateway.routes import Certificate, Forward, GatewayEntry, HttpRedirect

CASES = tuple(
    case
    for case in ingress_cases()
    if all(set(ingress.get("annotations", {})) <= CARRIED for ingress in case.ingresses)
)
PORTS = {80: 80, 443: 443}


def _facts(case: IngressCase) -> IngressFacts:
    addresses = {name: (f"10.244.0.{number}",) for number, name in enumerate(services_of(case), 1)}
    certificates = {name: Certificate(name=name, chain=name, key="key") for name in case.certificates}
    return facts_of(case, addresses, 3000, certificates, IngressPorts(80, 443))


def _outcome(entry: GatewayEntry, request: CaseRequest) -> Any:
    """What becomes of a request: a Service for each share, a redirect, or a status."""
    is_tls = request.url.scheme == "https"
    decision = decide(
        entry,
        HttpRequest(
            port=443 if is_tls else 80,
            server_name=str(request.url.netloc) if is_tls else "",
            host=str(request.url.netloc),
            method=request.method,
            path=request.target,
            headers={name.lower(): text for name, text in request.headers.items()},
        ),
    )
    return _words(decision, entry)


def _words(decision: RouteDecision, entry: GatewayEntry) -> Any:
    action = decision.route.action if decision.route is not None else None
    if isinstance(action, Forward):
        total = sum(share.weight for share in action.backends)
        names = {
            share.key: share.key.partition("#")[0] if share.key in entry.backends else "" for share in action.backends
        }
        shares = {names[share.key]: share.weight / total for share in action.backends if share.weight}
        return shares, action.host, action.timeout
    if isinstance(action, HttpRedirect):
        target = urlsplit(action.location)
        return action.status, action.scheme or target.scheme or "http", action.host or target.hostname or ""
    return decision.status


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_requests_take_the_same_way_after_a_migration(case: IngressCase) -> None:
    facts = _facts(case)
    plan = migration_of(facts)
    before, after = translate(facts).entry, translate_api(api_facts_of(plan, facts, PORTS))
    lost = {entry.text.split(":")[0] for entry in plan.lost}
    compared = 0
    for request in case.requests:
        if not _is_named(request, plan):
            assert _outcome(after.entry, request) == _outcome(before, request), (request.request, lost)
            compared += 1
    assert all(status.conditions[0].status == "True" for known in after.routes.values() for status in known)
    assert compared or plan.lost


def _is_named(request: CaseRequest, plan: MigrationPlan) -> bool:
    """Whether the report says that requests of this kind differ."""
    host = str(request.url.netloc)
    if request.url.scheme == "https":
        sections = {entry.get("hostname") for item in plan.objects[:1] for entry in item["spec"]["listeners"]}
        return not {host, "*." + host.partition(".")[2]} & sections
    texts = [f"{entry.text} " for entry in plan.lost]
    covered = any(f"*.{host.split('.', 2)[-1]} stands for one label" in text for text in texts)
    return covered or any(f"host {host}: " in text for text in texts)


def test_every_annotation_is_carried_over_or_named() -> None:
    assert set(ANNOTATIONS) == CARRIED | set(LOST)
    assert not CARRIED & set(LOST)
    for name in ANNOTATIONS:
        plan = migrate(MigrationFacts(ingresses=_ingresses({name: "x"}), gateway="entry/front", open_routes=True))
        named = any(f"[{PREFIX}{name}]" in entry.field for entry in plan.lost)
        assert named or name in CARRIED, name


def _ingresses(annotations: dict[str, str], hosts: dict[str, dict[str, str]] | None = None) -> Any:
    ingress = {"name": "web", "hosts": hosts or {"web.example": {"Prefix /": "web"}}, "annotations": annotations}
    return _facts(IngressCase(name="", ingresses=(ingress,), requests=())).ingresses


def _migrated(annotations: dict[str, str], hosts: dict[str, dict[str, str]] | None = None) -> MigrationPlan:
    return migrate(MigrationFacts(ingresses=_ingresses(annotations, hosts), gateway="entry/front"))


def _rule(plan: MigrationPlan) -> Any:
    (route,) = (item for item in plan.objects if item["kind"] == "HTTPRoute")
    (rule,) = route["spec"]["rules"]
    return rule


@pytest.mark.parametrize("annotation", sorted(PROTECTING & set(LOST)))
def test_an_ingress_that_keeps_clients_away_is_left_out(annotation: str) -> None:
    text = "10.0.0.0/8" if annotation.endswith("range") else "basic" if annotation == "auth-type" else "users"
    plan = _migrated({annotation: text})
    assert [item["kind"] for item in plan.objects] == ["Gateway"]
    assert any("--open-routes writes them" in entry.text for entry in plan.lost)


def test_everything_below_a_path_is_a_replaced_prefix() -> None:
    plan = _migrated({"rewrite-target": "/$2"}, {"web.example": {"ImplementationSpecific /api(/|$)(.*)": "web"}})
    rule = _rule(plan)
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/api"}}]
    rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
    assert {"type": "URLRewrite", "urlRewrite": rewrite} in rule["filters"]


def test_a_rewrite_with_groups_is_named_with_its_path() -> None:
    plan = _migrated({"rewrite-target": "/x/$1"}, {"web.example": {"ImplementationSpecific /(a|b)/c": "web"}})
    assert [item["kind"] for item in plan.objects] == ["Gateway"]
    (problem,) = (entry for entry in plan.lost if "groups" in entry.text)
    assert (problem.object, problem.field) == ("Ingress shop/web", "spec.rules[0].http.paths[0]")


def test_more_rules_than_a_route_has_are_several_routes() -> None:
    hosts = {"web.example": {f"Prefix /p{number:02}": "web" for number in range(40)}}
    routes = [item for item in _migrated({}, hosts).objects if item["kind"] == "HTTPRoute"]
    assert [len(route["spec"]["rules"]) for route in routes] == [16, 16, 8]
    assert len({route["metadata"]["name"] for route in routes}) == 3


def test_listeners_of_similar_hosts_have_names_of_their_own() -> None:
    hosts = ("a-b.example", "a.b.example", "x" * 63 + ".one.example", "x" * 63 + ".two.example")
    paths = {host: {"Prefix /": "web"} for host in hosts}
    ingress = {"name": "web", "hosts": paths, "tls": {"cert": list(hosts)}}
    plan = migration_of(_facts(IngressCase(name="", ingresses=(ingress,), requests=(), certificates={"cert": hosts})))
    (gateway,) = (item for item in plan.objects if item["kind"] == "Gateway")
    names = [listener["name"] for listener in gateway["spec"]["listeners"]]
    assert len(set(names)) == len(names) == 5
    assert all(len(name) <= 63 for name in names)


def test_secrets_of_other_namespaces_are_granted() -> None:
    ingress = {"name": "web", "hosts": {"web.example": {"Prefix /": "web"}}, "tls": {"cert": ["web.example"]}}
    case = IngressCase(name="", ingresses=(ingress,), requests=(), certificates={"cert": ("web.example",)})
    plan = migration_of(_facts(case))
    (grant,) = (item for item in plan.objects if item["kind"] == "ReferenceGrant")
    assert grant["metadata"]["namespace"] == "shop"
    assert grant["spec"]["to"] == [{"group": "", "kind": "Secret", "name": "cert"}]
