"""Reads a page from a component's unix socket (:mod:`podwire.http.pages`), for commands; blocks.

A blocking socket and the parser of :mod:`podwire.http.client` are enough for one answer. The HTTP client of the
standard library would take commands 20 ms to import, and an event loop as much.
"""

import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import httptools

from podwire.errors import ProtocolError

_OK = 200
_RECEIVED = 1 << 16


class _Answer:
    """The body as it arrives, reported by the parser."""

    def __init__(self) -> None:
        self.received: deque[bytes] = deque()
        self.complete = False
        self.ends_with_connection = False
        """Whether the answer has neither a length nor chunks."""
        self._framed = False

    def on_header(self, name: bytes, _value: bytes) -> None:
        """See httptools."""
        self._framed = self._framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """See httptools."""
        self.ends_with_connection = not self._framed

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self.received.append(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self.complete = True


def fetch(path: Path, target: str, timeout_s: float = 5.0) -> Iterator[str]:
    """The lines of a page, with their ends; ``timeout_s`` limits each wait for data. Blocks.

    Raises: OSError when nothing listens or nothing arrives in time; ProtocolError when the page is refused or
    incomplete.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        yield from read_page(connection, target)


def read_page(connection: socket.socket, target: str) -> Iterator[str]:
    """The lines of a page over an open connection, as :func:`fetch`."""
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    connection.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    rest = b""
    for body in _bodies(connection, parser, answer, target):
        *lines, rest = (rest + body).split(b"\n")
        if parser.get_status_code() == _OK:
            yield from (f"{line.decode()}\n" for line in lines)
        else:
            rest = b"\n".join((*lines, rest))
    if parser.get_status_code() != _OK:
        raise ProtocolError("remote", f"{target}: {rest.decode(errors='replace').strip()}")
    if rest:
        yield rest.decode()


def _bodies(
    connection: socket.socket, parser: "httptools.HttpResponseParser", answer: _Answer, target: str
) -> Iterator[bytes]:
    """The body of the answer as it arrives.

    Raises: OSError; ProtocolError when the answer ends early or is not HTTP.
    """
    while not answer.complete:
        data = connection.recv(_RECEIVED)
        if not data and answer.ends_with_connection:
            return
        if not data:
            raise ProtocolError("remote", f"{target}: the page is incomplete: the connection has ended")
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as failure:
            raise ProtocolError("remote", f"{target}: the page is incomplete: {failure!r}") from failure
        while answer.received:
            yield answer.received.popleft()
