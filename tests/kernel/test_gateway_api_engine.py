"""A real Envoy serves Gateways and their routes as the cases of Gateway API's conformance suite say."""

import http.client
import math
import socket
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import msgspec
import pytest
from tests.cases.gateway.gateway_api_cases import (
    ALIASES,
    AUTHORITIES,
    BACKEND_NAMES,
    CERTIFICATES,
    ApiCase,
    ApiRequest,
    CaseMachine,
    api_cases,
    api_facts,
    services_of,
)
from tests.fakes.certificates import make_certificate
from tests.fakes.ports import free_port
from tests.kernel.gateway_engine import (
    Answer,
    ClientRequest,
    Engine,
    GrpcCall,
    ask_datagram,
    certificate_for,
)

from podwire.gateway.api.translate import translate_api
from podwire.gateway.envoy.drain import drain
from podwire.gateway.routes import (
    Certificate,
    EntryBackend,
    EntryEndpoint,
    EntryListener,
    EntryRoute,
    Forward,
    GatewayEntry,
    RequestMatch,
    RouteTable,
    Session,
    StreamTarget,
    TrustedAuthority,
    VirtualHost,
    WeightedBackend,
)
from podwire.runtime.polling import wait_until

CASES = tuple(case for case in api_cases() if case.requests)
_KEYS = tuple(dict.fromkeys(key for case in CASES for key in services_of(case)))
_ADDRESSES = {key: f"127.8.{number // 200}.{1 + number % 200}" for number, key in enumerate(_KEYS)}
_SERVICES = {_ADDRESSES[key]: key for key in _KEYS if key not in ALIASES}
_GRPC = ("infra/grpc-v1", "infra/grpc-v2", "infra/grpc-v3", "infra/infra-v1")
_WELL_KNOWN = {"http": 80, "https": 443}
Ports = dict[tuple[str, int], int]


class Machine(msgspec.Struct):
    """An engine, the certificates of the cases, and files for clients."""

    engine: Engine
    certificates: dict[str, Certificate]
    authorities: dict[str, str]
    files: dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """All of it, once."""
    with TemporaryDirectory(prefix="gw") as directory:
        folder = Path(directory)
        engine = Engine(folder)
        certificates = {key: certificate_for(key, hosts) for key, hosts in CERTIFICATES.items()}
        made = {"backends": make_certificate(*BACKEND_NAMES), "nobody": make_certificate("nobody.example.com")}
        made |= {name: make_certificate(f"{name}.example.com") for name in ("default", "per-port")}
        client = certificates["infra/tls-checks-client-certificate"]
        files = {}
        for name, (chain, key) in {**made, "client": (client.chain, client.key)}.items():
            paths = (folder / f"{name}.crt", folder / f"{name}.key")
            paths[0].write_text(chain)
            paths[1].write_text(key)
            files[name] = (str(paths[0]), str(paths[1]))
        server, private = (Path(file) for file in files["backends"])
        engine.run(engine.backends.start_tls(server, private, Path(files["client"][0])))
        engine.run(engine.grpc_backends.start([_ADDRESSES[key] for key in _GRPC]))
        yield Machine(engine, certificates, {name: chain for name, (chain, _) in made.items()}, files)
        engine.close()


def serve(machine: Machine, case: ApiCase) -> Ports:
    """Puts a case on the engine; the port of loopback for each port of a Gateway."""
    ports: Ports = {}
    backends = machine.engine.backends

    def authority(key: str) -> TrustedAuthority | str:
        if key not in AUTHORITIES:
            return f"ConfigMap {key} does not exist"
        return TrustedAuthority(name=key, chain=machine.authorities[AUTHORITIES[key]])

    facts = api_facts(
        case,
        CaseMachine(
            addresses={key: _ADDRESSES[ALIASES.get(key, key)] for key in _KEYS},
            ports={
                "http": backends.port,
                "https": backends.tls_port,
                "udp": backends.udp_port,
                "grpc": machine.engine.grpc_backends.port,
            },
            certificate=lambda key: machine.certificates.get(key, f"Secret {key} does not exist"),
            authority=authority,
            engine_port=lambda key, port: ports.setdefault((key, port), free_port()),
            system=machine.authorities["backends"],
        ),
    )
    machine.engine.refusals.clear()
    machine.engine.serve(translate_api(facts).entry)
    return ports


def ask(machine: Machine, ports: Ports, request: ApiRequest) -> Answer:
    """The answer to a request of HTTP in a case, on a connection of its own."""
    more = {"X-Backend-Headers": ",".join(f"{name}:{text}" for name, text in request.backend_headers.items())}
    if request.protocol == "h2":
        return _curl(ports[request.gateway], request)
    wire = ClientRequest(
        method="GET" if request.method in ("TCP", "TLS") else request.method,
        host=str(request.url.netloc),
        target=request.target,
        headers=request.headers | (more if request.backend_headers else {}),
        server_name=request.server_name,
        client_certificate=machine.files[request.client_certificate] if request.client_certificate else None,
    )
    return machine.engine.ask(ports[request.gateway], wire)


