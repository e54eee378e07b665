"""The server's end of the handshake that turns an HTTP request into a WebSocket connection.

Source: RFC 6455, section 4.2.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from podwire.http.answer import Upgrade, encode_switching
from podwire.http.message import Request

if TYPE_CHECKING:
    from podwire.http.websocket import WebSocket


def choose_protocol(offered: str, known: tuple[str, ...]) -> str | None:
    """The first of ``known`` that the client offers (``offered``: comma-separated); None when it offers none of them.

    An empty list offers the subprotocol without a name; in ``known`` its name is the empty text.
    """
    offers = {name.strip() for name in offered.split(",")} - {""} or {""}
    return next((name for name in known if name in offers), None)


def is_upgrade(request: Request) -> bool:
    """Whether the client asks for a WebSocket connection."""
    return request.headers.get("upgrade", "").lower() == "websocket" and "sec-websocket-key" in request.headers


def accept(request: Request, protocol: str, serve: "Callable[[WebSocket], None]") -> Upgrade:
    """The answer that turns a request (see :func:`is_upgrade`) into a WebSocket connection and calls ``serve`` with it.

    The answer names the subprotocol unless its name is empty.
    """
    from wsproto.utilities import generate_accept_token

    from podwire.http.websocket import WebSocket

    token = generate_accept_token(request.headers["sec-websocket-key"].encode("latin-1")).decode()
    subprotocol = (("Sec-WebSocket-Protocol", protocol),) if protocol else ()
    headers = (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", token), *subprotocol)

    def take(transport: asyncio.Transport, leftover: bytes) -> asyncio.BaseProtocol:
        transport.write(encode_switching(headers))
        connection = WebSocket(transport)
        serve(connection)
        if leftover:
            connection.data_received(leftover)
        return connection

    return Upgrade(take)
