"""Logs, exec, attach, port-forward and proxying: carried to the kubelet of the pod's node.

The server connects to ``https://<InternalIP>:<kubelet port>`` with its client certificate, sends the request with the
kubelet's path, and passes the answer on. An upgraded connection (WebSocket, SPDY) becomes two pipes of bytes, which the
server does not interpret. Backpressure works in both directions. A node's proxy also leads to its other ports, in plain
HTTP or TLS, without the certificate. The API server of a local cluster has no route to pods, so the proxy to pods and
Services goes through the kubelet too, which connects to the pod's port.
Sources: Kubernetes' ``pkg/kubelet/server/server.go`` for the paths, ``pkg/registry/core/node/strategy.go``,
``k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go``.
"""

import asyncio
import re
import ssl
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.kubeletpaths import kubelet_path, with_query
from podwire.embedded.apiserver.links import ProxiedRoot, rewrite_body
from podwire.embedded.apiserver.logsocket import log_protocol, send_log
from podwire.embedded.apiserver.proxytarget import ProxyTarget, proxy_path, proxy_target
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.embedded.apiserver.store import Store
from podwire.errors import ApiError, Disconnected
from podwire.http.answer import Result, Stream, Streaming, Upgrade, encode_switching
from podwire.http.client import ClientConnection, connect, encode_request
from podwire.http.message import Request, Response, text_response
from podwire.http.pipe import Pipe
from podwire.http.websocket import is_upgrade
from podwire.runtime.tasks import TaskSet

Object = dict[str, Any]

_CONNECT_S = 10.0
_ANSWER_S = 30.0
_PODS = KINDS["", "v1", "pods"]
_NODES = KINDS["", "v1", "nodes"]
_NODE = re.compile(r"(?:(?P<scheme>https?):(?=[^:]*:))?(?P<name>[^:]+)(?::(?P<port>\d{1,5}))?")
"""A node, or a port of it."""
_OWN_HEADERS = frozenset({"host", "authorization", "content-length", "transfer-encoding", "expect"})
"""What the server does not pass on: it sends its own, or has answered it."""
_HOP_HEADERS = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "content-length", "content-type", "set-cookie"}
)
"""Headers of an answer that are not passed on as they are."""


