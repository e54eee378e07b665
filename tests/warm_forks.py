"""Forks of one process that has imported what its programs need: a start costs milliseconds.

The process begins with the first program, or before it, and ends with the tests. It has no threads and no event loop. A
program is an order, which the module that made the process runs in a fork. Workers that are forks
(:mod:`tests.forked_workers`) share the process when it began before them.
"""

import atexit
import gc
import importlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

_END_S = 10.0
"""Seconds for the process that forks to end."""


class WarmForks:
    """The process of a module with ``prepare()``, and ``run_order(order, files)`` that does not return."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._address = ""
        self._connections: dict[int, socket.socket] = {}
        """The connection of this process, by its number: a fork makes one of its own."""
        self._lock = threading.Lock()
        self._own: tuple[socket.socket, subprocess.Popen[bytes]] | None = None
        """What ends the process when it is closed, and the process."""

    def spawn(self, order: Mapping[str, Any], files: Sequence[int] = ()) -> tuple[int, int]:
        """Forks a program, which gets up to four descriptors; returns its number and a descriptor of its process."""
        with self._lock:
            connection = self._connection()
            socket.send_fds(connection, [json.dumps(order).encode()], files)
            pid = int(connection.recv(32))
            try:
                return pid, os.pidfd_open(pid)
            finally:
                connection.send(b"-")

    def begin(self) -> None:
        """Starts the process, if it has not begun; it imports while this one goes on."""
        if self._address:
            return
        folder = tempfile.mkdtemp()
        self._address = f"{folder}/forks"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # messages keep their borders
        kept, theirs = socket.socketpair()
        with listener, theirs:
            listener.bind(self._address)
            listener.listen()
            files = (listener.fileno(), theirs.fileno())
            code = f"from tests.warm_forks import serve; serve({self._module!r}, *{files})"
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            process = subprocess.Popen([sys.executable, "-c", code], pass_fds=files, env=environment)
        self._own = kept, process

        def end() -> None:
            kept.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:  # another process that a test left has the other end
                process.kill()
                process.wait()
            shutil.rmtree(folder)

        atexit.register(end)

    def address(self) -> str:
        """The path of the socket of the process, which begins now if it has not begun."""
        self.begin()
        return self._address

    def _connection(self) -> socket.socket:
        if os.getpid() not in self._connections:
            self.begin()
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.connect(self._address)
            self._connections = {os.getpid(): connection}
        return self._connections[os.getpid()]


def serve(name: str, listener: int, keeper: int) -> None:
    """Forks a program of a module for each order until the processes with the other end of ``keeper`` have ended."""
    module = importlib.import_module(name)
    module.prepare()
    gc.collect()
    gc.freeze()
    server = _Server(module, listener, keeper)
    while server.turn():
        pass


class _Server:
    """The process that forks; a fork closes all that belongs to the process alone."""

    def __init__(self, module: Any, listener: int, keeper: int) -> None:
        self._module = module
        self._listener, self._keeper = socket.socket(fileno=listener), socket.socket(fileno=keeper)
        self._ready = selectors.DefaultSelector()
        for own in (self._listener, self._keeper):
            self._ready.register(own, selectors.EVENT_READ)
        self._children: list[int] = []

    def turn(self) -> bool:
        """Does what is due; False when the tests have ended."""
        for key, _ in self._ready.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._keeper:
                return False
            if connection is self._listener:
                self._ready.register(self._listener.accept()[0], selectors.EVENT_READ)
            else:
                self._answer(connection)
        return True

    def _answer(self, connection: socket.socket) -> None:
        message, files, _flags, _address = socket.recv_fds(connection, 1 << 20, 4)
        if not message:
            self._ready.unregister(connection)
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            for key in tuple(self._ready.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                os.close(key.fileobj.detach())
            self._ready.close()
            self._module.run_order(json.loads(message), files)
        for file in files:
            os.close(file)
        self._children.append(pid)
        connection.send(str(pid).encode())
        connection.recv(8)  # until then the number of a program that has ended is not used again
        self._children = [child for child in self._children if os.waitpid(child, os.WNOHANG)[0] == 0]
