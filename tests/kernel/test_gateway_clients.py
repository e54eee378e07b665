"""Clients that others wrote, at a real Envoy: curl, gRPC, WebSockets, Chromium."""

import shutil
import socket
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
from tests.kernel.gateway_engine import Engine, certificate_for, free_port
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Request, TextMessage

from podwire.gateway.ingress.translate import IngressPorts, translate
from podwire.gateway.routes import EntryEndpoint

HOSTS = ("web.example", "grpc.example", "chat.example")
CERTIFICATE = certificate_for("shop/cert", HOSTS)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell") or ""


class Served(NamedTuple):
    """The ports of the engine and the file with the certificate of all hosts."""

    ports: IngressPorts
    authority: Path


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
    with TemporaryDirectory(prefix="gw") as directory, grpc_server() as calls, chat_server() as chat:
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
            ),
            requests=(),
        )
        certificates = {"cert": CERTIFICATE, "": CERTIFICATE}
        addresses = {"web": ("127.9.1.1",), "grpc": ("127.0.0.1",), "chat": ("127.0.0.1",)}
        entry = translate(facts_of(case, addresses, engine.backends.port, certificates, ports)).entry
        own = {"shop/grpc:": calls, "shop/chat:": chat}
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
        authority = Path(directory) / "authority.pem"
        authority.write_text(CERTIFICATE.chain)
        yield Served(ports, authority)
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
    import ssl

    return ssl.create_default_context(cafile=options["ca_certs"]).wrap_socket(
        plain, server_hostname=options["server_hostname"]
    )


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
