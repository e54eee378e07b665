"""Ingresses as routes, held against the tables of Kubernetes and of ingress-nginx by the matching rules."""

import msgspec
import pytest
from tests.cases.gateway.ingress_cases import CaseRequest, IngressCase, facts_of, ingress_cases, services_of

from podwire.gateway.ingress.translate import DEFAULT_CERTIFICATE, Translation, translate
from podwire.gateway.matching import HttpRequest, RouteDecision, decide
from podwire.gateway.routes import (
    BasicAuth,
    Certificate,
    ClientValidation,
    FixedAnswer,
    Forward,
    HttpRedirect,
    TrustedAuthority,
)

CASES = ingress_cases()


def _translated(case: IngressCase) -> Translation:
    addresses = {
        name: () if name in case.without_endpoints else (f"10.244.0.{number}",)
        for number, name in enumerate(services_of(case), 1)
    }
    certificates = {name: Certificate(name=name, chain=name, key="key") for name in case.certificates}
    return translate(facts_of(case, addresses, 3000, certificates))


def _decision(translation: Translation, request: CaseRequest) -> RouteDecision:
    is_tls = request.url.scheme == "https"
    host = str(request.url.netloc)
    return decide(
        translation.entry,
        HttpRequest(
            port=443 if is_tls else 80,
            server_name=host if is_tls else "",
            host=host,
            method=request.method,
            path=request.target,
            headers={name.lower(): text for name, text in request.headers.items()},
        ),
    )


def _services(translation: Translation, action: Forward) -> set[str]:
    backends = translation.entry.backends
    shares = [backends[share.key] for share in action.backends if share.key in backends]
    members = [backend.first_of or (backend.key,) for backend in shares]
    served = [next((key for key in keys if backends[key].endpoints), "") for keys in members]
    served = [key for key in served if key]
    return {key.split("/")[1].partition(":")[0] for key in served}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_requests_take_the_route_that_the_case_says(case: IngressCase) -> None:
    translation = _translated(case)
    for request in case.requests:
        decision = _decision(translation, request)
        action = decision.route.action if decision.route is not None else None
        if request.service:
            assert isinstance(action, Forward), request.request
            assert _services(translation, action) == {request.service}, request.request
        elif request.location:
            assert isinstance(action, HttpRedirect), request.request
            assert action.status == request.status, request.request
        elif request.status == 404:
            assert decision.status == 404, request.request
        elif request.status == 503 and isinstance(action, Forward):
            assert not _services(translation, action), request.request
            assert {share.missing_status for share in action.backends} == {503}, request.request
        elif isinstance(action, FixedAnswer):
            assert action.status == request.status, request.request


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_server_names_choose_certificates(case: IngressCase) -> None:
    translation = _translated(case)
    for request in case.requests:
        server = _decision(translation, request).server
        if request.certificate:
            assert server is not None
            (name,) = server.certificates
            host = str(request.url.netloc)
            names = case.certificates[name.removeprefix("shop/")]
            assert host in names or f"*.{host.partition('.')[2]}" in names
        if request.default_certificate:
            assert server is not None
            assert server.certificates == (DEFAULT_CERTIFICATE,)


def _case(*ingresses: dict[str, object]) -> IngressCase:
    return IngressCase(name="", ingresses=ingresses, requests=())


def _web(annotations: dict[str, str] | None = None, name: str = "web") -> dict[str, object]:
    return {"name": name, "hosts": {"web.example": {"Prefix /": "web"}}, "annotations": annotations or {}}


def test_an_unknown_annotation_is_named_and_the_rest_served() -> None:
    translation = _translated(_case(_web({"limit-connections": "1"})))
    (problem,) = translation.problems
    assert problem.key == "shop/web"
    assert problem.message == "metadata.annotations[nginx.ingress.kubernetes.io/limit-connections] is not supported"
    assert translation.entry.backends


def test_a_snippet_is_refused() -> None:
    translation = _translated(_case(_web({"configuration-snippet": "return 200;"})))
    assert "is refused" in translation.problems[0].message


