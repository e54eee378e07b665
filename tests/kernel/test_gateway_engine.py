"""A real Envoy serves Ingresses as the cases say, and stands up to hostile clients."""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pytest
from tests.cases.gateway.ingress_cases import CaseRequest, IngressCase, facts_of, ingress_cases, services_of
from tests.cases.gateway.migrated_cases import api_facts_of, migration_of
from tests.fakes.ports import free_port
from tests.kernel.gateway_engine import (
    SETTINGS,
    Answer,
    ClientRequest,
    Engine,
    certificate_for,
    hosts_of,
    running_engine,
)

from podwire.gateway.api.translate import translate_api
from podwire.gateway.ingress.enginesettings import with_defaults
from podwire.gateway.ingress.settings import read_defaults
from podwire.gateway.ingress.translate import IngressFacts, IngressPorts, translate
from podwire.gateway.routes import (
    EntryListener,
    EntryRoute,
    FixedAnswer,
    GatewayEntry,
    PathMatch,
    RequestMatch,
    RouteTable,
    VirtualHost,
)
from podwire.runtime.polling import wait_until

CASES = ingress_cases()
_SHARED = {"default.invalid": certificate_for("default", ("default.invalid",))}


class Served(NamedTuple):
    """A case on the engine: the Service of each endpoint's address."""

    services: dict[str, str]
    ports: IngressPorts


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with running_engine() as running:
        yield running


@pytest.fixture(scope="module")
def ports() -> IngressPorts:
    return IngressPorts(free_port(), free_port())


def facts(engine: Engine, ports: IngressPorts, case: IngressCase) -> IngressFacts:
    """What a case is translated from, with addresses at which the backends listen."""
    certificates = {name: certificate_for(f"shop/{name}", hosts) for name, hosts in case.certificates.items()}
    known = certificates | {"": _SHARED["default.invalid"]}
    return facts_of(case, addresses_of(case), engine.backends.port, known, ports)


def addresses_of(case: IngressCase) -> dict[str, tuple[str, ...]]:
    """The addresses of the endpoints of each Service."""
    return {
        name: tuple(f"127.9.{number}.{entry + 1}" for entry in range(_endpoints(case, name)))
        for number, name in enumerate(services_of(case), 1)
    }


def serve(engine: Engine, ports: IngressPorts, case: IngressCase) -> Served:
    """Puts a case on the engine."""
    entry = translate(facts(engine, ports, case)).entry
    engine.serve(entry, with_defaults(SETTINGS, read_defaults(case.settings)[0]))
    return Served({address: name for name, known in addresses_of(case).items() for address in known}, ports)


def _endpoints(case: IngressCase, service: str) -> int:
    return 0 if service in case.without_endpoints else case.endpoints.get(service, 1)


def ask(engine: Engine, served: Served, request: CaseRequest) -> list[Answer]:
    """The answers to a request, as often as the case repeats it."""
    answers: list[Answer] = []
    is_tls = request.url.scheme == "https"
    host = str(request.url.netloc)
    for _ in range(request.repeat):
        cookies = answers[0].headers.get("set-cookie", []) if answers and request.keeps_cookies else []
        more = {"Cookie": "; ".join(cookie.partition(";")[0] for cookie in cookies)} if cookies else {}
        wire = ClientRequest(
            method=request.method,
            host=host,
            target=request.target,
            headers=request.headers | more,
            body=request.body,
            server_name=host.partition(":")[0] if is_tls else "",
        )
        answers.append(engine.ask(served.ports.https if is_tls else served.ports.http, wire))
    return answers


def _check_backend(served: Served, request: CaseRequest, answer: Answer) -> None:
    if request.service:
        assert served.services[answer.backend["address"]] == request.service, request.request
    if request.path:
        assert answer.backend["line"].split()[1] == request.path
    if request.host:
        assert answer.backend["headers"]["host"] == request.host
    for name, text in request.request_headers.items():
        assert answer.backend["headers"].get(name.lower()) == text, (request.request, name)


