"""Watches over WebSocket: each event is one text message of JSON. What the client sends is dropped.

If a client offers one subprotocol, it is accepted; several are refused.
Source: ``HandleWS`` in ``k8s.io/apiserver/pkg/endpoints/handlers/watch.go``, ``golang.org/x/net/websocket``.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from podwire.embedded.apiserver import failures
from podwire.http.answer import Result, Stream, Streaming
from podwire.http.handshake import accept
from podwire.http.message import Request

if TYPE_CHECKING:
    from podwire.http.websocket import WebSocket


class SocketStream:
    """Has the methods of a stream that watches use, and sends messages."""

    def __init__(self, client: "WebSocket") -> None:
        self._client = client
        self.on_close: Callable[[], None] | None = None

    def write_framed(self, chunks: bytes) -> None:
        """Sends each HTTP chunk, which is one event, as a message."""
        for event in _contents(chunks):
            self._client.send_text(event.decode())

    @property
    def buffered(self) -> int:
        """Bytes that the client has not taken yet."""
        return self._client.buffered

    def close(self) -> None:
        """Ends the connection in order."""
        self.on_close = None
        self._client.close()

    def abort(self) -> None:
        """Cuts the connection."""
        self._client.abort()

    def lose(self) -> None:
        """The client has gone, or says that it closes."""
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()


def _contents(chunks: bytes) -> Iterator[bytes]:
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        length = int(size, 16)
        yield rest[:length]
        chunks = rest[length + 2 :]


def send_events(request: Request, watch: Streaming) -> Result:
    """The answer that turns the request into a WebSocket connection and sends it the events of ``watch``.

    Raises: ApiError 400 for several subprotocols.
    """
    offered = [name.strip() for name in request.headers.get("sec-websocket-protocol", "").split(",") if name.strip()]
    if len(offered) > 1:
        raise failures.bad_request("bad websocket protocol: a watch takes one subprotocol at most")

    def serve(client: "WebSocket") -> None:
        stream = SocketStream(client)
        client.on_closed = stream.lose
        watch.start(cast(Stream, stream))

    return accept(request, offered[0] if offered else "", serve)
