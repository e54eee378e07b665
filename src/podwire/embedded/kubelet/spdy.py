"""The server's side of SPDY/3.1, as kubectl's port-forward uses it. Pure: bytes in, events and bytes out.

A connection carries streams. The client opens a stream with headers; data flows in both directions until each side has
sent FIN. Header blocks are compressed with one zlib stream per direction and a dictionary that the protocol defines.
Flow control windows are neither kept nor enforced, as in moby/spdystream, the client's library. Source: the SPDY
Protocol, draft 3.1, sections 2.2 and 2.6.10.
"""

import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from podwire.errors import ProtocolError

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY = 1, 2, 3, 4, 6, 7
FIN = 1
REFUSED = 3

_VERSION = 3
_WORD_TEXT = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age "
    "allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
_MORE_WORDS = ("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _counted(text: str) -> bytes:
    return struct.pack("!I", len(text)) + text.encode()


DICTIONARY = b"".join(map(_counted, (*_WORD_TEXT.split(), *_MORE_WORDS))) + _TAIL.encode()


class Opened(NamedTuple):
    """The client opened a stream."""

    stream: int
    headers: Mapping[str, str]
    fin: bool


class Data(NamedTuple):
    """Bytes on a stream; ``fin`` says that no more come."""

    stream: int
    data: bytes
    fin: bool


class Reset(NamedTuple):
    """The client aborted a stream."""

    stream: int


Event = Opened | Data | Reset


class SpdySession:
    """The protocol state of one connection."""

    def __init__(self) -> None:
        self._buffer = b""
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self.reply = b""
        """Answers to pings; the caller sends and clears them."""

    def feed(self, data: bytes) -> list[Event]:
        """The events in ``data``, in order.

        Raises: ProtocolError (remote).
        """
        self._buffer += data
        events: list[Event] = []
        while len(self._buffer) >= 8:
            size = int.from_bytes(self._buffer[5:8], "big")
            if len(self._buffer) < 8 + size:
                break
            head, body = self._buffer[:8], self._buffer[8 : 8 + size]
            self._buffer = self._buffer[8 + size :]
            event = self._control(head, body) if head[0] & 0x80 else self._data(head, body)
            if event is not None:
                events.append(event)
        return events

    def _data(self, head: bytes, body: bytes) -> Data:
        return Data(int.from_bytes(head[:4], "big"), body, bool(head[4] & FIN))

    def _control(self, head: bytes, body: bytes) -> Event | None:
        kind, flags = int.from_bytes(head[2:4], "big"), head[4]
        if kind == SYN_STREAM:
            stream = int.from_bytes(body[:4], "big") & 0x7FFFFFFF
            return Opened(stream, self._headers(body[10:]), bool(flags & FIN))
        if kind == RST_STREAM:
            return Reset(int.from_bytes(body[:4], "big") & 0x7FFFFFFF)
        if kind == PING:
            self.reply += _frame(PING, 0, body)
        return None

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            plain = self._inflate.decompress(block)
            (count,) = struct.unpack_from("!I", plain)
            texts: list[str] = []
            at = 4
            for _ in range(2 * count):
                (size,) = struct.unpack_from("!I", plain, at)
                texts.append(plain[at + 4 : at + 4 + size].decode())
                at += 4 + size
        except (zlib.error, struct.error, UnicodeDecodeError) as failure:
            raise ProtocolError("remote", f"a SPDY header block does not decode: {failure}") from failure
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def accept(self, stream: int) -> bytes:
        """The frame that accepts a stream."""
        block = self._deflate.compress(struct.pack("!I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _frame(SYN_REPLY, 0, struct.pack("!I", stream) + block)

    def refuse(self, stream: int) -> bytes:
        """The frame that refuses a stream."""
        return _frame(RST_STREAM, 0, struct.pack("!II", stream, REFUSED))

    def send(self, stream: int, data: bytes, *, fin: bool = False) -> bytes:
        """The frame that carries data on a stream; ``fin`` ends the stream in this direction."""
        return struct.pack("!I", stream) + bytes((FIN if fin else 0,)) + len(data).to_bytes(3, "big") + data


def _frame(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("!HH", 0x8000 | _VERSION, kind) + bytes((flags,)) + len(body).to_bytes(3, "big") + body
