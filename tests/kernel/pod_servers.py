"""TCP servers of pods: threads of the tests with sockets in namespaces of pods, since a program takes long to start.

A server listens for both families. When it ends, its connections end, as with a program that is killed.
"""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from podwire.kernel import netns


@dataclass(frozen=True)
class TcpService:
    """What a server does: it sends back what it receives, or (``echoes`` false) the client's address and the end."""

    port: int
    echoes: bool = False


class _Server(threading.Thread):
    """Serves all connections of one listener, one step at a time."""

    def __init__(self, listener: socket.socket, service: TcpService) -> None:
        super().__init__(daemon=True)
        self._listener, self._service = listener, service
        self._ending, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (listener, self._ending):
            self._selector.register(sock, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            for ready, _ in self._selector.select():
                if ready.fileobj is self._ending:
                    return
                if ready.fileobj is self._listener:
                    self._accept()
                elif isinstance(ready.fileobj, socket.socket):
                    self._echo(ready.fileobj)

    def _accept(self) -> None:
        connection, client = self._listener.accept()
        if self._service.echoes:
            self._selector.register(connection, selectors.EVENT_READ)
            return
        with connection, contextlib.suppress(OSError):
            connection.sendall(client[0].encode())

    def _echo(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if data := connection.recv(65536):
                connection.sendall(data)
                return
        self._selector.unregister(connection)
        connection.close()

    def end(self) -> None:
        """Ends the server and its connections."""
        self._wake.close()
        self.join()
        for entry in tuple(self._selector.get_map().values()):
            if isinstance(entry.fileobj, socket.socket):
                entry.fileobj.close()
        self._selector.close()


@contextlib.contextmanager
def serving(place: Path, service: TcpService) -> Iterator[None]:
    """Runs a server in a network namespace."""
    with netns.inside(place):
        listener = socket.create_server(("", service.port), family=socket.AF_INET6, dualstack_ipv6=True)
    server = _Server(listener, service)
    server.start()
    try:
        yield
    finally:
        server.end()
