"""Messages on a blocking Unix stream socket: a length of four bytes in network order, then the body.

File descriptors travel with the first bytes of a message. The fork server and the shims of pods use this form.
"""

import os
import socket
import struct
from collections.abc import Sequence

_LENGTH = struct.Struct("!I")


def frame(body: bytes) -> bytes:
    """The body after its length."""
    return _LENGTH.pack(len(body)) + body


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """The bodies of all complete messages at the start of ``data``, and the bytes that follow them."""
    bodies = []
    start = 0
    while len(data) - start >= _LENGTH.size:
        end = start + _LENGTH.size + _LENGTH.unpack_from(data, start)[0]
        if end > len(data):
            break
        bodies.append(data[start + _LENGTH.size : end])
        start = end
    return bodies, data[start:]


def send(connection: socket.socket, body: bytes, fds: Sequence[int] = ()) -> None:
    """Sends one message with descriptors.

    Raises: OSError when the connection is closed; the message may then be sent in part.
    """
    data = frame(body)
    sent = socket.send_fds(connection, [data], list(fds)) if fds else 0
    if sent < len(data):  # A receiver that has all of it may have closed the connection: sending nothing would fail.
        connection.sendall(data[sent:])


def receive(connection: socket.socket, max_fds: int = 0) -> tuple[bytes, list[int]]:
    """The body of the next message and its descriptors, which the caller has to close.

    Raises: EOFError when the connection ends before the message does; OSError. Descriptors are closed then.
    """
    head, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, max_fds)
    try:
        if not head:
            raise EOFError
        head += _receive_exactly(connection, _LENGTH.size - len(head))
        return _receive_exactly(connection, _LENGTH.unpack(head)[0]), fds
    except (EOFError, OSError):
        for fd in fds:
            os.close(fd)
        raise


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
