"""A real Envoy with podwire's discovery server on loopback, backends that tell what they got, and a client."""

import asyncio
import json
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import grpc
import msgspec
from tests.fakes.certificates import make_certificate
from tests.fakes.ports import free_port
from tests.kernel.gateway_backends import Backends, GrpcBackends

from podwire.gateway.config import GatewayConfig
from podwire.gateway.envoy.ads import DiscoveryServer
from podwire.gateway.envoy.bootstrap import bootstrap
from podwire.gateway.envoy.clusters import endpoints
from podwire.gateway.envoy.engine import engine_arguments, find_envoy
from podwire.gateway.envoy.ready import READY_LISTENER, ready_listener
from podwire.gateway.envoy.resources import ENDPOINTS, LISTENER, BuiltResources, build_resources
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.snapshot import EngineRefusal
from podwire.gateway.routes import Certificate, EntryBackend, GatewayEntry
from podwire.runtime.polling import wait_until

T = TypeVar("T")
SETTINGS = EngineSettings(listen_address="127.0.0.1", header_timeout=2)


class Answer(msgspec.Struct, frozen=True):
    """What a client got; ``backend`` is what the backend tells of the request, empty for other answers.

    Status 0 says that the connection was refused.
    """

    status: int
    headers: dict[str, list[str]]
    backend: dict[str, Any]
    certificate: bytes | None = None


REFUSED = Answer(0, {}, {})


class GrpcAnswer(msgspec.Struct, frozen=True):
    """The code of a call and what the backend told."""

    code: str
    backend: dict[str, Any]


class Engine:
    """Envoy, the server that feeds it, and a loop in a thread on which they run."""

    def __init__(self, directory: Path, settings: EngineSettings = SETTINGS) -> None:
        self.settings = settings
        self.refusals: list[EngineRefusal] = []
        self.backends = Backends()
        self.grpc_backends = GrpcBackends()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.ready_port = free_port()
        """The port of ``/ready`` and ``/metrics``."""
        self._built = BuiltResources()
        self._sockets = (directory / "xds.sock", directory / "admin.sock")
        self.discovery = self.run(self._started())
        file = directory / "envoy.json"
        file.write_text(bootstrap("test", str(self._sockets[0]), str(self._sockets[1]), settings), encoding="utf-8")
        arguments = engine_arguments(find_envoy(), file, GatewayConfig(concurrency=1))
        arguments += ["--log-path", str(directory / "envoy.log"), "--file-flush-interval-msec", "100"]
        self._process = subprocess.Popen(arguments)

    def replace_discovery(self) -> None:
        """Ends the server that feeds Envoy and starts another one, which knows nothing."""
        self.run(self.discovery.stop())
        self._built = BuiltResources()
        self.discovery = self.run(self._discovery())

    async def _started(self) -> DiscoveryServer:
        await self.backends.start()
        return await self._discovery()

    async def _discovery(self) -> DiscoveryServer:
        server = DiscoveryServer(self._sockets[0], self.refusals.append)
        await server.start()
        return server

    @property
    def pid(self) -> int:
        """The process of Envoy."""
        return self._process.pid

    @property
    def admin_socket(self) -> Path:
        """Where Envoy takes orders."""
        return self._sockets[1]

    def close(self) -> None:
        """Ends Envoy and the loop."""
        self._process.terminate()
        self._process.wait()
        self.run(self.grpc_backends.stop())
        self.run(self.discovery.stop())
        self.run(self._stopped())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stopped(self) -> None:
        self.backends.close()
        remaining = asyncio.all_tasks() - {asyncio.current_task()}
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)

    def serve(self, entry: GatewayEntry, settings: EngineSettings | None = None) -> None:
        """Publishes an entry and returns when the engine has it."""
        settings = settings or self.settings
        self._built = build_resources(entry, settings, self._built)
        wanted = self._built.resources | {LISTENER: dict(self._built.resources[LISTENER])}
        wanted[LISTENER] |= {READY_LISTENER: ready_listener("127.0.0.1", self.ready_port)}
        self._loop.call_soon_threadsafe(self.discovery.publish, wanted)
        ports = [listener.port for listener in entry.listeners if listener.protocol != "UDP"]
        assert wait_until(lambda: self.run(self._has(wanted)) and all(map(_open, (self.ready_port, *ports))), 30)

    def serve_endpoints(self, backends: Mapping[str, EntryBackend]) -> None:
        """Publishes the endpoints of backends alone, as the gateway does, and returns when the engine has them."""
        wanted = {key: endpoints(backend, backends) for key, backend in backends.items()}
        self.run(self._publish_endpoints(wanted))
        assert wait_until(lambda: self.discovery.in_step, 30)

    async def _publish_endpoints(self, wanted: dict[str, dict[str, Any]]) -> None:
        self.discovery.publish_some(ENDPOINTS, wanted)

    async def _has(self, wanted: dict[str, dict[str, Any]]) -> bool:
        discovery = self.discovery
        return bool(discovery.engines) and discovery.has(wanted) and discovery.in_step

    def ask(self, port: int, request: "ClientRequest") -> Answer:
        """Sends a request on a connection of its own."""
        return self.run(ask_once(port, request))

    def ask_grpc(self, port: int, call: "GrpcCall") -> list[GrpcAnswer]:
        """Makes calls of a method one after another."""
        return self.run(_ask_grpc(port, call))

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 120) -> T:
        """Runs work on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)


@contextmanager
def running_engine(settings: EngineSettings = SETTINGS) -> Iterator[Engine]:
    """An engine with a folder of its own."""
    with TemporaryDirectory(prefix="gw") as directory:
        engine = Engine(Path(directory), settings)
        try:
            yield engine
        finally:
            engine.close()


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request; with ``server_name`` over TLS, without a check of the certificate."""

    method: str = "GET"
    host: str
    target: str = "/"
    headers: dict[str, str] = {}
    body: int = 0
    server_name: str = ""
    client_certificate: tuple[str, str] | None = None
    """Files of the chain and the key."""


