"""Logs, exec, attach, port-forward and proxying: carried to the kubelet of the pod's node.

The server connects to ``https://<InternalIP>:<kubelet port>`` with its client certificate and speaks HTTP/1.1
itself: the request goes on with the kubelet's path, the answer comes back. An upgraded connection (WebSocket,
SPDY) becomes two pipes of bytes; what flows through them is between kubectl and the kubelet. Backpressure goes
through in both directions. A node's proxy also leads to its other ports, in plain HTTP or TLS, without the certificate.
Sources: Kubernetes' ``pkg/kubelet/server/server.go`` for the paths, ``pkg/registry/core/node/strategy.go``.
"""

import asyncio
import re
import ssl
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import httptools

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.settings import Settings
from podwire.embedded.apiserver.store import Store
from podwire.errors import ApiError
from podwire.http.answer import Result, Stream, Streaming, Upgrade
from podwire.http.message import Response
from podwire.runtime.tasks import TaskSet

Object = dict[str, Any]

_CONNECT_S = 10.0
_ANSWER_S = 30.0
_BUFFER = 1 << 20
_PODS = KINDS["", "v1", "pods"]
_NODES = KINDS["", "v1", "nodes"]
_NODE = re.compile(r"(?:(?P<scheme>https?):(?=[^:]*:))?(?P<name>[^:]+)(?::(?P<port>\d{1,5}))?")
"""A node, or a port of it."""
_HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "content-length"})


class _Answer:
    """Collects the head and body of the kubelet's answer."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.head_complete = False
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head has arrived."""
        self.head_complete = True

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        self.complete = True

    def take(self) -> bytes:
        """What has arrived of the body since the last call."""
        data, self.pieces = b"".join(self.pieces), []
        return data