@pytest.mark.parametrize(
    ("annotation", "text", "expected"),
    [
        ("ssl-redirect", "maybe", "expected true or false"),
        ("proxy-body-size", "8 apples", "expected a size"),
        ("canary-weight", "-1", "expected a whole number"),
        ("permanent-redirect-code", "200", "expected 301"),
        ("denylist-source-range", "10.0.0.0/33", "does not appear to be"),
        ("upstream-hash-by", "$uri$args", "expected $remote_addr"),
        ("app-root", "home", "begins with /"),
        ("canary-by-header-pattern", "(?=a)", "expected a regular expression of RE2"),
        ("session-cookie-name", "", "expected a name"),
        ("limit-rps", "99999999999", "expected a whole number"),
        ("upstream-vhost", "a\nb", "expected one line"),
        ("server-alias", "~^www\\d", "expected names of hosts"),
        ("custom-http-errors", "404,200", "expected statuses from 300 to 599"),
    ],
)
def test_a_wrong_annotation_keeps_its_default(annotation: str, text: str, expected: str) -> None:
    translation = _translated(_case(_web({annotation: text})))
    (problem,) = translation.problems
    assert annotation in problem.message
    assert expected in problem.message


def test_errors_without_a_backend_for_them_are_named() -> None:
    translation = _translated(_case(_web({"custom-http-errors": "404,503"})))
    (problem,) = translation.problems
    field = "metadata.annotations[nginx.ingress.kubernetes.io/custom-http-errors]"
    assert (problem.key, problem.reason) == ("shop/web", "BackendNotFound")
    assert problem.message == f"{field}: expected default-backend beside it, which answers"


def test_a_default_backend_that_is_missing_is_named_once() -> None:
    (problem,) = _translated(_case(_web({"default-backend": "gone", "custom-http-errors": "404"}))).problems
    assert problem.message.endswith("default-backend]: Service shop/gone does not exist or has no ports")


def test_a_missing_service_is_an_event_with_its_field() -> None:
    case = _case({"name": "web", "hosts": {"web.example": {"Prefix /": "does-not-exist"}}})
    (problem,) = _translated(case).problems
    expected = "Ingress shop/web spec.rules[0].http.paths[0]: Service shop/does-not-exist does not exist"
    assert (problem.reason, problem.message) == ("BackendNotFound", expected)


def test_a_missing_certificate_serves_the_default_one() -> None:
    case = _case(_web() | {"tls": {"absent": ["web.example"]}})
    translation = _translated(case)
    (problem,) = translation.problems
    assert problem.reason == "InvalidCertificate"
    assert "spec.tls[0].secretName" in problem.message
    servers = {
        names: server.certificates for server in translation.entry.listeners[1].servers for names in server.names
    }
    assert servers == {"web.example": (DEFAULT_CERTIFICATE,)}


def test_the_newer_of_two_equal_paths_is_reported() -> None:
    older = _web(name="older") | {"created": "2026-01-01T00:00:00Z"}
    newer = _web(name="newer") | {"created": "2026-02-01T00:00:00Z"}
    (problem,) = _translated(_case(newer, older)).problems
    assert problem.key == "shop/newer"
    assert "served by the older Ingress shop/older" in problem.message


def test_a_secret_with_unreadable_users_lets_nobody_in() -> None:
    case = _case(_web({"auth-type": "basic", "auth-secret": "absent"}))
    translation = _translated(case)
    route = translation.entry.tables["ingress-http"].hosts[0].routes[0]
    assert route.action == FixedAnswer(status=503)
    assert route.limits.basic_auth == BasicAuth(users=None)
    assert {problem.reason for problem in translation.problems} == {"InvalidSecret"}


def test_hosts_with_tls_are_told_to_stay_there() -> None:
    case = IngressCase(
        name="", ingresses=(_web() | {"tls": {"web": ["web.example"]}},), requests=(), certificates={"web": ("x",)}
    )
    (route,) = _translated(case).entry.tables["ingress-https"].hosts[0].routes
    assert dict(route.response_headers.set)["Strict-Transport-Security"].startswith("max-age=31536000")


def test_requests_of_grpc_are_not_held_for_their_size() -> None:
    limits = [
        _translated(_case(_web(annotations))).entry.tables["ingress-http"].hosts[0].routes[0].limits.body_bytes
        for annotations in ({}, {"backend-protocol": "GRPC"})
    ]
    assert limits == [1 << 20, 0]


def test_annotations_without_an_effect_are_named() -> None:
    annotations = {"limit-connections": "1", "session-cookie-change-on-failure": "true"}
    messages = [problem.message for problem in _translated(_case(_web(annotations))).problems]
    assert all("is not supported" in message for message in messages)
    assert len(messages) == 2


def test_a_path_that_the_engine_cannot_read_is_refused() -> None:
    wrong: dict[str, object] = {"name": "x", "hosts": {"x": {"Prefix /(?=a)": "web", "Prefix /b": "web"}}}
    translation = _translated(_case(wrong | {"annotations": {"use-regex": "true"}}, _web()))
    (problem,) = translation.problems
    assert (problem.key, problem.reason) == ("shop/x", "InvalidPath")
    assert problem.message.startswith("spec.rules[0].http.paths[0].path: expected a regular expression of RE2, since ")
    assert "got '/(?=a)': invalid perl operator" in problem.message
    hosts = {host.hosts: len(host.routes) for host in translation.entry.tables["ingress-http"].hosts}
    assert hosts == {("x",): 1, ("web.example",): 1}


