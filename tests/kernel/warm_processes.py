"""Programs of podwire as forks of one process that has their modules: a start costs milliseconds, not half a second.

A test that measures the memory of a program starts it without this module.
"""

import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.warm_forks import WarmForks

from podwire.kernel import netns
from podwire.local.entries import PREPARE

_FORKS = WarmForks(__name__)


class WarmProcess:
    """A forked program, with the methods of a process that tests use."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid = pid
        self._handle = handle

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
    return WarmProcess(*_FORKS.spawn(order))


def begin() -> None:
    """Starts the process that forks, for all workers that are forks of this one."""
    _FORKS.begin()


def prepare() -> None:
    """Imports the modules of the programs."""
    for component in ("apiserver", "agent"):
        for _ in PREPARE[component]():
            pass


def run_order(order: Mapping[str, Any], _files: Sequence[int]) -> NoReturn:
    """Runs the text of a program in this process, which is a fork."""
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