def _check_answer(request: CaseRequest, answer: Answer) -> None:
    if request.expected_status:
        assert answer.status == request.expected_status, request.request
    if request.location:
        (location,) = answer.headers["location"]
        assert location.rstrip("/") in {known.rstrip("/") for known in request.location}, request.request
    for name, text in request.answer_headers.items():
        assert answer.headers.get(name.lower()) == [text], request.request
    for name in request.no_answer_headers:
        assert name.lower() not in answer.headers, request.request
    cookies = " ".join(answer.headers.get("set-cookie", [])).lower()
    assert all(text.lower() in cookies for text in request.cookie), request.request


def _check_repeated(served: Served, request: CaseRequest, answers: list[Answer]) -> None:
    answers = answers[request.not_counted :]
    statuses = {answer.status for answer in answers}
    addresses = Counter(answer.backend.get("address", "") for answer in answers)
    if request.distinct_endpoints:
        assert len(addresses) == request.distinct_endpoints, request.request
    if request.some_status:
        assert request.some_status in statuses
        assert statuses & set(request.some_status_of)
    services = Counter(served.services.get(address, "") for address in addresses.elements())
    for service, (least, most) in request.share.items():
        assert least <= services[service] / len(answers) <= most


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_envoy_answers_as_the_case_says(engine: Engine, ports: IngressPorts, case: IngressCase) -> None:
    served = serve(engine, ports, case)
    assert not engine.refusals
    for request in case.requests:
        answers = ask(engine, served, request)
        _check_answer(request, answers[0])
        _check_backend(served, request, answers[0])
        _check_repeated(served, request, answers)
        certificate = answers[0].certificate
        if request.certificate:
            assert certificate is not None
            host = request.certificate
            assert {host, f"*.{host.partition('.')[2]}"} & set(hosts_of(certificate)), request.request
        if request.default_certificate:
            assert certificate is not None
            assert hosts_of(certificate) == ("default.invalid",)


@pytest.fixture
def web(engine: Engine, ports: IngressPorts) -> Served:
    """Every host and path goes to one Service."""
    case = IngressCase(name="web", ingresses=({"name": "web", "default": "web"},), requests=())
    return serve(engine, ports, case)


def _status_of(port: int, data: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        return int(connection.recv(65536).split()[1])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"x" * 100_000 + b"\r\n\r\n", 431),
    ],
)
def test_an_ambiguous_request_is_refused(web: Served, data: bytes, status: int) -> None:
    assert _status_of(web.ports.http, data) == status


def test_a_path_is_normalized_before_it_is_matched(engine: Engine, web: Served) -> None:
    answer = engine.ask(web.ports.http, ClientRequest(host="a", target="//a/%2e%2e/admin"))
    assert answer.backend["line"].split()[1] == "/admin"


