"""WebSocket, the server's side: key, frames, messages. Pure: bytes in, messages and bytes out.

Messages are cut from frames, fragments joined; pings are to be answered with the same payload. Frames of a client
have to be masked. Unmasking is one big-integer XOR, some 1 GB/s. Source: RFC 6455 sections 4.2.2, 5.
"""

import base64
import hashlib
import struct
from typing import NamedTuple

from podwire.errors import ProtocolError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL = 1000

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_MESSAGE = 32 << 20


class Message(NamedTuple):
    """One message or control frame."""

    opcode: int
    payload: bytes


def accept_key(key: str) -> str:
    """The ``Sec-WebSocket-Accept`` that answers a ``Sec-WebSocket-Key``."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def choose_protocol(offered: str, known: tuple[str, ...]) -> str:
    """The first of ``known`` among the offered subprotocols (a comma-separated list), or empty text."""
    given = {name.strip() for name in offered.split(",")}
    return next((name for name in known if name in given), "")


def encode(opcode: int, payload: bytes) -> bytes:
    """One unmasked, final frame."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 127, size)
    return head + payload


def encode_close(code: int = NORMAL, reason: str = "") -> bytes:
    """A close frame."""
    return encode(CLOSE, struct.pack("!H", code) + reason.encode()[:120])


class Decoder:
    """Cuts what a client sends into messages."""

    def __init__(self) -> None:
        self._buffer = b""
        self._opcode = -1
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[Message]:
        """The messages completed by ``data``, in order.

        Raises: ProtocolError (remote): unmasked or oversized frames, wrong fragmentation.
        """
        self._buffer += data
        found: list[Message] = []
        while (frame := self._frame()) is not None:
            final, opcode, payload = frame
            if opcode >= CLOSE:
                found.append(Message(opcode, payload))
                continue
            message = self._join(opcode, payload, final=final)
            if message is not None:
                found.append(message)
        return found

    def _frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1] & 0x7F, 2
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(buffer) < 2 + width:
                return None
            size, start = int.from_bytes(buffer[2 : 2 + width], "big"), 2 + width
        if not buffer[1] & 0x80 or size > _MAX_MESSAGE:
            raise ProtocolError("remote", "a WebSocket frame is not masked or too large")
        if len(buffer) < start + 4 + size:
            return None
        mask, body = buffer[start : start + 4], buffer[start + 4 : start + 4 + size]
        self._buffer = buffer[start + 4 + size :]
        return bool(buffer[0] & 0x80), buffer[0] & 0x0F, _unmask(mask, body)

    def _join(self, opcode: int, payload: bytes, *, final: bool) -> Message | None:
        if (opcode == CONTINUATION) != (self._opcode >= 0):
            raise ProtocolError("remote", "a WebSocket message is fragmented wrongly")
        if opcode != CONTINUATION:
            self._opcode = opcode
        self._parts.append(payload)
        if not final:
            return None
        message = Message(self._opcode, b"".join(self._parts))
        self._opcode, self._parts = -1, []
        return message


def _unmask(mask: bytes, body: bytes) -> bytes:
    size = len(body)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return (int.from_bytes(body, "big") ^ key).to_bytes(size, "big")
