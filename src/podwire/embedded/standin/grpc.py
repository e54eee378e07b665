"""The health check of gRPC over HTTP/2 frames, server and client, as far as a probe needs it. Pure.

The server answers every call with ``SERVING``. It does not read header blocks, so it needs no HPACK decoder; its own
header blocks are literals without indexing. The client sends one call and reads only the message and whether the stream
was reset. Flow control is not needed: a call has a few bytes, far less than every initial window.
Sources: RFC 9113 sections 3.4, 4, 6; RFC 7541 section 6.2.2; grpc/grpc doc/health-checking.md.
"""

import struct
from collections.abc import Callable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVING = 1

_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_METHOD = "/grpc.health.v1.Health/Check"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload))[1:] + bytes((kind, flags)) + struct.pack("!I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


class Frames:
    """Splits a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[tuple[int, int, int, bytes]]:
        """The frames that ``data`` completes, as (kind, flags, stream, payload)."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= 9:
            length = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + length:
                break
            stream = int.from_bytes(self._buffer[5:9], "big") & 0x7FFFFFFF
            frames.append((self._buffer[3], self._buffer[4], stream, self._buffer[9 : 9 + length]))
            self._buffer = self._buffer[9 + length :]
        return frames


class HealthServer:
    """One connection of a server that always answers SERVING."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._frames = Frames()
        self._skip = len(PREFACE)
        write(_frame(_SETTINGS, 0, 0))

    def feed(self, data: bytes) -> None:
        """Processes bytes from the client; the preface comes first."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        for kind, flags, stream, payload in self._frames.feed(data[skipped:]):
            if kind == _SETTINGS and not flags & _ACK:
                self._write(_frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags & _ACK:
                self._write(_frame(_PING, _ACK, 0, payload))
            elif kind in (_HEADERS, _DATA) and flags & _END_STREAM:
                self._answer(stream)

    def _answer(self, stream: int) -> None:
        head = b"\x88" + _literal("content-type", "application/grpc")  # 0x88: ":status 200" of the static table
        message = bytes((8, SERVING))
        self._write(
            _frame(_HEADERS, _END_HEADERS, stream, head)
            + _frame(_DATA, 0, stream, b"\0" + struct.pack("!I", len(message)) + message)
            + _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _literal("grpc-status", "0"))
        )


def check_request(authority: str, service: str) -> bytes:
    """All bytes that a client sends for one health check."""
    name = service.encode()[:127]
    message = b"\x0a" + bytes((len(name),)) + name if name else b""
    head = b"\x83\x86" + _literal(":path", _METHOD) + _literal(":authority", authority)
    head += _literal("content-type", "application/grpc") + _literal("te", "trailers")
    return (
        PREFACE
        + _frame(_SETTINGS, 0, 0)
        + _frame(_HEADERS, _END_HEADERS, 1, head)
        + _frame(_DATA, _END_STREAM, 1, b"\0" + struct.pack("!I", len(message)) + message)
    )


class HealthAnswer:
    """Reads the answer to :func:`check_request`."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._body = b""
        self.done = False
        self.reply = b""
        """Bytes to send to the server (acknowledgement of settings)."""

    def feed(self, data: bytes) -> None:
        """Processes bytes from the server."""
        for kind, flags, stream, payload in self._frames.feed(data):
            if kind == _SETTINGS and not flags & _ACK:
                self.reply += _frame(_SETTINGS, _ACK, 0)
            if kind == _DATA and stream == 1:
                self._body += payload
            ended = stream == 1 and kind in (_HEADERS, _DATA) and flags & _END_STREAM
            self.done = self.done or bool(ended) or kind in (_RST, _GOAWAY)

    @property
    def serving(self) -> bool:
        """Whether the answer was SERVING."""
        return self._body[5:] == bytes((8, SERVING))