class _Pipe(asyncio.Protocol):
    """The client's side of an upgraded connection: bytes to the kubelet, at its pace."""

    def __init__(self, transport: asyncio.Transport, other: asyncio.StreamWriter, tasks: TaskSet) -> None:
        self._transport = transport
        self._other = other
        self._tasks = tasks
        self._waiting = False
        self._free = asyncio.Event()
        self._free.set()
        other.transport.set_write_buffer_limits(high=_BUFFER)

    def data_received(self, data: bytes) -> None:
        """On to the kubelet; the client waits while much is unsent."""
        self._other.write(data)
        if self._other.transport.get_write_buffer_size() > _BUFFER and not self._waiting:
            self._waiting = True
            self._transport.pause_reading()
            self._tasks.start("kubelet input", self._relieve())

    async def _relieve(self) -> None:
        """Reads on when the kubelet has taken most of what was sent."""
        try:
            await self._other.drain()
        except OSError:
            return
        finally:
            self._waiting = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        """The client is done sending, and closes."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._free.set()
        self._other.close()

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self._free.clear()

    def resume_writing(self) -> None:
        """The client caught up."""
        self._free.set()

    async def writable(self) -> None:
        """Returns when the client can take more."""
        await self._free.wait()


class Destination(NamedTuple):
    """Where a request goes on to."""

    host: str
    port: int
    path: str
    tls: bool = True
    kubelet: bool = True


class Tunnel:
    """Carries requests to kubelets, and to other ports of nodes."""

    store: Store
    """Where pods and nodes are found; to be set before the first request."""

    def __init__(self, settings: Settings, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._context = _client_context(settings)

    async def carry(self, call: Call) -> Result:
        """The kubelet's answer, or the failure to get one."""
        try:
            return await self._exchange(call, self._destination(call))
        except ApiError as failure:
            return failures.render(failure)
        except (
            OSError,
            ssl.SSLError,
            TimeoutError,
            httptools.HttpParserError,
            asyncio.IncompleteReadError,
        ) as failure:
            problem = str(failure) or type(failure).__name__
            return failures.render(ApiError(502, "InternalError", f"error dialing the node: {problem}"))

    # -- where to

    def _destination(self, call: Call) -> Destination:
        if call.kind.table == "/nodes":
            return self._of_node(call)
        if call.subresource == "proxy":
            raise ApiError(501, "NotImplemented", "proxying to pods and Services is not offered; use port-forward")
        entry = self.store.get("/pods", call.namespace, call.name)
        if entry is None:
            raise failures.not_found(_PODS, call.name)
        pod = entry.object()
        node = (pod.get("spec") or {}).get("nodeName")
        if not node:
            raise failures.bad_request(f"pod {call.name} does not have a host assigned")
        host, port = self._kubelet(str(node))
        return Destination(host, port, _kubelet_path(call, pod))

    def _of_node(self, call: Call) -> Destination:
        """A node's kubelet, or one of its ports: ``NAME``, ``NAME:PORT`` or ``SCHEME:NAME:PORT``."""
        found = _NODE.fullmatch(call.name)
        if found is None or not 0 < int(found["port"] or 1) < 65536:
            problem = f"invalid node request {call.name!r}: expected NAME, NAME:PORT or SCHEME:NAME:PORT"
            raise failures.bad_request(problem)
        host, kubelet = self._kubelet(found["name"])
        path = _with_query("/" + "/".join(call.target.rest), call.request.raw_query)
        port = int(found["port"] or kubelet)
        own = port == kubelet
        return Destination(host, port, path, tls=own or found["scheme"] == "https", kubelet=own)

    def _kubelet(self, node: str) -> tuple[str, int]:
        entry = self.store.get("/nodes", "", node)
        if entry is None:
            raise failures.not_found(_NODES, node)
        status = entry.object().get("status") or {}
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 10250
        for address in status.get("addresses") or ():
            if address.get("type") == "InternalIP":
                return str(address.get("address")), int(port)
        raise ApiError(503, "ServiceUnavailable", f'node "{node}" has no InternalIP')

    # -- the exchange

    async def _exchange(self, call: Call, to: Destination) -> Result:
        request = call.request
        context = (self._context if to.kubelet else _unverified()) if to.tls else None
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(to.host, to.port, ssl=context, limit=_BUFFER)
        handed_over = False
        try:
            lines = [f"{request.method} {to.path} HTTP/1.1", f"Host: {to.host}:{to.port}"]
            for name, value in request.headers.items():
                if name not in ("host", "authorization", "content-length", "transfer-encoding"):
                    lines.append(f"{name}: {value}")
            if request.body or request.method in ("POST", "PUT", "PATCH"):
                lines.append(f"content-length: {len(request.body)}")
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + request.body)
            head = await self._head(reader, writer)
            status = int(head.split(b" ", 2)[1])
            handed_over = True
            if status == 101:
                return Upgrade(lambda transport, leftover: self._pipe(transport, leftover, head, reader, writer))
            return await self._answer(head, reader, writer)
        finally:
            if not handed_over:
                writer.close()

    async def _head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        await writer.drain()
        async with asyncio.timeout(_ANSWER_S):
            return await reader.readuntil(b"\r\n\r\n")

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Result:
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        parser.feed_data(head)
        status = parser.get_status_code()
        kept = tuple((k, v) for k, v in answer.headers.items() if k not in _HOP_HEADERS and k != "content-type")
        content_type = answer.headers.get("content-type", "text/plain")
        if "content-length" in answer.headers or answer.complete:
            while not answer.complete:
                data = await reader.read(_BUFFER)
                if not data:
                    break
                parser.feed_data(data)
            writer.close()
            return Response(status, answer.take(), content_type, kept)

        def start(stream: Stream) -> None:
            task = self._tasks.start("kubelet stream", self._copy(stream, answer, parser, reader, writer))
            stream.on_close = task.cancel  # type: ignore[assignment]

        return Streaming(start, status, content_type, kept)

    async def _copy(
        self, stream: Stream, answer: _Answer, parser: Any, reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        try:
            stream.write(answer.take())
            while not answer.complete:
                data = await reader.read(_BUFFER)
                if not data:
                    break
                parser.feed_data(data)
                stream.write(answer.take())
                await stream.drain()
            stream.on_close = None
            stream.close()
        except (OSError, httptools.HttpParserError):
            stream.abort()
        finally:
            writer.close()

    def _pipe(
        self, transport: asyncio.Transport, leftover: bytes, head: bytes, reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> _Pipe:  # fmt: skip
        transport.write(head)
        writer.write(leftover)
        pipe = _Pipe(transport, writer, self._tasks)
        self._tasks.start("kubelet tunnel", _pump(pipe, transport, reader, writer))
        return pipe


async def _pump(
    pipe: _Pipe, transport: asyncio.Transport, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Bytes from the kubelet to the client, until either side ends."""
    try:
        while data := await reader.read(_BUFFER):
            await pipe.writable()
            if transport.is_closing():
                break
            transport.write(data)
    except OSError:
        pass
    finally:
        transport.close()
        writer.close()


def _unverified() -> ssl.SSLContext:
    """For a port of a node, of whose certificate nothing is known; Kubernetes does not look at it either."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _client_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(settings.kubelet_ca or settings.client_ca)
    if settings.kubelet_certificate is not None:
        context.load_cert_chain(settings.kubelet_certificate, settings.kubelet_key)
    return context


def _with_query(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


def _kubelet_path(call: Call, pod: Object) -> str:
    spec = pod.get("spec") or {}
    where = f"{quote(call.namespace)}/{quote(call.name)}"
    if call.subresource == "portforward":
        return _with_query(f"/portForward/{where}", call.request.raw_query)
    container = call.query.get("container", "") or _default_container(call, pod)
    names = [
        c.get("name")
        for field in ("containers", "initContainers", "ephemeralContainers")
        for c in spec.get(field) or ()
    ]
    if container not in names:
        raise failures.bad_request(f"container {container} is not valid for pod {call.name}")
    pairs = [(key, value) for key, value in call.request.query_pairs() if key != "container"]
    if call.subresource == "log":
        return _with_query(f"/containerLogs/{where}/{quote(container)}", urlencode(pairs))
    renamed = {"stdin": "input", "stdout": "output", "stderr": "error"}
    pairs += [(renamed[key], "1") for key, value in pairs if key in renamed and value in ("true", "1")]
    return _with_query(f"/{call.subresource}/{where}/{quote(container)}", urlencode(pairs))


def _default_container(call: Call, pod: Object) -> str:
    containers = [str(c.get("name")) for c in (pod.get("spec") or {}).get("containers") or ()]
    chosen = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if chosen in containers:
        return str(chosen)
    if len(containers) > 1:
        raise failures.bad_request(
            f"a container name must be specified for pod {call.name}, choose one of: [{' '.join(containers)}]"
        )
    return containers[0] if containers else ""