def test_a_websocket_is_not_held_for_its_size(web: Served) -> None:
    handshake = (
        "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", web.ports.http), timeout=20) as connection:
        connection.sendall(handshake.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")
        connection.sendall(b"hello")
        assert connection.recv(4096) == b"hello"


def test_headers_with_underscores_do_not_reach_a_backend(engine: Engine, web: Served) -> None:
    request = ClientRequest(host="a", headers={"X_Forwarded_For": "10.9.9.9"})
    assert "x_forwarded_for" not in engine.ask(web.ports.http, request).backend["headers"]


def test_half_requests_end_in_time_and_reach_no_backend(engine: Engine, web: Served) -> None:
    before = engine.backends.connections
    connections = [socket.create_connection(("127.0.0.1", web.ports.http), timeout=20) for _ in range(300)]
    try:
        for connection in connections:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        assert engine.ask(web.ports.http, ClientRequest(host="a")).status == 200
        statuses = {connection.recv(4096).split()[1] for connection in connections}
    finally:
        for connection in connections:
            connection.close()
    assert statuses == {b"408"}
    assert engine.backends.connections <= before + 1


def test_a_refused_host_leaves_its_last_routes_and_the_others(engine: Engine, web: Served) -> None:
    match = RequestMatch(path=PathMatch(kind="regex", path="/("))
    wrong = EntryRoute(source="Ingress shop/x", match=match, action=FixedAnswer(status=200))
    right = EntryRoute(source="Ingress shop/y", match=RequestMatch(), action=FixedAnswer(status=201))
    hosts = (VirtualHost(hosts=("*",), routes=(wrong,)), VirtualHost(hosts=("y",), routes=(right,)))
    table = RouteTable(name="ingress-http", hosts=hosts)
    port = EntryListener(name="ingress-http", port=web.ports.http, protocol="HTTP", table="ingress-http")
    engine.serve(GatewayEntry(listeners=(port,), tables={table.name: table}))
    deadline = time.monotonic() + 20
    while not engine.refusals and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "/(" in engine.refusals.pop().message
    engine.refusals.clear()
    assert engine.ask(web.ports.http, ClientRequest(host="any")).status == 200
    assert engine.ask(web.ports.http, ClientRequest(host="y")).status == 201


def test_one_unreadable_path_leaves_other_ingresses(engine: Engine, ports: IngressPorts) -> None:
    wrong = {"name": "x", "hosts": {"x": {"Prefix /(?=a)": "web"}}, "annotations": {"use-regex": "true"}}
    query = {"name": "y", "hosts": {"y": {"Prefix /a?b": "web", "Prefix /a": "web"}}}
    right = {"name": "z", "hosts": {"z": {"Prefix /": "web"}}}
    served = serve(engine, ports, IngressCase(name="wrong", ingresses=(wrong, query, right), requests=()))
    assert not engine.refusals
    statuses = [engine.ask(served.ports.http, ClientRequest(host=host, target="/a")).status for host in ("x", "y", "z")]
    assert statuses == [404, 200, 200]


def test_ingresses_and_what_they_migrate_to_answer_alike(engine: Engine, ports: IngressPorts) -> None:
    annotations = {"canary": "true", "canary-by-header": "X-Canary"}
    away = {"permanent-redirect": "https://new.example/x"}
    tls = {"tls": {"cert": ["tls.example"]}, "hosts": {"tls.example": {"Prefix /": "b"}}}
    below = {"rewrite-target": "/$2"}
    case = IngressCase(
        name="side by side",
        ingresses=(
            {"name": "web", "hosts": {"web.example": {"Exact /login": "a", "Prefix /": "b"}}},
            {"name": "canary", "annotations": annotations, "hosts": {"web.example": {"Prefix /": "c"}}},
            {"name": "tls", **tls},
            {"name": "api", "annotations": below, "hosts": {"api.example": {"Prefix /api(/|$)(.*)": "a"}}},
            {"name": "away", "annotations": away, "hosts": {"old.example": {"Prefix /": "b"}}},
        ),
        requests=(),
        certificates={"cert": ("tls.example",)},
    )  # fmt: skip
    case_facts = facts(engine, ports, case)
    plan = migration_of(case_facts)
    after = IngressPorts(free_port(), free_port())
    api = translate_api(api_facts_of(plan, case_facts, {80: after.http, 443: after.https})).entry
    before = translate(case_facts).entry
    engine.serve(
        GatewayEntry(
            listeners=before.listeners + api.listeners,
            tables=before.tables | api.tables,
            backends=before.backends | api.backends,
            certificates=before.certificates | api.certificates,
        )
    )
    requests = [
        ClientRequest(host="web.example", target="/login"),
        ClientRequest(host="web.example", target="/login/x"),
        ClientRequest(host="web.example", headers={"X-Canary": "always"}),
        ClientRequest(host="web.example", headers={"X-Canary": "never"}),
        ClientRequest(host="api.example", target="/api/v1?x=1"),
        ClientRequest(host="api.example", target="/other"),
        ClientRequest(host="tls.example", target="/a"),
        ClientRequest(host="tls.example", target="/a", server_name="tls.example"),
        ClientRequest(host="old.example", target="/a"),
        ClientRequest(host="unknown.example"),
    ]
    for request in requests:
        one, other = (
            engine.ask(known.https if request.server_name else known.http, request) for known in (ports, after)
        )
        assert _told(one) == _told(other), request


def _guarded(engine: Engine, ports: IngressPorts, path: str, **annotations: str) -> None:
    """Serves a host whose requests another server allows or refuses."""
    asked = {"auth-url": f"http://127.9.9.9:{engine.backends.port}{path}"}
    asked |= {name.replace("_", "-"): text for name, text in annotations.items()}
    ingress = {"name": "web", "hosts": {"a.example": {"Prefix /": "web"}}, "annotations": asked}
    serve(engine, ports, IngressCase(name="auth", ingresses=(ingress,), requests=()))
    assert not engine.refusals


def test_a_request_passes_when_the_other_server_allows_it(engine: Engine, ports: IngressPorts) -> None:
    _guarded(engine, ports, "/allow?x=1", auth_response_headers="X-User,X-Absent")
    before = engine.backends.requests["127.9.9.9"]
    told = {"X-Backend-Headers": "X-User:jane,Set-Cookie:seen=1", "X-User": "root", "X-Absent": "forged"}
    answer = engine.ask(ports.http, ClientRequest(host="a.example", target="/page?y=2", headers=told))
    assert engine.backends.requests["127.9.9.9"] == before + 1
    headers = answer.backend["headers"]
    assert (answer.status, answer.backend["line"]) == (200, "GET /page?y=2 HTTP/1.1")
    assert headers["x-user"] == "jane" and "x-absent" not in headers
    assert "seen=1" in answer.headers["set-cookie"]


def test_a_request_that_the_other_server_refuses_reaches_no_backend(engine: Engine, ports: IngressPorts) -> None:
    before = engine.backends.requests["127.9.1.1"]
    _guarded(engine, ports, "/status/401")
    wanted = {"X-Backend-Headers": 'WWW-Authenticate:Basic realm="x"'}
    answer = engine.ask(ports.http, ClientRequest(host="a.example", headers=wanted))
    assert (answer.status, answer.headers["www-authenticate"]) == (401, ['Basic realm="x"'])
    for path, status in (("/status/403", 403), ("/status/500", 500), ("/status/302", 500)):
        _guarded(engine, ports, path)
        assert engine.ask(ports.http, ClientRequest(host="a.example")).status == status, path
    assert engine.backends.requests["127.9.1.1"] == before


def test_who_is_not_signed_in_is_sent_there(engine: Engine, ports: IngressPorts) -> None:
    _guarded(engine, ports, "/status/401", auth_signin="https://login.example/start?app=1")
    answer = engine.ask(ports.http, ClientRequest(host="a.example", target="/page?y=2"))
    assert answer.status == 302
    expected = "https://login.example/start?app=1&rd=http%3A%2F%2Fa.example%2Fpage%3Fy%3D2"
    assert answer.headers["location"] == [expected]


def test_a_server_that_does_not_answer_lets_nobody_in(engine: Engine, ports: IngressPorts) -> None:
    ingress = {
        "name": "web",
        "hosts": {"a.example": {"Prefix /": "web"}},
        "annotations": {"auth-url": f"http://127.0.0.1:{free_port()}/"},
    }
    serve(engine, ports, IngressCase(name="auth", ingresses=(ingress,), requests=()))
    assert engine.ask(ports.http, ClientRequest(host="a.example")).status == 500


def test_a_copy_of_each_request_goes_to_the_mirror(engine: Engine, ports: IngressPorts) -> None:
    target = f"http://127.9.8.8:{engine.backends.port}$request_uri"
    ingress = {"name": "web", "hosts": {"a.example": {"Prefix /": "web"}}, "annotations": {"mirror-target": target}}
    serve(engine, ports, IngressCase(name="mirror", ingresses=(ingress,), requests=()))
    before = engine.backends.requests["127.9.8.8"]
    answer = engine.ask(ports.http, ClientRequest(host="a.example", target="/page"))
    assert (answer.status, answer.backend["address"]) == (200, "127.9.1.1")
    assert wait_until(lambda: engine.backends.requests["127.9.8.8"] == before + 1, 20)


def test_a_limit_counts_each_client(engine: Engine, ports: IngressPorts) -> None:
    settings = {"use-forwarded-headers": "true", "limit-req-status-code": "429"}
    ingress = {
        "name": "web",
        "hosts": {"a.example": {"Prefix /": "web"}},
        "annotations": {"limit-rpm": "2", "limit-burst-multiplier": "1"},
    }
    serve(engine, ports, IngressCase(name="rate", ingresses=(ingress,), requests=(), settings=settings))
    statuses = {
        client: [
            engine.ask(ports.http, ClientRequest(host="a.example", headers={"X-Forwarded-For": client})).status
            for _ in range(3)
        ]
        for client in ("192.0.2.1", "192.0.2.2")
    }
    assert statuses == {client: [200, 200, 429] for client in statuses}


def test_endpoints_that_fail_their_health_check_get_no_requests(engine: Engine, ports: IngressPorts) -> None:
    case = IngressCase(name="health", ingresses=({"name": "web", "default": "web"},), requests=())
    entry = translate(facts(engine, ports, case)).entry
    for path, status in (("/healthz", 200), ("/status/503", 503)):
        backends = {key: msgspec.structs.replace(value, health_path=path) for key, value in entry.backends.items()}
        engine.serve(msgspec.structs.replace(entry, backends=backends))
        assert wait_until(lambda status=status: _status(engine, ports) == status, 20)  # type: ignore[misc]


def _status(engine: Engine, ports: IngressPorts) -> int:
    return engine.ask(ports.http, ClientRequest(host="a")).status


def _told(answer: Answer) -> tuple[object, ...]:
    backend = answer.backend
    kept = ("strict-transport-security", "location")
    headers = {name: answer.headers.get(name) for name in kept}
    return answer.status, backend.get("address"), backend.get("line"), headers


def test_a_new_gateway_takes_over_the_hosts_of_an_engine(engine: Engine, ports: IngressPorts) -> None:
    def entry(**statuses: int) -> GatewayEntry:
        hosts = [
            VirtualHost(
                hosts=(f"{name}.example",),
                routes=(EntryRoute(source=name, match=RequestMatch(), action=FixedAnswer(status=status)),),
            )
            for name, status in statuses.items()
        ]
        table = RouteTable(name="ingress-http", hosts=tuple(hosts))
        port = EntryListener(name="ingress-http", port=ports.http, protocol="HTTP", table="ingress-http")
        return GatewayEntry(listeners=(port,), tables={table.name: table})

    def answered(**statuses: int) -> bool:
        """Whether the hosts get these answers; a worker of Envoy takes up a change after its confirmation."""
        requests = {name: ClientRequest(host=f"{name}.example") for name in statuses}
        return wait_until(
            lambda: {name: engine.ask(ports.http, item).status for name, item in requests.items()} == statuses, 20
        )

    engine.serve(entry(a=201, b=202, c=203))
    engine.replace_discovery()
    assert answered(a=201, b=202, c=203)
    engine.serve(entry(a=201, b=204, d=205))
    assert answered(a=201, b=204, c=404, d=205)
    engine.serve(entry())
    assert answered(a=404, b=404, c=404, d=404)
    engine.serve(entry(a=206))
    assert answered(a=206)
