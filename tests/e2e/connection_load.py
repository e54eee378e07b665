"""Many connections to one address at once: some stay open and are used all the time, others are new."""

import json
import socket
import struct
import threading
import time
from pathlib import Path
from typing import BinaryIO

from tests.e2e.driver import eventually
from tests.e2e.traffic import connect_from

LINE = b"podwire-probe\n"
PACE_S = 0.004
PATIENCE_S = 5.0
_RETRANSMISSIONS = 100
"""Where tcp_info (linux/tcp.h) has how many segments were sent again."""


class Load:
    """Runs inside a ``with`` block, from the first answer on; ``problems`` lists connections that failed."""

    def __init__(
        self,
        namespace: Path | None,
        address: str,
        port: int = 80,
        *,
        standing: int = 10,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._namespace = namespace
        self._target = (address, port)
        self._patience_s = patience_s
        self._ending = threading.Event()
        self._standing = standing
        self._threads = [threading.Thread(target=self._renew, args=(number,)) for number in range(2)]
        self._threads.append(threading.Thread(target=self._stay, args=(2,)))
        self._turns = [0, 0, 0]
        """How often each thread has begun something."""
        self._begun = time.monotonic()
        self.problems: list[str] = []
        self.made = 0
        self.repeated = 0
        """New connections whose first packet had to be sent again."""
        self.said = 0
        self.seen: dict[str, float] = {}
        """When each pod answered a new connection for the last time."""

    def __enter__(self) -> "Load":
        eventually(self._answered)
        for thread in self._threads:
            thread.start()
        try:
            self.go_on(5)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def go_on(self, connections: int = 50, *, within: float = 60) -> None:
        """Waits until so many more connections were made and each open connection was used twice."""
        created, output = self.made + connections, self.said + 2 * self._standing
        eventually(lambda: self.made >= created and self.said >= output, within=within, every=0.01)

    def come_to_an_end(self) -> None:
        """Waits until each connection attempt that is in progress now has succeeded or failed."""
        before = tuple(self._turns)
        eventually(lambda: all(now > then for now, then in zip(self._turns, before, strict=True)), every=0.01)

    def answering(self, since: float) -> set[str]:
        """The pods that answered new connections made after a moment."""
        return {pod for pod, when in tuple(self.seen.items()) if when > since}

    def _answered(self) -> bool:
        try:
            self._connect().close()
        except OSError:
            return False
        return True

    def _connect(self) -> socket.socket:
        return connect_from(self._namespace, self._target, self._patience_s)

    def _problem(self, subject: str, failure: Exception) -> None:
        self.problems.append(f"{subject} at {time.monotonic() - self._begun:.2f} s: {failure!r}")

    def _stay(self, number: int) -> None:
        talks: list[tuple[socket.socket, BinaryIO]] = []
        while not self._ending.wait(PACE_S):
            self._turns[number] += 1
            try:
                if len(talks) < self._standing:
                    sock = self._connect()
                    talks.append((sock, sock.makefile("rb")))
            except OSError as failure:
                self._problem("new connection", failure)
                continue
            sock, replies = talks.pop(0)
            try:
                sock.sendall(LINE)
                if not replies.readline():
                    raise ConnectionResetError("closed by the server")
                self.said += 1
                talks.append((sock, replies))
            except OSError as failure:
                self._problem("established connection", failure)
                _close(sock, replies)
        for talk in talks:
            _close(*talk)

    def _renew(self, number: int) -> None:
        while not self._ending.wait(PACE_S):
            self._turns[number] += 1
            begun = time.monotonic()
            try:
                with self._connect() as sock, sock.makefile("rb") as replies:
                    self.repeated += _sent_again(sock)
                    sock.sendall(LINE)
                    self.seen[json.loads(replies.readline())["pod"]] = begun
                self.made += 1
            except (OSError, ValueError) as failure:
                self._problem("new connection", failure)


def _sent_again(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMISSIONS + 4)
    return int(struct.unpack_from("=I", info, _RETRANSMISSIONS)[0])


def _close(sock: socket.socket, replies: BinaryIO) -> None:
    replies.close()
    sock.close()