class GrpcCall(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a method; with ``authority``, the certificate of the server, over TLS."""

    host: str
    method: str
    metadata: dict[str, str] = {}
    repeat: int = 1
    authority: str = ""


def _open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def ask_once(port: int, request: ClientRequest) -> Answer:
    """The answer to a request on a connection of its own."""
    context = None
    if request.server_name:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if request.client_certificate is not None:
            context.load_cert_chain(*request.client_certificate)
    name = request.server_name or None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    except (ConnectionError, ssl.SSLError):
        return REFUSED
    tls = writer.get_extra_info("ssl_object")
    headers = {"Host": request.host, "Connection": "close"} | request.headers
    headers |= {"Content-Length": str(request.body)} if request.body else {}
    lines = "".join(f"{key}: {text}\r\n" for key, text in headers.items())
    writer.write(f"{request.method} {request.target} HTTP/1.1\r\n{lines}\r\n".encode() + b"x" * request.body)
    data = b""
    try:
        async with asyncio.timeout(20):
            while not _complete(data) and (chunk := await reader.read(65536)):
                data += chunk
    except (ConnectionError, ssl.SSLError):
        pass  # the engine refused the body; its answer came before
    writer.close()
    if not data:
        return REFUSED
    return _answer(data, tls.getpeercert(binary_form=True) if tls else None)


async def _ask_grpc(port: int, call: GrpcCall) -> list[GrpcAnswer]:
    target = f"127.0.0.1:{port}"
    if call.authority:
        credentials = grpc.ssl_channel_credentials(call.authority.encode())
        channel = grpc.aio.secure_channel(target, credentials, [("grpc.ssl_target_name_override", call.host)])
    else:
        channel = grpc.aio.insecure_channel(target, [("grpc.default_authority", call.host)])
    answers = []
    async with channel:
        method = channel.unary_unary(call.method)
        for _ in range(call.repeat):
            try:
                told = await method(b"", metadata=tuple(call.metadata.items()), timeout=20)
                answers.append(GrpcAnswer("OK", json.loads(told)))
            except grpc.aio.AioRpcError as failure:
                answers.append(GrpcAnswer(failure.code().name, {}))
    return answers


def ask_datagram(port: int, timeout_s: float = 10) -> str:
    """What a new client gets for a datagram; empty for nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout_s)
        client.sendto(b"hello", ("127.0.0.1", port))
        try:
            return client.recv(2048).decode()
        except TimeoutError:
            return ""


def _complete(data: bytes) -> bool:
    """Whether an answer with its length in the head has arrived; the engine waits a second before it closes."""
    head, separator, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    if not separator or length is None:
        return bool(separator) and head.split()[1] == b"204"
    return len(body) >= int(length[1])


def _answer(data: bytes, certificate: bytes | None) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, _, text = line.partition(":")
        headers.setdefault(name.lower(), []).append(text.strip())
    is_json = headers.get("content-type") == ["application/json"] and "content-encoding" not in headers
    return Answer(int(status.split()[1]), headers, json.loads(body) if is_json else {}, certificate)


def certificate_for(name: str, hosts: tuple[str, ...]) -> Certificate:
    """A certificate of hosts, signed by itself."""
    chain, key = make_certificate(*hosts)
    return Certificate(name=name, chain=chain, key=key)


def hosts_of(certificate: bytes) -> tuple[str, ...]:
    """The hosts in a certificate in DER form."""
    from cryptography import x509

    names = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return tuple(names.value.get_values_for_type(x509.DNSName))
