"""Sends the body of an answer, a pod's log, as the messages of a WebSocket connection.

``binary.k8s.io``, and a client that names no subprotocol, get binary messages; ``base64.binary.k8s.io`` gets text
messages in Base64. What the client sends is dropped.
Source: ``Reader`` in ``k8s.io/streaming/pkg/httpstream/wsstream``.
"""

import base64
from typing import TYPE_CHECKING

from podwire.errors import Disconnected
from podwire.http.answer import Result
from podwire.http.client import ClientConnection
from podwire.http.handshake import accept, choose_protocol
from podwire.http.message import Request
from podwire.runtime.tasks import TaskSet

if TYPE_CHECKING:
    from podwire.http.websocket import WebSocket

_BASE64 = "base64.binary.k8s.io"
_PROTOCOLS = ("binary.k8s.io", _BASE64, "")


def log_protocol(request: Request) -> str | None:
    """The subprotocol for the client; None when the client offers only others."""
    return choose_protocol(request.headers.get("sec-websocket-protocol", ""), _PROTOCOLS)


def send_log(request: Request, protocol: str, source: ClientConnection, tasks: TaskSet) -> Result:
    """The answer that turns the request into a WebSocket connection and sends it the body of ``source``."""

    def serve(client: "WebSocket") -> None:
        tasks.start("log messages", _copy(source, client, protocol))
        tasks.start("end of log messages", _abort_when_closed(source, client))

    return accept(request, protocol, serve)


async def _copy(source: ClientConnection, client: "WebSocket", protocol: str) -> None:
    try:
        async for chunk in source.chunks():
            if protocol == _BASE64:
                client.send_text(base64.b64encode(chunk).decode())
            else:
                client.send(chunk)
            await client.drain()
    except Disconnected:
        pass
    finally:
        client.close()


async def _abort_when_closed(source: ClientConnection, client: "WebSocket") -> None:
    await client.closed.wait()
    source.abort()
