"""A real Envoy and endpoints that fail or speak TLS: what is asked again, left out, and shown."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import pytest
from tests.cases.gateway.ingress_cases import IngressCase, facts_of
from tests.fakes.ports import free_port
from tests.kernel.gateway_engine import ClientRequest, Engine, certificate_for, running_engine

from podwire.gateway.ingress.translate import IngressPorts, translate
from podwire.gateway.routes import (
    Certificate,
    EntryBackend,
    EntryEndpoint,
    EntryListener,
    EntryRoute,
    Forward,
    GatewayEntry,
    RequestMatch,
    Retry,
    RouteTable,
    TrustedAuthority,
    VirtualHost,
    WeightedBackend,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with running_engine() as running:
        yield running


@pytest.fixture(scope="module")
def ports() -> IngressPorts:
    return IngressPorts(free_port(), free_port())


@pytest.fixture
def closing() -> Iterator[int]:
    """The port of an endpoint that reads a request and closes the connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(65536)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield int(server.getsockname()[1])
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.parametrize(
    ("name", "method", "retry", "answered"),
    [
        ("get", "GET", Retry(attempts=2), True),
        ("delete", "DELETE", Retry(attempts=2), True),
        ("post", "POST", Retry(attempts=2), False),
        ("patch", "PATCH", Retry(attempts=2), False),
        ("off", "GET", None, False),
        ("codes", "GET", Retry(attempts=2, on_codes=(502,), on_connection_error=False), False),
        ("asked", "POST", Retry(attempts=2, on_reset=True), True),
    ],
)
def test_only_requests_that_may_be_repeated_are(
    engine: Engine, ports: IngressPorts, closing: int, name: str, method: str, retry: Retry | None, answered: bool
) -> None:
    endpoints = (
        EntryEndpoint(address="127.9.1.1", port=engine.backends.port),
        EntryEndpoint(address="127.0.0.1", port=closing),
    )
    forward = Forward(backends=(WeightedBackend(key=f"shop/{name}:80"),), retry=retry, timeout=20)
    route = EntryRoute(source=f"Ingress shop/{name}", match=RequestMatch(), action=forward)
    table = RouteTable(name="ingress-http", hosts=(VirtualHost(hosts=("*",), routes=(route,)),))
    listener = EntryListener(name="ingress-http", port=ports.http, protocol="HTTP", table=table.name)
    backend = EntryBackend(key=f"shop/{name}:80", endpoints=endpoints)
    engine.serve(GatewayEntry(listeners=(listener,), tables={table.name: table}, backends={backend.key: backend}))
    request = ClientRequest(method=method, host="any", headers={"x-envoy-retry-on": "5xx"})
    answers = [engine.ask(ports.http, request) for _ in range(8)]
    assert ({answer.status for answer in answers} == {200}) == answered
    told = [answer.backend["headers"] for answer in answers if answer.status == 200]
    assert told
    assert not any(header.startswith("x-envoy-retry") for headers in told for header in headers)


class TlsBackend(NamedTuple):
    """The certificates of a backend that speaks TLS, and of the engine as its client."""

    server: Certificate
    client: Certificate


@pytest.fixture(scope="module")
def tls_backend(engine: Engine) -> Iterator[TlsBackend]:
    server, client = (certificate_for(f"shop/{host}", (f"{host}.example",)) for host in ("backend", "client"))
    with TemporaryDirectory(prefix="gw") as directory:
        files = [Path(directory, name) for name in ("chain", "key", "clients")]
        for file, text in zip(files, (server.chain, server.key, client.chain), strict=True):
            file.write_text(text, encoding="utf-8")
        engine.run(engine.backends.start_tls(*files))
        yield TlsBackend(server, client)


@pytest.mark.parametrize(
    ("name", "annotations", "expected"),
    [
        ("plain", {}, (200, "", "")),
        ("named", {"proxy-ssl-name": "backend.example", "proxy-ssl-server-name": "on"}, (200, "backend.example", "")),
        ("shown", {"proxy-ssl-secret": "shop/tls"}, (200, "", "client.example")),
        (
            "checked",
            {"proxy-ssl-secret": "tls", "proxy-ssl-verify": "on", "proxy-ssl-name": "backend.example"},
            (200, "", "client.example"),
        ),
        (
            "other",
            {"proxy-ssl-secret": "tls", "proxy-ssl-verify": "on", "proxy-ssl-name": "other.example"},
            (503, "", ""),
        ),
        ("foreign", {"proxy-ssl-secret": "bank/tls"}, (503, "", "")),
    ],
)
def test_a_backend_is_spoken_to_as_annotations_say(
    engine: Engine,
    ports: IngressPorts,
    tls_backend: TlsBackend,
    name: str,
    annotations: dict[str, str],
    expected: tuple[int, str, str],
) -> None:
    case = IngressCase(
        name=name,
        requests=(),
        ingresses=(
            {
                "name": name,
                "hosts": {f"{name}.example": {"Prefix /": name}},
                "annotations": annotations | {"backend-protocol": "HTTPS"},
            },
        ),
    )
    authority = TrustedAuthority(name="clients shop/tls", chain=tls_backend.server.chain)
    known = facts_of(
        case,
        {name: ("127.9.1.1",)},
        engine.backends.tls_port,
        {"tls": tls_backend.client, "": certificate_for("default", ("default.invalid",))},
        ports,
    )
    known = msgspec.structs.replace(known, authority=lambda key: authority if key == "shop/tls" else "no")
    engine.serve(translate(known).entry)
    answer = engine.ask(ports.http, ClientRequest(host=f"{name}.example"))
    status, server_name, client = expected
    assert answer.status == status
    if status == 200:
        assert (answer.backend["server_name"], answer.backend["client"]) == (server_name, client)


def test_an_endpoint_that_fails_gets_no_requests_for_a_while(engine: Engine, ports: IngressPorts, closing: int) -> None:
    endpoints = (
        EntryEndpoint(address="127.9.1.1", port=engine.backends.port),
        EntryEndpoint(address="127.0.0.1", port=closing),
    )
    forward = Forward(backends=(WeightedBackend(key="shop/ejected:80"),), timeout=20)
    route = EntryRoute(source="Ingress shop/ejected", match=RequestMatch(), action=forward)
    table = RouteTable(name="ingress-http", hosts=(VirtualHost(hosts=("*",), routes=(route,)),))
    listener = EntryListener(name="ingress-http", port=ports.http, protocol="HTTP", table=table.name)
    backend = EntryBackend(key="shop/ejected:80", endpoints=endpoints)
    engine.serve(GatewayEntry(listeners=(listener,), tables={table.name: table}, backends={backend.key: backend}))

    def failures(requests: int) -> int:
        statuses = [engine.ask(ports.http, ClientRequest(method="POST", host="any")).status for _ in range(requests)]
        return requests - statuses.count(200)

    failed = 0
    for _ in range(100):
        failed += failures(1)
        if failed == 5:
            break
    assert failed == 5
    assert failures(6) == 0
