"""Forwards a request over an open connection to another server, and the answer to the client.

A short answer is forwarded as a whole, an answer of unknown length as a stream. An upgraded connection (WebSocket,
SPDY) becomes two pipes of bytes, which the server does not interpret. Backpressure works in both directions. Source:
``k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go``.
"""

import asyncio

from podwire.embedded.apiserver.links import ProxiedRoot, rewrite_body
from podwire.errors import Disconnected
from podwire.http.answer import Result, Stream, Streaming, Upgrade, encode_switching
from podwire.http.client import ClientConnection
from podwire.http.message import Request, Response
from podwire.http.pipe import Pipe
from podwire.runtime.tasks import TaskSet

_OWN_HEADERS = frozenset({"host", "authorization", "content-length", "transfer-encoding", "expect"})
"""Request headers that are not forwarded: the server sends its own, or has handled them."""
_HOP_HEADERS = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "content-length", "content-type", "set-cookie"}
)
"""Headers of an answer that are not forwarded unchanged."""


def passed_headers(request: Request) -> list[tuple[str, str]]:
    """The headers of a request that are forwarded to the other server."""
    return [(name, value) for name, value in request.headers.items() if _is_passed_on(name)]


def _is_passed_on(name: str) -> bool:
    return name not in _OWN_HEADERS and not name.startswith(("impersonate-", "x-forwarded-"))


class RequestRelay:
    """Forwards requests and answers."""

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks

    async def exchange(
        self, connection: ClientConnection, sent: tuple[str, bytes], answer_s: float, root: ProxiedRoot | None = None
    ) -> Result:
        """The answer to the request ``sent``, given as method and bytes; its head arrives within ``answer_s``.

        The links of an answer that comes from a proxied ``root`` are rewritten. The connection is closed, or belongs
        to the answer.
        Raises: Disconnected, TimeoutError.
        """
        method, data = sent
        passed_on = False
        try:
            connection.send(data)
            async with asyncio.timeout(answer_s):
                await connection.head()
            if connection.status == 101:
                passed_on = True
                return Upgrade(lambda transport, leftover: _join(connection, transport, leftover))
            answer = await self.answer(connection, method, root)
            passed_on = isinstance(answer, Streaming)
            return answer
        finally:
            if not passed_on:
                connection.abort()

    async def answer(self, connection: ClientConnection, method: str, root: ProxiedRoot | None) -> Result:
        """The answer whose head has arrived; a stream owns the connection."""
        headers = connection.headers
        end_to_end = tuple((k, v) for k, v in headers.items() if k not in _HOP_HEADERS)
        end_to_end += tuple(("set-cookie", cookie) for cookie in connection.cookies)
        content_type = headers.get("content-type", "text/plain")
        if root is not None and "location" in headers:
            end_to_end = tuple((k, root.rewrite_url(v) if k == "location" else v) for k, v in end_to_end)
        elif root is not None and content_type.partition(";")[0].strip() == "text/html" and method != "HEAD":
            body = rewrite_body(await connection.body(), headers.get("content-encoding", ""), root)
            return Response(connection.status, body, content_type, end_to_end)
        if method == "HEAD" or connection.status in (204, 304):
            return Response(connection.status, b"", content_type, end_to_end)
        if "content-length" in headers:
            return Response(connection.status, await connection.body(), content_type, end_to_end)

        def start(stream: Stream) -> None:
            copying = self._tasks.start("relayed stream", _copy(connection, stream))

            def stop() -> None:
                copying.cancel()

            stream.on_close = stop

        return Streaming(start, connection.status, content_type, end_to_end)


async def _copy(connection: ClientConnection, stream: Stream) -> None:
    """Passes the body of an answer on; cuts the client's connection when the other one breaks."""
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
    """Joins the client and the other server after it has switched protocols; returns the client's protocol."""
    server, early = connection.detach()
    client.write(encode_switching(tuple(connection.headers.items())))
    server.write(leftover)
    from_server = Pipe(server, client, frames=connection.headers.get("upgrade", "").lower() == "websocket")
    from_server.data_received(early)
    server.set_protocol(from_server)
    server.resume_reading()
    return Pipe(client, server)
