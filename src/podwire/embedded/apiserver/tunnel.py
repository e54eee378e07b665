"""Forwards logs, exec, attach, port-forward and proxy requests to the kubelet of the pod's node.

The server connects to ``https://<InternalIP>:<kubelet port>`` with its client certificate, sends the request with the
kubelet's path, and forwards the answer (see :mod:`podwire.embedded.apiserver.relay`). A node's proxy also leads to its
other ports, in plain HTTP or TLS, without the certificate. The API server of a local cluster has no route to pods, so
the proxy to pods and Services goes through the kubelet too, which connects to the pod's port.
Sources: Kubernetes' ``pkg/kubelet/server/server.go`` for the paths, ``pkg/registry/core/node/strategy.go``.
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
from podwire.embedded.apiserver.links import ProxiedRoot
from podwire.embedded.apiserver.logsocket import log_protocol, send_log
from podwire.embedded.apiserver.proxytarget import ProxyTarget, proxy_path, proxy_target
from podwire.embedded.apiserver.relay import RequestRelay, passed_headers
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.embedded.apiserver.store import Store
from podwire.errors import ApiError, Disconnected
from podwire.http.answer import Result
from podwire.http.client import ClientConnection, connect, encode_request
from podwire.http.handshake import is_upgrade
from podwire.http.message import Request, Response, text_response
from podwire.runtime.tasks import TaskSet

Object = dict[str, Any]

_CONNECT_S = 10.0
_ANSWER_S = 30.0
_PODS = KINDS["", "v1", "pods"]
_NODES = KINDS["", "v1", "nodes"]
_NODE = re.compile(r"(?:(?P<scheme>https?):(?=[^:]*:))?(?P<name>[^:]+)(?::(?P<port>\d{1,5}))?")
"""A node, or a port of it."""


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
        self._relay = RequestRelay(tasks)
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
            # Without the slash, relative links of the root page would resolve to the parent path.
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
                return await self._relay.answer(connection, "GET", None)
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
        match = _NODE.fullmatch(call.name)
        if match is None or not 0 < int(match["port"] or 1) < 65536:
            problem = f"invalid node request {call.name!r}: expected NAME, NAME:PORT or SCHEME:NAME:PORT"
            raise failures.bad_request(problem)
        host, kubelet = self._kubelet(match["name"])
        port = int(match["port"] or kubelet)
        own = port == kubelet
        return TunnelDestination(host, port, path, tls=own or match["scheme"] == "https", kubelet=own)

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
        headers = passed_headers(request)
        if root is not None:
            headers += [("x-forwarded-uri", request.raw_path), ("x-forwarded-for", request.peer)]
        host = request.headers.get("host", "") if to.target else f"{to.host}:{to.port}"
        sent = encode_request(request.method, to.path, (("host", host), *headers), request.body)
        return await self._relay.exchange(connection, (request.method, sent), _ANSWER_S, root)

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

    async def read_kubelet(self, node: str, path: str) -> bytes:
        """A page of a node's kubelet.

        Raises: OSError, Disconnected; ApiError 503 for a page that the kubelet does not have.
        """
        host, port = self._kubelet(node)
        connection = await connect(host, port, self._context)
        try:
            connection.send(encode_request("GET", path, (("host", f"{host}:{port}"),)))
            await connection.head()
            if connection.status != 200:
                raise ApiError(503, "ServiceUnavailable", f"the kubelet answers {connection.status} for {path}")
            return await connection.body()
        finally:
            connection.abort()


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
