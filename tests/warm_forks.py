"""Forks of one process that has imported what its programs need: a start costs milliseconds.

The process begins with the first program and ends with the tests. It has no threads and no event loop. A program is an
order, which the module that made the process runs in a fork.
"""

import atexit
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any


class WarmForks:
    """The process of a module with ``prepare()``, and ``run_order(order, files)`` that does not return."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()

    def spawn(self, order: Mapping[str, Any], files: Sequence[int] = ()) -> tuple[int, int]:
        """Forks a program, which gets up to four descriptors; returns its number and a descriptor of its process."""
        with self._lock:
            connection = self._connection = self._connection or self._start()
            socket.send_fds(connection, [json.dumps(order).encode()], files)
            pid = int(connection.recv(32))
            try:
                return pid, os.pidfd_open(pid)
            finally:
                connection.send(b"-")

    def _start(self) -> socket.socket:
        """The connection to the new process; messages keep their borders."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            code = f"from tests.warm_forks import serve; serve({self._module!r}, {theirs.fileno()})"
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], env=environment)

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


def serve(name: str, descriptor: int) -> None:
    """Forks a program of a module for each order until the tests have ended."""
    module = importlib.import_module(name)
    module.prepare()
    gc.collect()
    gc.freeze()
    children: list[int] = []
    with socket.socket(fileno=descriptor) as connection:
        while True:
            message, files, _flags, _address = socket.recv_fds(connection, 1 << 20, 4)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                os.close(connection.detach())
                module.run_order(json.loads(message), files)
            for file in files:
                os.close(file)
            children.append(pid)
            connection.send(str(pid).encode())
            connection.recv(8)  # until then the number of a program that has ended is not used again
            children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
