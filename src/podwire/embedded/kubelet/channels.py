"""Channels in one WebSocket connection: exec, attach and port-forward number their streams.

The subprotocol decides the form. In the binary form the first byte of a binary message is the channel. In the Base64
form the first character of a text message is the channel as a digit, and the payload follows in Base64. A client that
names no subprotocol gets the binary form. In versions 4 and 5 the error channel of exec ends with a Status in JSON,
before and without a version with the error's text, and nothing when the program succeeded.
Source: ``k8s.io/streaming/pkg/httpstream/wsstream``, ``pkg/kubelet/cri/streaming/remotecommand/websocket.go``.
"""

import base64
import binascii
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from podwire.http.websocket import WebSocket

V5 = "v5.channel.k8s.io"
V4 = "v4.channel.k8s.io"
V4_BASE64 = "v4.base64.channel.k8s.io"
UNVERSIONED = "channel.k8s.io"
UNVERSIONED_BASE64 = "base64.channel.k8s.io"
NONE = ""
"""The subprotocol of a client that names none."""

_BASE64 = frozenset({V4_BASE64, UNVERSIONED_BASE64})
_WITH_STATUS = frozenset({V5, V4, V4_BASE64})
_ZERO = ord("0")


class Channels:
    """The channels of one connection."""

    def __init__(self, connection: "WebSocket", protocol: str) -> None:
        self._connection = connection
        self._base64 = protocol in _BASE64
        self.ends_with_status = protocol in _WITH_STATUS
        """Whether the error channel ends with a Status in JSON."""

    def send(self, channel: int, data: bytes) -> None:
        """Sends data on a channel; nothing after either side has closed."""
        if self._base64:
            self._connection.send_text(chr(_ZERO + channel) + base64.b64encode(data).decode())
        else:
            self._connection.send(bytes((channel,)) + data)

    async def receive(self) -> tuple[int, bytes] | None:
        """The next channel and its data; None when there will be no more. Messages that break the form are dropped."""
        while (message := await self._connection.receive()) is not None:
            if not message:
                continue
            if not self._base64:
                return message[0], message[1:]
            try:
                return message[0] - _ZERO, base64.b64decode(message[1:], validate=True)
            except binascii.Error:
                continue
        return None

    async def drain(self) -> None:
        """Returns when the client has received most of the sent data."""
        await self._connection.drain()

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()
