"""The shim's side of its socket: kubelets that connect, their requests, and the answers and events for them.

Several kubelets may be connected while a kubelet restarts. A kubelet that does not read for 2 seconds is disconnected.
"""

import os
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from podwire.embedded.kubelet.orders import ShimAnswer, ShimRequest
from podwire.embedded.kubelet.selectloop import SelectLoop
from podwire.runtime import messages

_MAX_FDS = 3
_SEND_LIMIT_S = 2


class ReplyAddress(NamedTuple):
    """The kubelet that sent a request, and the number of the request."""

    kubelet: socket.socket
    number: int


class ShimConnections:
    """The connections of one shim."""

    def __init__(
        self,
        listener: socket.socket,
        loop: SelectLoop,
        execute: Callable[[ShimRequest, list[int], ReplyAddress], None],
    ) -> None:
        """Executes each request by ``execute(request, descriptors, reply address)``.

        An OSError from ``execute`` is sent as the problem of the answer. ``start`` and ``exec`` send their answer
        themselves, later, when they succeed; the other requests are answered when ``execute`` returns.
        """
        self._listener = listener
        self._loop = loop
        self._execute = execute
        self._kubelets: set[socket.socket] = set()
        loop.watch(listener, self._accept)

    def answer(self, address: ReplyAddress, *, pid: int = 0, problem: str = "") -> None:
        """Answers one request; does nothing when its kubelet has disconnected."""
        if address.kubelet in self._kubelets:
            self._send(address.kubelet, ShimAnswer(number=address.number, pid=pid, problem=problem))

    def publish(self, event: ShimAnswer) -> None:
        """Sends an event to all connected kubelets."""
        for kubelet in tuple(self._kubelets):
            self._send(kubelet, event)

    def _accept(self) -> None:
        kubelet, _ = self._listener.accept()
        kubelet.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_LIMIT_S, 0))
        self._kubelets.add(kubelet)
        self._loop.watch(kubelet, lambda: self._receive(kubelet))

    def _disconnect(self, kubelet: socket.socket) -> None:
        if kubelet in self._kubelets:
            self._kubelets.discard(kubelet)
            self._loop.unwatch(kubelet)
            kubelet.close()

    def _send(self, kubelet: socket.socket, answer: ShimAnswer) -> None:
        try:
            messages.send(kubelet, msgspec.msgpack.encode(answer))
        except OSError:
            self._disconnect(kubelet)

    def _receive(self, kubelet: socket.socket) -> None:
        try:
            body, fds = messages.receive(kubelet, _MAX_FDS)
        except (OSError, EOFError):
            self._disconnect(kubelet)
            return
        request = msgspec.msgpack.decode(body, type=ShimRequest)
        address = ReplyAddress(kubelet, request.number)
        problem = ""
        try:
            self._execute(request, fds, address)
        except OSError as failure:
            problem = str(failure)
        for fd in fds:
            os.close(fd)
        if problem or request.verb not in ("start", "exec"):
            self.answer(address, problem=problem)
