"""A real Envoy with podwire's discovery server on loopback, backends that tell what they got, and a client."""

import asyncio
import json
import re
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.fakes.certificates import make_certificate

from podwire.gateway.envoy.ads import DiscoveryServer
from podwire.gateway.envoy.bootstrap import bootstrap
from podwire.gateway.envoy.engine import find_envoy
from podwire.gateway.envoy.ready import READY_LISTENER, ready_listener
from podwire.gateway.envoy.resources import LISTENER, resources
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.snapshot import EngineRefusal
from podwire.gateway.routes import Certificate, GatewayEntry
from podwire.runtime.polling import wait_until

T = TypeVar("T")
SETTINGS = EngineSettings(listen_address="127.0.0.1", header_timeout=2)


class Answer(msgspec.Struct, frozen=True):
    """What a client got; ``backend`` is what the backend tells of the request, empty for other answers."""

    status: int
    headers: dict[str, list[str]]
    backend: dict[str, Any]
    certificate: bytes | None = None


def free_port() -> int:
    """A TCP port of loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Backends:
    """HTTP servers on every address of 127.0.0.0/8 at one port; each answer tells its address and the request.

    A request says with ``X-Backend-Headers: name:value,...`` what headers its answer has, and with a path such as
    ``/status/401`` its status.
    """

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.peers: set[str] = set()
        self.requests: Counter[str] = Counter()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, "0.0.0.0", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.peers.add(writer.get_extra_info("peername")[0])
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = [line.partition(":") for line in head[1:] if line]
                headers: dict[str, str] = {}
                for name, _, text in pairs:
                    known = headers.get(name.lower())
                    headers[name.lower()] = text.strip() if known is None else f"{known},{text.strip()}"
                if headers.get("upgrade") == "websocket":
                    await _echo(reader, writer)
                    return
                await _read_body(reader, headers)
                address = writer.get_extra_info("sockname")[0]
                body = json.dumps({"address": address, "line": head[0], "headers": headers}).encode()
                self.requests[address] += 1
                await asyncio.sleep(_delay_s(head[0]))
                more = "".join(
                    f"{pair.strip()}\r\n" for pair in headers.get("x-backend-headers", "").split(",") if pair
                )
                status = re.search(r"/status/(\d{3})", head[0])
                line = f"HTTP/1.1 {status[1] if status else 200} OK\r\n"
                writer.write(f"{line}Content-Type: application/json\r\n{more}".encode())
                writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def _delay_s(line: str) -> float:
    """How long the answer to a request takes, as its query says in milliseconds or seconds."""
    delay = re.search(r"[?&]delay=([\d.]+)(ms|s)", line)
    return float(delay[1]) * (0.001 if delay[2] == "ms" else 1) if delay else 0


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes after the handshake of a WebSocket, as it is."""
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    while data := await reader.read(4096):
        writer.write(data)
    writer.close()


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> None:
    if "content-length" in headers:
        await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        size = 1
        while size:
            size = int(await reader.readline(), 16)
            await reader.readexactly(size + 2)


class Engine:
    """Envoy, the server that feeds it, and a loop in a thread on which they run."""

    def __init__(self, directory: Path, settings: EngineSettings = SETTINGS) -> None:
        self.settings = settings
        self.refusals: list[EngineRefusal] = []
        self.backends = Backends()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._ready_port = free_port()
        self._sockets = (directory / "xds.sock", directory / "admin.sock")
        self.discovery = self._run(self._started())
        file = directory / "envoy.json"
        file.write_text(bootstrap("test", str(self._sockets[0]), str(self._sockets[1]), settings), encoding="utf-8")
        arguments = ["--disable-hot-restart", "--concurrency", "1", "--log-path", str(directory / "envoy.log")]
        self._process = subprocess.Popen([find_envoy(), "-c", file, *arguments])

    async def _started(self) -> DiscoveryServer:
        await self.backends.start()
        server = DiscoveryServer(self._sockets[0], self.refusals.append)
        await server.start()
        return server

    @property
    def pid(self) -> int:
        """The process of Envoy."""
        return self._process.pid

    def close(self) -> None:
        """Ends Envoy and the loop."""
        self._process.terminate()
        self._process.wait()
        self._run(self.discovery.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def serve(self, entry: GatewayEntry, settings: EngineSettings | None = None) -> None:
        """Publishes an entry and returns when the engine has it."""
        wanted = resources(entry, settings or self.settings)
        wanted[LISTENER] |= {READY_LISTENER: ready_listener("127.0.0.1", self._ready_port)}
        self._loop.call_soon_threadsafe(self.discovery.publish, wanted)
        assert wait_until(lambda: self._served(wanted), 30)

    def _served(self, wanted: dict[str, dict[str, Any]]) -> bool:
        discovery = self.discovery
        return bool(discovery.engines) and discovery.has(wanted) and discovery.in_step and _open(self._ready_port)

    def ask(self, port: int, request: "ClientRequest") -> Answer:
        """Sends a request on a connection of its own."""
        return self._run(_ask(port, request))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request; with ``server_name`` over TLS, without a check of the certificate."""

    method: str = "GET"
    host: str
    target: str = "/"
    headers: dict[str, str] = {}
    body: int = 0
    server_name: str = ""


def _open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _ask(port: int, request: ClientRequest) -> Answer:
    context = None
    if request.server_name:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    name = request.server_name or None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
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
    except ConnectionError:
        pass  # the engine refused the body; its answer came before
    writer.close()
    return _answer(data, tls.getpeercert(binary_form=True) if tls else None)


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
    is_json = headers.get("content-type") == ["application/json"]
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
