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
