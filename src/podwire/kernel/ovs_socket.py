"""The Unix sockets of Open vSwitch's programs: JSON-RPC 1.0 to the database and to the control sockets.

Both speak the same protocol (RFC 7047 section 4; lib/unixctl.c in Open vSwitch): an object with ``method``, ``params``
and ``id`` in, one with ``result`` and ``error`` out. A connection serves one request.
"""

import errno
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from podwire.kernel.failure import refusal

DATABASE, CONTROL = "db.sock", "vswitchd.ctl"
"""The names of the sockets of ovsdb-server and of ovs-vswitchd."""
_ANSWER_S = 3.0
"""Time after which a program that does not answer counts as broken."""
_CHUNK = 1 << 16


def request(directory: str, name: str, method: str, params: Sequence[Any] = ()) -> Any:
    """The result of one request to the socket ``name`` in a directory.

    Raises: KernelNotFound when no program listens; KernelError, also when the program refuses the request.
    """
    subject = f"ovs {directory}/{name}"
    try:
        answer = _exchange(directory, name, {"method": method, "params": list(params), "id": 0})
    except (OSError, ValueError) as failure:
        number = failure.errno if isinstance(failure, OSError) else None
        number = errno.ENODEV if isinstance(failure, ConnectionError | FileNotFoundError) else number
        raise refusal("ask", subject, number or errno.ETIMEDOUT, "its process does not answer") from failure
    if answer.get("error") is not None:
        raise refusal(f"{method} in", subject, errno.EINVAL, str(answer["error"]).strip())
    return answer["result"]


def _exchange(directory: str, name: str, message: dict[str, Any]) -> dict[str, Any]:
    """Connects by a descriptor of the directory, whose path may be longer than an address of a Unix socket."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(f"/proc/self/fd/{descriptor}/{name}")
            connection.sendall(json.dumps(message).encode())
            return _receive(connection)
    finally:
        os.close(descriptor)


def _receive(connection: socket.socket) -> dict[str, Any]:
    """The first object that arrives.

    Raises: ValueError when the connection ends before; OSError.
    """
    data = bytearray()
    while chunk := connection.recv(_CHUNK):
        data += chunk
        if data.rstrip().endswith(b"}"):
            try:
                answer: dict[str, Any] = json.loads(data)
            except ValueError:
                continue
            return answer
    raise ValueError("the connection ended before the answer")