def test_a_path_with_a_query_is_refused() -> None:
    (problem,) = _translated(_case({"name": "x", "hosts": {"x": {"Prefix /a?b": "web"}}})).problems
    assert "paths[0].path: expected a path without ? and #, got '/a?b'" in problem.message


def test_groups_that_a_path_does_not_have_are_empty() -> None:
    path: dict[str, object] = {"name": "x", "hosts": {"x": {"Prefix /a/(.*)": "web"}}}
    case = _case(path | {"annotations": {"rewrite-target": "/$1/$2"}})
    action = _translated(case).entry.tables["ingress-http"].hosts[0].routes[0].action
    assert isinstance(action, Forward) and action.path is not None
    assert action.path.replacement == r"/\1/"


def test_a_host_is_served_once_whatever_names_it() -> None:
    annotations = {"server-alias": "www.web.example", "from-to-www-redirect": "true"}
    hosts = _translated(_case(_web(annotations))).entry.tables["ingress-http"].hosts
    assert sorted(host.hosts for host in hosts) == [("web.example",), ("www.web.example",)]


def _mutual(secret: str, *, tls: bool = True, **annotations: str) -> Translation:
    known = {"auth-tls-secret": secret} | {name.replace("_", "-"): text for name, text in annotations.items()}
    ingress = _web(known) | ({"tls": {"web": ["web.example"]}} if tls else {})
    case = IngressCase(name="", ingresses=(ingress,), requests=(), certificates={"web": ("web.example",)})
    certificates = {name: Certificate(name=name, chain=name, key="key") for name in case.certificates}
    facts = facts_of(case, {"web": ("10.244.0.1",)}, 3000, certificates)
    authority = TrustedAuthority(name="clients shop/ca", chain="x")
    return translate(
        msgspec.structs.replace(
            facts, authority=lambda key: authority if key == "shop/ca" else f"Secret {key} is no CA"
        )
    )


def test_a_host_asks_its_clients_for_certificates() -> None:
    entry = _mutual("shop/ca").entry
    server = next(server for server in entry.listeners[1].servers if server.names == ("web.example",))
    assert server.clients == ClientValidation(authority="clients shop/ca", depth=1)
    assert entry.authorities["clients shop/ca"].chain == "x"
    (route,) = entry.tables["ingress-https"].hosts[0].routes
    assert route.limits.server_names == ("web.example",) and route.tells_client == "subject"


def test_requests_without_tls_do_not_get_past_certificates() -> None:
    entry = _mutual("shop/ca", tls=False).entry
    assert isinstance(entry.tables["ingress-http"].hosts[0].routes[0].action, HttpRedirect)
    entry = _mutual("shop/ca", ssl_redirect="false").entry
    assert entry.tables["ingress-http"].hosts[0].routes[0].action == FixedAnswer(status=403)


@pytest.mark.parametrize("secret", ["other/ca", "absent", ""])
def test_an_authority_that_cannot_be_read_lets_nobody_in(secret: str) -> None:
    translation = _mutual(secret or "/")
    for table in ("ingress-http", "ingress-https"):
        assert translation.entry.tables[table].hosts[0].routes[0].action == FixedAnswer(status=503)
    assert {problem.reason for problem in translation.problems} == {"InvalidSecret"}


def test_an_annotation_that_keeps_clients_away_is_never_left_out() -> None:
    for annotations in ({"auth-tls-verify-client": "optional"}, {"auth-type": "digest"}, {"satisfy": "any"}):
        translation = _translated(_case(_web(annotations)))
        assert translation.entry.tables["ingress-http"].hosts[0].routes[0].action == FixedAnswer(status=503)
        assert translation.problems


def test_tls_that_is_left_to_the_backend_is_not_read() -> None:
    entry = _translated(_case(_web({"ssl-passthrough": "true"}))).entry
    (server,) = (server for server in entry.listeners[1].servers if server.stream is not None)
    assert server.names == ("web.example",) and not server.certificates and server.stream is not None
    assert [share.key for share in server.stream.backends] == ["shop/web:8080#tcp"]
    assert entry.backends["shop/web:8080#tcp"].protocol == "tcp"
    assert not entry.tables["ingress-https"].hosts
