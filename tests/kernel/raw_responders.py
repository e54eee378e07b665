"""A server that repeats replies endlessly, in each protocol without a handshake, on raw sockets."""

import contextlib
import socket
import struct
import threading
from typing import NamedTuple

from tests.kernel.checksums import checksum, crc32c
from tests.kernel.policy_namespaces import path

from podwire.kernel import netns

CLIENT_PORT, PORT = 4000, 5432
_EVERY_S = 0.005
_PUSHED = b"pushed.."


class Kind(NamedTuple):
    """A protocol: its number, the packet that the client sends once, and the reply that the server repeats."""

    number: int
    ask: bytes
    answer: bytes


def kinds(*, six: bool) -> dict[str, Kind]:
    """The protocols of a family."""
    number, asks, replies = (58, 128, 129) if six else (1, 8, 0)
    chunk = struct.pack("!BBHIHHI", 0, 3, 16 + len(_PUSHED), 1, 0, 0, 0) + _PUSHED
    init = struct.pack("!BBHIIHHI", 1, 0, 20, 7, 65535, 1, 1, 7)
    return {
        "ICMP": Kind(number, _echo(asks, b"", six=six), _echo(replies, _PUSHED, six=six)),
        "SCTP": Kind(132, _sctp(CLIENT_PORT, PORT, 0, init), _sctp(PORT, CLIENT_PORT, 7, chunk)),
        "GRE": Kind(47, b"\0\0\x08\0", b"\0\0\x08\0" + _PUSHED),
        "253": Kind(253, b"go", _PUSHED),
    }


def _echo(kind: int, payload: bytes, *, six: bool) -> bytes:
    body = struct.pack("!BBHHH", kind, 0, 0, 77, 1) + payload
    return body if six else body[:2] + struct.pack("!H", checksum(body)) + body[4:]  # of IPv6 the kernel makes it


def _sctp(source: int, target: int, tag: int, chunk: bytes) -> bytes:
    head = struct.pack("!HHI", source, target, tag)
    return head + struct.pack("<I", crc32c(head + bytes(4) + chunk)) + chunk


class EndlessReplies(threading.Thread):
    """A client that asked once in each protocol, and a server that repeats its replies."""

    def __init__(self, pods: tuple[str, str], client: str, server: str) -> None:
        super().__init__(daemon=True)
        self.kinds = kinds(six=":" in client)
        self._addresses = client, server
        self._clients, self._servers = ({name: self._raw(pod, name) for name in self.kinds} for pod in pods)
        self._stopping = threading.Event()

    def _raw(self, pod: str, name: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._addresses[0] else socket.AF_INET
        with netns.inside(path(pod)):
            created = socket.socket(family, socket.SOCK_RAW, self.kinds[name].number)
        created.setblocking(False)
        return created

    def ask(self) -> None:
        """Sends the request of the client in each protocol."""
        for name, kind in self.kinds.items():
            self._clients[name].sendto(kind.ask, (self._addresses[1], 0))

    def run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            for name, kind in self.kinds.items():
                with contextlib.suppress(OSError):
                    self._servers[name].sendto(kind.answer, (self._addresses[0], 0))

    def coming(self, seconds: float) -> set[str]:
        """The protocols in which replies still arrive; returns when all do, or when the time is over."""
        for name in self.kinds:
            while self._read(name) is not None:
                pass
        result: set[str] = set()
        ticks = threading.Event()
        for _ in range(int(seconds / _EVERY_S)):
            ticks.wait(_EVERY_S)
            result |= {name for name in self.kinds if self._answered(name)}
            if result == self.kinds.keys():
                break
        return result

    def _answered(self, name: str) -> bool:
        while (data := self._read(name)) is not None:
            if _PUSHED in data:
                return True
        return False

    def _read(self, name: str) -> bytes | None:
        try:
            return self._clients[name].recv(2048)
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Ends the thread and closes its sockets."""
        self._stopping.set()
        if self.is_alive():
            self.join()
        for sock in (*self._clients.values(), *self._servers.values()):
            sock.close()
