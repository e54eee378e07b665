"""Programs of podwire as forks of one process that has their modules: a start costs milliseconds, not half a second.

The process is started with the first program and ends with the tests. It has no threads and no event loop, as the fork
server of a local cluster. A test that measures the memory of a program starts it without this module.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from podwire.kernel import netns


class WarmProcess:
    """A forked program, with the methods of a process that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        """Sends a signal unless the program has ended."""
        if self.running():
            signal.pidfd_send_signal(self._handle, signal.Signals(number))

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def running(self) -> bool:
        """Whether the program has not ended."""
        return not select.select([self._handle], [], [], 0)[0]

    def wait(self) -> None:
        """Returns when the program has ended."""
        select.select([self._handle], [], [])

    def __del__(self) -> None:
        os.close(self._handle)


def spawn(place: Path, code: str, *arguments: str, log: Path) -> WarmProcess:
    """Runs a text of Python in a network namespace, with arguments as ``sys.argv[1:]``; its output goes to the log."""
    order = {"place": str(place), "code": code, "arguments": arguments, "log": str(log)}
    connection = _server()
    connection.sendall(json.dumps(order).encode() + b"\n")
    pid = int(connection.recv(32))
    try:
        return WarmProcess(pid)
    finally:
        connection.sendall(b"\n")


@cache
def _server() -> socket.socket:
    """The connection to the process that forks."""
    ours, theirs = socket.socketpair()
    with theirs:
        code = f"from tests.kernel.warm_processes import serve; serve({theirs.fileno()})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], env=environment)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(descriptor: int) -> None:
    """Forks a program for each order until the tests have ended."""
    from podwire.local.entries import PREPARE

    for component in ("apiserver", "agent"):
        for _ in PREPARE[component]():
            pass
    gc.collect()
    gc.freeze()
    children: list[int] = []
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as orders:
        while line := orders.readline():
            pid = os.fork()
            if pid == 0:
                os.close(connection.detach())
                _run(json.loads(line))
            children.append(pid)
            connection.sendall(str(pid).encode())
            orders.readline()  # until then the number of a program that has ended is not used again
            children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]


def _run(order: dict[str, Any]) -> NoReturn:
    status = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        netns.enter(order["place"])
        sys.argv = ["-c", *order["arguments"]]
        exec(compile(order["code"], "<program>", "exec"), {"__name__": "__main__"})  # noqa: S102 - the text of a test
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        failure = sys.exc_info()[1]
        if failure is not None:
            sys.excepthook(type(failure), failure, failure.__traceback__)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
