"""Clients that others wrote, at a real Envoy: curl, gRPC, WebSockets, Chromium."""

import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import grpc
import msgspec
import pytest
import websocket
from tests.cases.gateway.ingress_cases import IngressCase, facts_of
from tests.fakes.ports import free_port
from tests.kernel.gateway_engine import Engine, certificate_for
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Request, TextMessage

from podwire.gateway.ingress.translate import IngressPorts, translate
from podwire.gateway.routes import Certificate, EntryEndpoint, TrustedAuthority

HOSTS = ("web.example", "grpc.example", "chat.example", "closed.example")
CERTIFICATE = certificate_for("shop/cert", HOSTS)
CLIENT = certificate_for("client", ("client.example",))
STRANGER = certificate_for("stranger", ("stranger.example",))
PASSED = certificate_for("passed", ("passed.example",))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell") or ""


class Served(NamedTuple):
    """The ports of the engine and the file with the certificate of all hosts."""

    ports: IngressPorts
    authority: Path
    engine: Engine


@contextmanager
def tls_server() -> Iterator[int]:
    """A server that ends TLS itself and answers one request on each connection; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory(prefix="gw") as directory:
        file = Path(directory) / "server.pem"
        file.write_text(PASSED.chain + PASSED.key)
        context.load_cert_chain(file)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_answer_over_tls, args=(listener, context), daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def _answer_over_tls(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        with plain, context.wrap_socket(plain, server_side=True) as connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@contextmanager
def grpc_server() -> Iterator[int]:
    """A server of gRPC whose only method says its request once more; its port."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handler = grpc.stream_stream_rpc_method_handler(lambda requests, _context: (b"again " + data for data in requests))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Say": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(0).wait()


