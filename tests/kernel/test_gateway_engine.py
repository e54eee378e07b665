"""A real Envoy serves Ingresses as the cases say, and stands up to hostile clients."""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import pytest
from tests.cases.gateway.ingress_cases import CaseRequest, IngressCase, facts_of, ingress_cases, services_of
from tests.kernel.gateway_engine import (
    SETTINGS,
    Answer,
    ClientRequest,
    Engine,
    certificate_for,
    free_port,
    hosts_of,
)

from podwire.gateway.ingress.settings import read_defaults
from podwire.gateway.ingress.translate import IngressPorts, translate

CASES = ingress_cases()
_SHARED = {"default.invalid": certificate_for("default", ("default.invalid",))}


class Served(NamedTuple):
    """A case on the engine: the Service of each endpoint's address."""

    services: dict[str, str]
    ports: IngressPorts


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with TemporaryDirectory(prefix="gw") as directory:
        running = Engine(Path(directory))
        yield running
        running.close()


@pytest.fixture(scope="module")
def ports() -> IngressPorts:
    return IngressPorts(free_port(), free_port())


def serve(engine: Engine, ports: IngressPorts, case: IngressCase) -> Served:
    """Puts a case on the engine."""
    addresses = {
        name: tuple(f"127.9.{number}.{entry + 1}" for entry in range(_endpoints(case, name)))
        for number, name in enumerate(services_of(case), 1)
    }
    certificates = {name: certificate_for(f"shop/{name}", hosts) for name, hosts in case.certificates.items()}
    facts = facts_of(case, addresses, engine.backends.port, certificates | {"": _SHARED["default.invalid"]}, ports)
    defaults = read_defaults(case.settings)[0]
    trusted = defaults.trusted_networks if defaults.use_forwarded_headers else ()
    engine.serve(translate(facts).entry, msgspec.structs.replace(SETTINGS, trusted_networks=trusted))
    return Served({address: name for name, known in addresses.items() for address in known}, ports)


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


def test_a_wrong_pattern_is_refused_and_the_last_routes_stay(engine: Engine, web: Served) -> None:
    case = IngressCase(
        name="wrong",
        ingresses=({"name": "x", "hosts": {"x": {"Prefix /(": "web"}}, "annotations": {"use-regex": "true"}},),
        requests=(),
    )
    serve(engine, web.ports, case)
    deadline = time.monotonic() + 20
    while not engine.refusals and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "/(" in engine.refusals.pop().message
    engine.refusals.clear()
    assert engine.ask(web.ports.http, ClientRequest(host="any")).status == 200
