"""Reads a page from a component's unix socket (:mod:`podwire.http.pages`), for commands; blocks.

This module is separate because it imports the HTTP client of the standard library: most of a megabyte, which agents do
not need.
"""

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

from podwire.errors import ProtocolError


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connects to the path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def fetch(path: Path, target: str, timeout_s: float = 5.0) -> Iterator[str]:
    """The lines of a page, with their ends; ``timeout_s`` limits each wait for data. Blocks.

    Raises: OSError when nothing listens or nothing arrives in time; ProtocolError when the page is refused or
    incomplete.
    """
    connection = _Connection(path, timeout_s)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ProtocolError("remote", f"{target}: {answer.read().decode(errors='replace').strip()}")
        for line in answer:
            yield line.decode()
    except http.client.HTTPException as failure:
        raise ProtocolError("remote", f"{target}: the page is incomplete: {failure!r}") from failure
    finally:
        connection.close()
