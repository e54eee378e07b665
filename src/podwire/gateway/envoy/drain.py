"""Takes an engine out of service without a lost request: the hook before its container is stopped.

From the start, ``/ready`` answers 503. New connections still come until every proxy of the cluster knows that the pod
ends, and every L4 address in front has asked; they are served. Answers ask clients to close (``Connection: close``,
GOAWAY). The hook returns when no connection is left or the time is over.
"""

import socket
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

SETTLE_S = 3.0
"""How long new connections may still arrive: the Service proxies of all nodes follow in less."""


def drain(admin_socket: Path, seconds: float, pause: Callable[[float], None]) -> int:
    """Drains an engine; returns the connections that were left at the end.

    Raises: OSError when the engine does not answer on its socket.
    """
    _ask(admin_socket, "POST", "/healthcheck/fail")
    _ask(admin_socket, "POST", "/drain_listeners?graceful&skip_exit")
    waited = 0.0
    while True:
        pause(0.25)
        waited += 0.25
        active = _connections(admin_socket)
        if waited >= seconds or (waited >= SETTLE_S and active == 0):
            return active


def _connections(admin_socket: Path) -> int:
    """Connections of clients, without those of the engine's own listeners for readiness and answers."""
    counters = "^(http[.].*|listener[.]stream[.])downstream_cx_active$"
    text = _ask(admin_socket, "GET", f"/stats?filter={quote(counters)}")
    own = ("http.admin.", "http.ready.", "http.answer-")
    lines = [line.partition(": ") for line in text.splitlines() if not line.startswith(own)]
    return sum(int(value) for _name, _, value in lines if value.isdigit())


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("engine", timeout=5)
        self._path = path

    def connect(self) -> None:
        """Connects to the path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(admin_socket: Path, method: str, path: str) -> str:
    connection = _UnixConnection(admin_socket)
    try:
        connection.request(method, path)
        return connection.getresponse().read().decode(errors="replace")
    finally:
        connection.close()