@contextmanager
def chat_server() -> Iterator[int]:
    """A server of WebSockets that sends each text back; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_chat, args=(listener,), daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def _chat(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            protocol = WSConnection(ConnectionType.SERVER)
            while data := connection.recv(65536):
                protocol.receive_data(data)
                for event in protocol.events():
                    match event:
                        case Request():
                            connection.sendall(protocol.send(AcceptConnection()))
                        case TextMessage():
                            connection.sendall(protocol.send(TextMessage(data=f"again {event.data}")))
                        case CloseConnection():
                            connection.sendall(protocol.send(event.response()))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with (
        TemporaryDirectory(prefix="gw") as directory,
        grpc_server() as calls,
        chat_server() as chat,
        tls_server() as passed,
    ):
        engine = Engine(Path(directory))
        ports = IngressPorts(free_port(), free_port())
        case = IngressCase(
            name="clients",
            ingresses=(
                {"name": "web", "hosts": {"web.example": {"Prefix /": "web"}}, "tls": {"cert": list(HOSTS)}},
                {
                    "name": "grpc",
                    "hosts": {"grpc.example": {"Prefix /": "grpc"}},
                    "annotations": {"backend-protocol": "GRPC"},
                },
                {"name": "chat", "hosts": {"chat.example": {"Prefix /": "chat"}}},
                {
                    "name": "closed",
                    "hosts": {"closed.example": {"Prefix /": "web"}},
                    "annotations": {"auth-tls-secret": "shop/ca", "auth-tls-pass-certificate-to-upstream": "true"},
                },
                {
                    "name": "passed",
                    "hosts": {"passed.example": {"Prefix /": "passed"}},
                    "annotations": {"ssl-passthrough": "true"},
                },
            ),
            requests=(),
        )
        certificates = {"cert": CERTIFICATE, "": CERTIFICATE}
        addresses = {"web": ("127.9.1.1",), "grpc": ("127.0.0.1",), "chat": ("127.0.0.1",)}
        addresses["passed"] = ("127.0.0.1",)
        known = facts_of(case, addresses, engine.backends.port, certificates, ports)
        authority = TrustedAuthority(name="clients shop/ca", chain=CLIENT.chain)
        entry = translate(msgspec.structs.replace(known, authority=lambda _key: authority)).entry
        own = {"shop/grpc:": calls, "shop/chat:": chat, "shop/passed:": passed}
        backends = {
            key: msgspec.structs.replace(
                backend,
                endpoints=next(
                    ((EntryEndpoint(address="127.0.0.1", port=own[name]),) for name in own if key.startswith(name)),
                    backend.endpoints,
                ),
            )
            for key, backend in entry.backends.items()
        }
        engine.serve(msgspec.structs.replace(entry, backends=backends))
        file = Path(directory) / "authority.pem"
        file.write_text(CERTIFICATE.chain + PASSED.chain)
        assert not engine.refusals
        yield Served(ports, file, engine)
        engine.close()


def curl(served: Served, url: str, *options: str) -> str:
    """The status and the version of HTTP that curl sees; names lead to the engine."""
    command = [
        "curl",
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code} %{http_version}",
        "--cacert",
        str(served.authority),
    ]
    command += ["--connect-to", f"::127.0.0.1:{served.ports.https if url.startswith('https') else served.ports.http}"]
    return subprocess.run([*command, *options, url], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("options", "version"), [(("--http1.1",), "1.1"), (("--http2",), "2")], ids=["HTTP/1.1", "HTTP/2"]
)
def test_curl_gets_answers_over_tls(served: Served, options: tuple[str, ...], version: str) -> None:
    assert curl(served, "https://web.example/", *options) == f"200 {version}"
    assert curl(served, "https://web.example/", *options, "--data", "x" * 10_000) == f"200 {version}"


def test_curl_is_told_to_use_tls(served: Served) -> None:
    assert curl(served, "http://web.example/") == "308 1.1"
    assert curl(served, "http://web.example/", "--http2-prior-knowledge") == "308 2"


def test_a_call_of_grpc_streams_both_ways(served: Served) -> None:
    credentials = grpc.ssl_channel_credentials(CERTIFICATE.chain.encode())
    options = (("grpc.ssl_target_name_override", "grpc.example"), ("grpc.default_authority", "grpc.example"))
    with grpc.secure_channel(f"127.0.0.1:{served.ports.https}", credentials, options) as channel:
        call: Any = channel.stream_stream("/test.Echo/Say")
        answers = list(call(iter([b"one", b"two"]), timeout=60))
    assert answers == [b"again one", b"again two"]


def test_a_websocket_carries_texts_both_ways(served: Served) -> None:
    options = {"ca_certs": str(served.authority), "server_hostname": "chat.example"}
    plain = socket.create_connection(("127.0.0.1", served.ports.https), timeout=60)
    client = websocket.create_connection("wss://chat.example/room", socket=_secured(plain, options), timeout=60)
    client.send("hello")
    assert client.recv() == "again hello"
    client.close()


def _secured(plain: socket.socket, options: dict[str, str]) -> socket.socket:
    return ssl.create_default_context(cafile=options["ca_certs"]).wrap_socket(
        plain, server_hostname=options["server_hostname"]
    )


def _shown(certificate: Certificate, folder: Path) -> tuple[str, ...]:
    """The options with which curl shows a certificate."""
    file = folder / f"{certificate.name}.pem"
    file.write_text(certificate.chain + certificate.key)
    return "--cert", str(file)


def test_only_clients_with_a_certificate_get_in(served: Served, tmp_path: Path) -> None:
    url = "https://closed.example/"
    forged = ("-H", "ssl-client-verify: FORGED", "-H", "ssl-client-subject-dn: CN=forged")
    command = ["curl", "-sS", "--cacert", str(served.authority), "--connect-to", f"::127.0.0.1:{served.ports.https}"]
    shown = _shown(CLIENT, tmp_path)
    answer = subprocess.run([*command, *shown, *forged, url], capture_output=True, text=True, check=True, timeout=60)
    headers = json.loads(answer.stdout)["headers"]
    assert (headers["ssl-client-verify"], headers["ssl-client-subject-dn"]) == ("SUCCESS", "CN=client.example")
    assert "BEGIN%20CERTIFICATE" in headers["ssl-client-cert"]
    for options in ((), _shown(STRANGER, tmp_path)):
        done = subprocess.run([*command, *options, url], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0 and not done.stdout, done.stderr


def test_another_name_of_tls_does_not_open_a_closed_host(served: Served) -> None:
    command = ("--http1.1", "-H", "Host: closed.example")
    assert curl(served, "https://web.example/", *command).startswith("403")
    assert curl(served, "http://closed.example/").startswith("308")


def test_tls_that_is_passed_on_reaches_the_backend_unread(served: Served) -> None:
    assert curl(served, "https://passed.example/") == "200 1.1"


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium")
def test_chromium_shows_a_page_over_tls(served: Served, tmp_path: Path) -> None:
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom",
        "--ignore-certificate-errors", f"--user-data-dir={tmp_path}",
        f"--host-resolver-rules=MAP web.example 127.0.0.1:{served.ports.https}", "https://web.example/page",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "GET /page HTTP/1.1" in done.stdout
    assert "Chrome" in done.stdout
