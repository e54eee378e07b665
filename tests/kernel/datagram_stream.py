"""Numbered datagrams between two pods, of which a test counts the lost ones."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tests.kernel.routing_nodes import Pod

from podwire.kernel import netns

MARKER = b"these bytes are the secret of two pods"
PORT = 9
_READ_EACH = 16
"""Datagrams are read after this number is sent."""
_SO_RCVBUFFORCE = 33
_RECEIVED_BYTES = 1 << 24
"""Room in the socket for what arrives at once when a program on the way did not run for seconds: 8,000 datagrams."""


def until(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Stream(threading.Thread):
    """Numbered datagrams with the marker between two pods, one each ``every_s``; those that arrive are counted."""

    def __init__(self, source: Pod, target: Pod, every_s: float = 0.003) -> None:
        super().__init__(daemon=True)
        self._every_s = every_s
        with netns.inside(source.place):
            self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with netns.inside(target.place):
            self._sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVED_BYTES)
        self._sink.bind(("", PORT))
        self._sink.setblocking(False)
        self._target = (target.address, PORT)
        self.sent = self.refused = 0
        self._arrived: set[bytes] = set()
        self._end = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._end.is_set():
            time.sleep(self._every_s)
            try:
                self._sender.sendto(MARKER + self.sent.to_bytes(4, "big"), self._target)
                self.sent += 1
            except OSError:
                self.refused += 1
            if self.sent % _READ_EACH == 0 or self._every_s >= 0.003:
                self._read()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._arrived.add(self._sink.recv(200))

    @property
    def arrived(self) -> int:
        return len(self._arrived)

    def close(self) -> None:
        """Ends the stream."""
        self._end.set()
        self.join()
        self._sender.close()
        self._sink.close()

    def lost(self) -> int:
        """Ends the stream, and returns the number of datagrams that were sent and do not arrive."""
        self._end.set()
        self.join()
        deadline = time.monotonic() + 10
        while self.arrived < self.sent and time.monotonic() < deadline:
            self._read()
            time.sleep(0.02)
        self.close()
        return self.sent - self.arrived
