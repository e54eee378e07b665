"""Continuous traffic between pods of a local cluster: one connection that stays, and new ones all the time."""

import json
import socket
import threading
import time
from pathlib import Path

from tests.e2e.driver import eventually

from podwire.kernel import netns

LINE = b"podwire-probe\n"
PACE_S = 0.02
PATIENCE_S = 3.0


def connect_from(namespace: Path | None, target: tuple[str, int], patience_s: float) -> socket.socket:
    """A TCP connection from a network namespace; nothing stays open when it fails.

    Raises: OSError.
    """
    with netns.inside(namespace):
        sock = socket.socket()
    sock.settimeout(patience_s)
    try:
        sock.connect(target)
    except OSError:
        sock.close()
        raise
    return sock


class Traffic:
    """Runs inside a ``with`` block, from the first answer on; ``problems`` lists connections that failed.

    Every ``pace_s`` seconds there is a new connection, and a line on the one that stays.
    """

    def __init__(self, namespace: Path, address: str, port: int, pace_s: float = PACE_S) -> None:
        self._namespace = namespace
        self._target = (address, port)
        self._pace_s = pace_s
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._stay), threading.Thread(target=self._renew)]
        self.problems: list[str] = []
        self.lines = 0
        self.connections = 0
        self.answered_by: set[str] = set()

    def __enter__(self) -> "Traffic":
        eventually(self._answered)
        for thread in self._threads:
            thread.start()
        try:
            self.go_on(1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def go_on(self, times: int = 10) -> None:
        """Waits until the open connection was used ``times`` more times and as many new ones were made, or one
        failed."""
        lines, connections = self.lines + times, self.connections + times
        eventually(lambda: self.problems or (self.lines >= lines and self.connections >= connections), every=0.01)

    def __exit__(self, *failure: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _answered(self) -> bool:
        try:
            self._connect().close()
        except OSError:
            return False
        return True

    def _connect(self) -> socket.socket:
        return connect_from(self._namespace, self._target, PATIENCE_S)

    def _stay(self) -> None:
        started = time.monotonic()
        try:
            with self._connect() as sock, sock.makefile("rb") as replies:
                while not self._ending.wait(self._pace_s):
                    sock.sendall(LINE)
                    if not replies.readline():
                        raise ConnectionResetError("closed by the server")
                    self.lines += 1
        except OSError as failure:
            self.problems.append(f"established connection after {time.monotonic() - started:.2f} s: {failure!r}")

    def _renew(self) -> None:
        started = time.monotonic()
        while not self._ending.wait(self._pace_s):
            try:
                with self._connect() as sock, sock.makefile("rb") as replies:
                    sock.sendall(LINE)
                    self.answered_by.add(json.loads(replies.readline())["pod"])
                self.connections += 1
            except (OSError, ValueError) as failure:
                self.problems.append(f"new connection at {time.monotonic() - started:.2f} s: {failure!r}")
