"""Logs, exec, attach, port-forward and proxying: carried to the kubelet of the pod's node.

The server connects to ``https://<InternalIP>:<kubelet port>`` with its client certificate, sends the request with the
kubelet's path, and passes the answer on. An upgraded connection (WebSocket, SPDY) becomes two pipes of bytes, which the
server does not interpret. Backpressure works in both directions. A node's proxy also leads to its other ports, in plain
HTTP or TLS, without the certificate. Sources: Kubernetes' ``pkg/kubelet/server/server.go`` for the paths,
``pkg/registry/core/node/strategy.go``.
"""

import asyncio
import re
import ssl
from typing import Any, NamedTuple

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.kubeletpaths import kubelet_path, with_query
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.embedded.apiserver.store import Store
from podwire.errors import ApiError, Disconnected
from podwire.http.answer import Result, Stream, Streaming, Upgrade, encode_switching
from podwire.http.client import ClientConnection, connect, encode_request
from podwire.http.frames import FrameCutter
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
_OWN_HEADERS = frozenset({"host", "authorization", "content-length", "transfer-encoding"})
"""What the server does not pass on: it sends its own."""
_HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "content-length"})


class _Pipe(asyncio.Protocol):
    """One end of an upgraded connection: passes what it receives to the other end, at the pace of the other end."""

    def __init__(self, own: asyncio.Transport, other: asyncio.Transport, *, frames: bool = False) -> None:
        """With ``frames`` the bytes are WebSocket frames, which are written one by one."""
        self._other = other
        self._cutter = FrameCutter() if frames else None
        own.set_write_buffer_limits(high=_BUFFER)

    def data_received(self, data: bytes) -> None:
        """Passes bytes on."""
        for piece in (data,) if self._cutter is None else self._cutter.cut(data):
            self._other.write(piece)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closes the other end after it has sent the bytes of this end."""
        self._other.close()

    def pause_writing(self) -> None:
        """This end reads slowly: the other end waits."""
        self._other.pause_reading()

    def resume_writing(self) -> None:
        """This end caught up."""
        if not self._other.is_closing():
            self._other.resume_reading()


class TunnelDestination(NamedTuple):
    """The address and path to which the tunnel passes a request on."""

    host: str
    port: int
    path: str
    tls: bool = True
    kubelet: bool = True


class Tunnel:
    """Carries requests to kubelets, and to other ports of nodes."""

    store: Store
    """The store with pods and nodes; to be set before the first request."""

    def __init__(self, settings: ApiServerSettings, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._context = _client_context(settings)

    async def carry(self, call: Call) -> Result:
        """The kubelet's answer, or the failure to get one."""
        try:
            return await self._exchange(call, self._destination(call))
        except ApiError as failure:
            return failures.render(failure)
        except (OSError, TimeoutError, Disconnected) as failure:
            problem = str(failure) or type(failure).__name__
            return failures.render(ApiError(502, "InternalError", f"error dialing the node: {problem}"))

    # -- where to

    def _destination(self, call: Call) -> TunnelDestination:
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
        return TunnelDestination(host, port, kubelet_path(call, pod))

    def _of_node(self, call: Call) -> TunnelDestination:
        """A node's kubelet, or one of its ports: ``NAME``, ``NAME:PORT`` or ``SCHEME:NAME:PORT``."""
        found = _NODE.fullmatch(call.name)
        if found is None or not 0 < int(found["port"] or 1) < 65536:
            problem = f"invalid node request {call.name!r}: expected NAME, NAME:PORT or SCHEME:NAME:PORT"
            raise failures.bad_request(problem)
        host, kubelet = self._kubelet(found["name"])
        path = with_query("/" + "/".join(call.target.rest), call.request.raw_query)
        port = int(found["port"] or kubelet)
        own = port == kubelet
        return TunnelDestination(host, port, path, tls=own or found["scheme"] == "https", kubelet=own)

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

    async def _exchange(self, call: Call, to: TunnelDestination) -> Result:
        request = call.request
        context = (self._context if to.kubelet else _unverified()) if to.tls else None
        async with asyncio.timeout(_CONNECT_S):
            connection = await connect(to.host, to.port, context)
        passed_on = False
        try:
            headers = [(name, value) for name, value in request.headers.items() if name not in _OWN_HEADERS]
            host = ("host", f"{to.host}:{to.port}")
            connection.send(encode_request(request.method, to.path, (host, *headers), request.body))
            async with asyncio.timeout(_ANSWER_S):
                await connection.head()
            passed_on = True
            if connection.status == 101:
                return Upgrade(lambda transport, leftover: _join(connection, transport, leftover))
            return await self._answer(connection)
        finally:
            if not passed_on:
                connection.abort()

    async def _answer(self, connection: ClientConnection) -> Result:
        headers = connection.headers
        kept = tuple((k, v) for k, v in headers.items() if k not in _HOP_HEADERS and k != "content-type")
        content_type = headers.get("content-type", "text/plain")
        if "content-length" in headers:
            try:
                return Response(connection.status, await connection.body(), content_type, kept)
            finally:
                connection.abort()

        def start(stream: Stream) -> None:
            copying = self._tasks.start("kubelet stream", _copy(connection, stream))

            def stop() -> None:
                copying.cancel()

            stream.on_close = stop

        return Streaming(start, connection.status, content_type, kept)


async def _copy(connection: ClientConnection, stream: Stream) -> None:
    """Passes the body of an answer on; cuts the client's connection when the node's breaks."""
    try:
        async for chunk in connection.chunks():
            stream.write(chunk)
            await stream.drain()
        stream.on_close = None
        stream.close()
    except Disconnected:
        stream.abort()
    finally:
        connection.abort()


def _join(connection: ClientConnection, client: asyncio.Transport, leftover: bytes) -> _Pipe:
    """Joins the client and the node after the node has switched protocols; returns the client's protocol."""
    node, early = connection.detach()
    client.write(encode_switching(tuple(connection.headers.items())))
    node.write(leftover)
    from_node = _Pipe(node, client, frames=connection.headers.get("upgrade", "").lower() == "websocket")
    from_node.data_received(early)
    node.set_protocol(from_node)
    node.resume_reading()
    return _Pipe(client, node)


def _unverified() -> ssl.SSLContext:
    """For a port of a node, whose certificate cannot be checked; Kubernetes does not check it either."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _client_context(settings: ApiServerSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(settings.kubelet_ca or settings.client_ca)
    if settings.kubelet_certificate is not None:
        context.load_cert_chain(settings.kubelet_certificate, settings.kubelet_key)
    return context