def _curl(port: int, request: ApiRequest) -> Answer:
    """The answer to a request over HTTP/2 and TLS, with the server name and the host that it says."""
    name = request.server_name
    connect = ["--connect-to", f"{name}:{port}:127.0.0.1:{port}", "-H", f"Host: {request.url.netloc}"]
    command = ["curl", "-sk", "--http2", "-w", "\n%{http_version} %{http_code}", *connect]
    done = subprocess.run(
        [*command, f"https://{name}:{port}{request.target}"], check=True, capture_output=True, text=True, timeout=60
    )
    body, _, last = done.stdout.rpartition("\n")
    version, status = last.split()
    assert version == "2"
    return Answer(int(status), {}, msgspec.json.decode(body) if body.startswith("{") else {})


def _calls(machine: Machine, ports: Ports, request: ApiRequest) -> None:
    call = GrpcCall(
        host=str(request.url.netloc),
        method=str(request.url.path),
        metadata=request.headers,
        repeat=request.repeat,
        authority=machine.certificates["infra/terminate"].chain if request.url.scheme == "https" else "",
    )
    answers = machine.engine.ask_grpc(ports[request.gateway], call)
    assert {answer.code for answer in answers} == {request.code}, request.request
    services = Counter(_SERVICES.get(answer.backend.get("address", ""), "") for answer in answers)
    _check_services(request, services)
    for name, text in request.request_headers.items():
        assert answers[0].backend["metadata"][name] == text
    assert not set(request.no_request_headers) & set(answers[0].backend.get("metadata", {}))


def _datagrams(ports: Ports, request: ApiRequest) -> None:
    answers = [ask_datagram(ports[request.gateway]) for _ in range(request.repeat)]
    _check_services(request, Counter(_SERVICES[answer] for answer in answers))


def _check_services(request: ApiRequest, services: Counter[str]) -> None:
    if request.service:
        assert set(services) == {request.service}, request.request
    _check_shares(request, services)


def _check_shares(request: ApiRequest, services: Counter[str]) -> None:
    """Each choice is made by chance: one test in 100,000 is further off than 4.5 standard deviations."""
    for service, share in request.share.items():
        deviation = math.sqrt(share * (1 - share) / request.repeat)
        assert abs(services[service] / request.repeat - share) <= 4.5 * deviation, services


