"""The relay's end of the control socket: one frame in, one frame out; only root may connect."""

import socket
import struct
from collections.abc import Callable

import msgspec

from podwire.observe.log import Log
from podwire.proxy.dataplanes.userspace.loop import READ, Loop
from podwire.proxy.dataplanes.userspace.messages import LENGTH, Answer, Request, frame, parse_request

_CHUNK = 1 << 18
_CREDENTIALS = struct.Struct("3i")
_SEND_S = 5.0


def is_root(peer: socket.socket) -> bool:
    """Whether the process at the other end of a unix socket runs as root."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == 0)


class Control:
    """Receives requests and sends the answers of ``serve``."""

    def __init__(self, loop: Loop, listener: socket.socket, serve: Callable[[Request], Answer]) -> None:
        self._loop = loop
        self._listener = listener
        self._serve = serve
        self._log = Log("relay")
        listener.setblocking(False)
        loop.watch(listener.fileno(), READ, self._accept)

    def _accept(self, _events: int) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        if not is_root(peer):
            self._log.warning("refused a connection: the client is not root")
            peer.close()
            return
        peer.settimeout(_SEND_S)
        received = bytearray()
        self._loop.watch(peer.fileno(), READ, lambda _: self._receive(peer, received))

    def _receive(self, peer: socket.socket, received: bytearray) -> None:
        try:
            data = peer.recv(_CHUNK)
            if not data:
                raise EOFError
            received += data
            while (request := _take(received)) is not None:
                peer.sendall(frame(self._serve(request)))
        except (OSError, EOFError, msgspec.MsgspecError) as problem:
            if not isinstance(problem, EOFError):
                self._log.warning("closed the connection to the data plane", problem=problem)
            self._loop.close(peer.detach())


def _take(received: bytearray) -> Request | None:
    """Removes the first complete request from the received bytes and returns it; None when it is incomplete."""
    if len(received) < LENGTH.size:
        return None
    end = LENGTH.size + LENGTH.unpack_from(received)[0]
    if len(received) < end:
        return None
    body = bytes(received[LENGTH.size : end])
    del received[:end]
    return parse_request(body)
