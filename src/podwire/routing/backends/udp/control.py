"""The process's end of the control socket; requests and answers are those of :mod:`podwire.kernel.udptunnel`."""

import select
import socket
from collections.abc import Callable
from typing import NamedTuple

from podwire.errors import PodwireError
from podwire.kernel.udptunnel import is_root
from podwire.observe.log import Log
from podwire.runtime import messages

_CHUNK = 1 << 18
_SEND_S = 2.0
Handler = Callable[[], object]


class UdpAnswer(NamedTuple):
    """An answer, and what is done once it is sent."""

    text: str
    fds: tuple[int, ...] = ()
    then: Callable[[], None] = lambda: None


class DescriptorLoop:
    """Watched descriptors; a handler is called while its descriptor is readable."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self.running = True

    def watch(self, fd: int, handler: Handler) -> None:
        """Calls the handler when the descriptor is readable or broken."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def ignore(self, fd: int) -> None:
        """Stops watching a descriptor; does nothing when it is not watched."""
        if self._handlers.pop(fd, None) is not None:
            try:
                self._poll.unregister(fd)
            except OSError:
                return  # closed: the kernel has removed it

    def run(self, every_s: Callable[[], float | None], tick: Callable[[], None]) -> None:
        """Handles events until ``running`` is false; calls ``tick`` after each wait of ``every_s`` without an event."""
        while self.running:
            events = self._poll.poll(every_s())
            if not events:
                tick()
            for fd, _ in events:
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()


class UdpControl:
    """Receives requests and sends the answers of ``serve``; only root may ask."""

    def __init__(self, loop: DescriptorLoop, listener: socket.socket, serve: Callable[[str], UdpAnswer]) -> None:
        self._loop = loop
        self._listener = listener
        self._serve = serve
        self._log = Log("udp")
        listener.setblocking(False)
        loop.watch(listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if not is_root(connection):
            self._log.warning("refused a connection: the client is not root")
            connection.close()
            return
        connection.setblocking(False)
        received = bytearray()
        self._loop.watch(connection.fileno(), lambda: self._receive(connection, received))

    def _receive(self, connection: socket.socket, received: bytearray) -> None:
        try:
            data = connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        received += data
        bodies, rest = messages.split(bytes(received))
        received[:] = rest
        try:
            for body in bodies:
                self._answer(connection, body)
        except OSError as failure:
            self._log.warning("cannot answer", problem=failure)
            data = b""
        if not data:
            self._loop.ignore(connection.fileno())
            connection.close()

    def _answer(self, connection: socket.socket, body: bytes) -> None:
        try:
            answer = self._serve(body.decode())
        except (ValueError, PodwireError) as failure:
            self._log.warning("refused a request", problem=failure)
            answer = UdpAnswer(f"refused\n{failure}")
        connection.settimeout(_SEND_S)
        messages.send(connection, answer.text.encode(), answer.fds)
        connection.setblocking(False)
        answer.then()