def _websocket(ports: Ports, request: ApiRequest) -> None:
    head = f"GET {request.target} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    with socket.create_connection(("127.0.0.1", ports[request.gateway]), timeout=20) as client:
        client.sendall(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n\r\n".encode())
        stream = client.makefile("rb")
        assert b" 101 " in stream.readline()
        while stream.readline().strip():
            pass
        client.sendall(b"\x82\x04abcd")
        assert stream.read(6) == b"\x82\x04abcd"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_envoy_answers_as_the_case_says(machine: Machine, case: ApiCase) -> None:
    ports = serve(machine, case)
    engine = machine.engine
    assert not engine.refusals
    for request in case.requests:
        if request.method == "GRPC":
            _calls(machine, ports, request)
        elif request.method == "UDP":
            _datagrams(ports, request)
        elif request.method == "WS":
            _websocket(ports, request)
        else:
            _requests(machine, ports, request)


def _requests(machine: Machine, ports: Ports, request: ApiRequest) -> None:
    before = Counter(machine.engine.backends.requests)
    answers = [ask(machine, ports, request) for _ in range(request.repeat)]
    _check_answer(request, answers[0])
    if request.statuses == (200,) and not request.refused:
        _check_backend(request, answers[0])
    if request.method == "TLS" and not request.refused:
        server = "backends" if request.passthrough else "infra/terminate"
        text = machine.authorities.get(server) or machine.certificates[server].chain
        assert ssl.DER_cert_to_PEM_cert(answers[0].certificate or b"").strip() == text.strip()
    _check_repeated(request, answers)
    for service in request.mirrored if isinstance(request.mirrored, tuple) else ():
        address = _ADDRESSES[service]
        assert wait_until(lambda: machine.engine.backends.requests[address] > before[address], 20)  # noqa: B023


def _check_answer(request: ApiRequest, answer: Answer) -> None:
    if request.refused:
        assert answer.status == 0, request.request
        return
    assert answer.status in request.statuses, request.request
    for name, text in request.answer_headers.items():
        got = ",".join(answer.headers.get(name.lower(), []))
        expected = (text,) if isinstance(text, str) else text
        spaced = {entry.replace(", ", ",") for entry in expected}
        assert got.replace(", ", ",") in spaced, (request.request, name)
    for name in request.no_answer_headers:
        assert name.lower() not in answer.headers, request.request
    if request.redirect is not None:
        (location,) = answer.headers["location"]
        url, wanted = urlsplit(location), request.redirect
        assert url.scheme == wanted.get("scheme", request.url.scheme), location
        assert url.hostname == wanted.get("host", request.url.hostname), location
        if "path" in wanted:
            assert url.path == wanted["path"], location
        port = wanted.get("port", "")
        assert str(url.port or "") in {port} | ({str(_WELL_KNOWN[url.scheme])} if not port else set()), location


def _check_backend(request: ApiRequest, answer: Answer) -> None:
    if request.service:
        assert _SERVICES[answer.backend["address"]] == request.service, request.request
    assert answer.backend["line"].split()[1] == (request.path or request.target), request.request
    if request.backend_sni:
        assert answer.backend["server_name"] == request.backend_sni
    if request.backend_client:
        assert answer.backend["client"] == "client.example.com"
    if request.host:
        assert answer.backend["headers"]["host"] == request.host
    for name, text in request.request_headers.items():
        assert answer.backend["headers"].get(name.lower()) == text, (request.request, name)
    for name in request.no_request_headers:
        assert name.lower() not in answer.backend["headers"], request.request


def _check_repeated(request: ApiRequest, answers: list[Answer]) -> None:
    services = Counter(_SERVICES.get(answer.backend.get("address", ""), "") for answer in answers)
    _check_shares(request, services)
    if request.named_by_header:
        for answer in answers:
            name = answer.backend["headers"][request.named_by_header.lower()]
            assert _SERVICES[answer.backend["address"]].endswith(name)


def _entry(name: str, port: int, action: Forward, endpoints: tuple[EntryEndpoint, ...]) -> GatewayEntry:
    """One listener that leads to one backend."""
    route = EntryRoute(source="HTTPRoute shop/web", match=RequestMatch(), action=action)
    return GatewayEntry(
        listeners=(EntryListener(name=name, port=port, protocol="HTTP", table="web"),),
        tables={"web": RouteTable(name="web", hosts=(VirtualHost(hosts=("*",), routes=(route,)),))},
        backends={"shop/web:80": EntryBackend(key="shop/web:80", endpoints=endpoints)},
    )


@pytest.mark.parametrize(
    ("session", "asked", "told"),
    [
        (Session(kind="cookie", name="stay"), "cookie", "set-cookie"),
        (Session(kind="header", name="X-Stay"), "x-stay", "x-stay"),
    ],
    ids=["cookie", "header"],
)
def test_a_session_keeps_its_endpoint(machine: Machine, session: Session, asked: str, told: str) -> None:
    endpoints = tuple(
        EntryEndpoint(address=f"127.8.9.{number}", port=machine.engine.backends.port) for number in (1, 2, 3)
    )
    port = free_port()
    action = Forward(backends=(WeightedBackend(key="shop/web:80"),), session=session)
    entry = _entry("session", port, action, endpoints)
    machine.engine.serve(entry)
    first = machine.engine.ask(port, ClientRequest(host="a"))
    kept = first.headers[told][0].partition(";")[0]
    answers = [machine.engine.ask(port, ClientRequest(host="a", headers={asked: kept})) for _ in range(9)]
    assert {answer.backend["address"] for answer in answers} == {first.backend["address"]}
    answers = [machine.engine.ask(port, ClientRequest(host="a")) for _ in range(9)]
    assert {answer.backend["address"] for answer in answers} == {endpoint.address for endpoint in endpoints}


def test_a_listener_takes_over_the_port_of_one_that_goes(machine: Machine) -> None:
    port = free_port()
    action = Forward(backends=(WeightedBackend(key="shop/web:80"),))
    endpoint = EntryEndpoint(address="127.8.9.1", port=machine.engine.backends.port)
    machine.engine.refusals.clear()
    for name in ("gateway shop/old:80", "gateway shop/new:80", "gateway shop/newest:80"):
        machine.engine.serve(_entry(name, port, action, (endpoint,)))
        assert machine.engine.ask(port, ClientRequest(host="a")).status == 200
    assert not machine.engine.refusals


def test_a_drained_engine_waits_for_connections_of_streams() -> None:
    with TemporaryDirectory(prefix="gw") as directory:
        engine = Engine(Path(directory))
        port = free_port()
        stream = StreamTarget(source="TCPRoute shop/web", backends=(WeightedBackend(key="shop/web:80"),))
        endpoint = EntryEndpoint(address="127.8.9.1", port=engine.backends.port)
        backend = EntryBackend(key="shop/web:80", endpoints=(endpoint,), protocol="tcp")
        listener = EntryListener(name="gateway shop/front:9000", port=port, protocol="TCP", stream=stream)
        engine.serve(GatewayEntry(listeners=(listener,), backends={backend.key: backend}))
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        client.request("GET", "/")
        assert client.getresponse().read()
        assert drain(engine.admin_socket, 0.5, time.sleep) == 1
        client.request("GET", "/")
        assert client.getresponse().read()
        client.close()
        assert wait_until(lambda: drain(engine.admin_socket, 0.25, time.sleep) == 0, 20)
        engine.close()