class TunnelDestination(NamedTuple):
    """The address and path to which the tunnel passes a request on."""

    host: str
    port: int
    path: str
    tls: bool = True
    kubelet: bool = True
    target: ProxyTarget | None = None
    """The port of a pod that the kubelet connects to."""


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
            if call.subresource == "proxy":
                return await self._proxy(call)
            if call.subresource == "log" and is_upgrade(call.request):
                return await self._log_messages(call)
            return await self._exchange(call.request, self._destination(call))
        except ApiError as failure:
            return failures.render(failure)
        except (OSError, TimeoutError, Disconnected) as failure:
            problem = str(failure) or type(failure).__name__
            return failures.render(ApiError(502, "InternalError", f"error dialing the node: {problem}"))

    async def _proxy(self, call: Call) -> Result:
        request = call.request
        prefix, path = proxy_path(call)
        if not path and request.method in ("GET", "HEAD"):
            # Relative links of the page at the root need the slash.
            return Response(301, headers=(("Location", with_query(f"{prefix}/", request.raw_query)),))
        path = with_query(path or "/", request.raw_query)
        if call.kind.table == "/nodes":
            to = self._of_node(call, path)
            hosts = {f"{to.host}:{to.port}"}
        else:
            target = proxy_target(self.store, call)
            host, port = self._kubelet(target.node)
            to = TunnelDestination(host, port, path, target=target)
            hosts = {target.host}
        root = ProxiedRoot(prefix, frozenset({*hosts, request.headers.get("host", "")}))
        return await self._exchange(request, to, root)

    async def _log_messages(self, call: Call) -> Result:
        protocol = log_protocol(call.request)
        if protocol is None:
            return text_response(
                403, "unable to upgrade: expected the subprotocol binary.k8s.io or base64.binary.k8s.io"
            )
        to = self._destination(call)
        async with asyncio.timeout(_CONNECT_S):
            connection = await self._connect(to)
        passed_on = False
        try:
            connection.send(encode_request("GET", to.path, (("host", f"{to.host}:{to.port}"),)))
            async with asyncio.timeout(_ANSWER_S):
                await connection.head()
            passed_on = connection.status == 200
            if not passed_on:
                return await self._answer(connection, "GET", None)
            return send_log(call.request, protocol, connection, self._tasks)
        finally:
            if not passed_on:
                connection.abort()

    # -- where to

    def _destination(self, call: Call) -> TunnelDestination:
        entry = self.store.get("/pods", call.namespace, call.name)
        if entry is None:
            raise failures.not_found(_PODS, call.name)
        pod = entry.object()
        node = (pod.get("spec") or {}).get("nodeName")
        if not node:
            raise failures.bad_request(f"pod {call.name} does not have a host assigned")
        host, port = self._kubelet(str(node))
        return TunnelDestination(host, port, kubelet_path(call, pod))

    def _of_node(self, call: Call, path: str) -> TunnelDestination:
        """A node's kubelet, or one of its ports: ``NAME``, ``NAME:PORT`` or ``SCHEME:NAME:PORT``."""
        found = _NODE.fullmatch(call.name)
        if found is None or not 0 < int(found["port"] or 1) < 65536:
            problem = f"invalid node request {call.name!r}: expected NAME, NAME:PORT or SCHEME:NAME:PORT"
            raise failures.bad_request(problem)
        host, kubelet = self._kubelet(found["name"])
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

    async def _exchange(self, request: Request, to: TunnelDestination, root: ProxiedRoot | None = None) -> Result:
        """The answer; the links of an answer that comes from a proxied ``root`` are rewritten."""
        async with asyncio.timeout(_CONNECT_S):
            connection = await self._connect(to)
        passed_on = False
        try:
            headers = [(name, value) for name, value in request.headers.items() if _is_passed_on(name)]
            if root is not None:
                headers += [("x-forwarded-uri", request.raw_path), ("x-forwarded-for", request.peer)]
            host = request.headers.get("host", "") if to.target else f"{to.host}:{to.port}"
            connection.send(encode_request(request.method, to.path, (("host", host), *headers), request.body))
            async with asyncio.timeout(_ANSWER_S):
                await connection.head()
            if connection.status == 101:
                passed_on = True
                return Upgrade(lambda transport, leftover: _join(connection, transport, leftover))
            answer = await self._answer(connection, request.method, root)
            passed_on = isinstance(answer, Streaming)
            return answer
        finally:
            if not passed_on:
                connection.abort()

    async def _connect(self, to: TunnelDestination) -> ClientConnection:
        """A connection to the kubelet or to the port of a node or pod.

        Raises: OSError, Disconnected; ApiError 503 when the kubelet cannot reach the pod.
        """
        if to.target is not None:
            return await self.connect_pod(to.target)
        context = (self._context if to.kubelet else _unverified()) if to.tls else None
        return await connect(to.host, to.port, context)

    async def connect_pod(self, target: ProxyTarget) -> ClientConnection:
        """A connection to a port of a pod, through the kubelet of its node.

        Raises: OSError, Disconnected; ApiError 503 when the kubelet cannot reach the pod.
        """
        host, port = self._kubelet(target.node)
        connection = await connect(host, port, self._context)
        query = urlencode({"address": target.address, "port": target.port, "tls": int(target.tls)})
        upgrade = (("host", host), ("connection", "Upgrade"), ("upgrade", "tcp"))
        path = f"/podConnect/{quote(target.namespace)}/{quote(target.pod)}?{query}"
        connection.send(encode_request("GET", path, upgrade))
        await connection.head()
        if connection.status != 101:
            problem = (await connection.body()).decode(errors="replace").strip()
            connection.abort()
            raise ApiError(503, "ServiceUnavailable", f"error trying to reach service: {problem}")
        transport, _ = connection.detach()
        inner = ClientConnection()
        inner.connection_made(transport)
        transport.set_protocol(inner)
        transport.resume_reading()
        return inner

    async def _answer(self, connection: ClientConnection, method: str, root: ProxiedRoot | None) -> Result:
        headers = connection.headers
        kept = tuple((k, v) for k, v in headers.items() if k not in _HOP_HEADERS)
        kept += tuple(("set-cookie", cookie) for cookie in connection.cookies)
        content_type = headers.get("content-type", "text/plain")
        if root is not None and "location" in headers:
            kept = tuple((k, root.rewrite_url(v) if k == "location" else v) for k, v in kept)
        elif root is not None and content_type.partition(";")[0].strip() == "text/html" and method != "HEAD":
            body = rewrite_body(await connection.body(), headers.get("content-encoding", ""), root)
            return Response(connection.status, body, content_type, kept)
        if method == "HEAD" or connection.status in (204, 304):
            return Response(connection.status, b"", content_type, kept)
        if "content-length" in headers:
            return Response(connection.status, await connection.body(), content_type, kept)

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


def _join(connection: ClientConnection, client: asyncio.Transport, leftover: bytes) -> Pipe:
    """Joins the client and the node after the node has switched protocols; returns the client's protocol."""
    node, early = connection.detach()
    client.write(encode_switching(tuple(connection.headers.items())))
    node.write(leftover)
    from_node = Pipe(node, client, frames=connection.headers.get("upgrade", "").lower() == "websocket")
    from_node.data_received(early)
    node.set_protocol(from_node)
    node.resume_reading()
    return Pipe(client, node)


def _is_passed_on(name: str) -> bool:
    return name not in _OWN_HEADERS and not name.startswith(("impersonate-", "x-forwarded-"))


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
