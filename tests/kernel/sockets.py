"""Sockets inside a namespace: a socket stays where it was made, whoever uses it."""

import socket
from pathlib import Path

from podwire.kernel.netns import inside


def socket_in(
    netns: Path | str,
    family: socket.AddressFamily = socket.AF_INET,
    kind: socket.SocketKind = socket.SOCK_STREAM,
    *,
    blocking: bool = False,
) -> socket.socket:
    """A socket that lives in the namespace, non-blocking for asyncio unless asked otherwise."""
    with inside(netns):
        opened = socket.socket(family, kind | socket.SOCK_CLOEXEC)
    opened.setblocking(blocking)
    return opened


def is_answered(netns: Path | str, address: str, port: int, patience_s: float) -> bool:
    """Whether a datagram from the namespace gets an answer in time; a refusal counts as an answer."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket_in(netns, family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(patience_s)
        sock.connect((address, port))
        try:
            sock.send(b"x")
            sock.recv(10)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return True
