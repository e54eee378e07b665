"""Commands of podwire as forks of one process that has their modules: a start costs a fourth of the processor time.

The process also has what the components of a cluster import. The fork server of a cluster that such a command makes
has it from there, which saves 0.5 s of processor time for each cluster.

Shells run commands so by :mod:`tests.e2e.warm_client`. Commands that a test starts in other ways, and those of README,
are programs of their own.
"""

import atexit
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from tests.warm_forks import WarmForks

from podwire.cli.lazy import LazyGroup
from podwire.cli.main import main, root
from podwire.local.entries import PREPARE

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
_FORKS = WarmForks(__name__)


def run(
    program: str, arguments: Sequence[str], *, stdin: str, timeout: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs a command and waits for its end, as ``subprocess.run``; ``program`` is its name.

    Raises: subprocess.TimeoutExpired; the command is killed then.
    """
    command = [program, *arguments]
    order = {"arguments": command, "environment": dict(environment), "folder": str(Path.cwd())}
    with tempfile.TemporaryFile() as entered, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        entered.write(stdin.encode())
        entered.seek(0)
        receives, sends = os.pipe()
        try:
            files = [entered.fileno(), output.fileno(), errors.fileno(), sends]
            try:
                _, handle = _FORKS.spawn(order, files)
            finally:
                os.close(sends)
            status = _status(handle, receives, timeout)
        finally:
            os.close(receives)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
    if status is None:
        raise subprocess.TimeoutExpired(command, timeout, *texts)
    return subprocess.CompletedProcess(command, status, *texts)


def client() -> list[str]:
    """The beginning of a shell's command line; the name of the program and its arguments follow."""
    return [sys.executable, "-IS", str(Path(__file__).with_name("warm_client.py")), _FORKS.address()]


def _status(handle: int, receives: int, timeout: float) -> int | None:
    """The exit status of a command; None after the time limit, when it is killed."""
    try:
        if not select.select([handle], [], [], timeout)[0]:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return None
    finally:
        os.close(handle)
    if not select.select([receives], [], [], 0)[0]:
        return -signal.SIGKILL
    return int(os.read(receives, 8) or -signal.SIGKILL)


def begin() -> None:
    """Starts the process that forks, for all workers that are forks of this one."""
    _FORKS.begin()


def prepare() -> None:
    """Imports the modules of all commands, and of the components of clusters."""
    assert isinstance(root, LazyGroup)
    _load(root)
    for preparation in PREPARE.values():
        for _ in preparation():
            pass


def _load(group: LazyGroup) -> None:
    """Imports the modules of all commands of a group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, LazyGroup):
            _load(command)


def run_order(order: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """Runs the command in a process below this one, and reports its exit status, also that of another program.

    The command ends with this process.
    """
    *streams, sends = files
    pid = os.fork()
    if pid == 0:
        os.close(sends)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _run(order, streams)
    _, status = os.waitpid(pid, 0)
    os.write(sends, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run(order: Mapping[str, Any], streams: Sequence[int]) -> NoReturn:
    """Runs the command in this process, which is a fork, as the program does."""
    status = 1
    try:
        for number, file in enumerate(streams):
            os.dup2(file, number)
            os.close(file)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.argv = order["arguments"]
        main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        failure = sys.exc_info()[1]
        if failure is not None:
            sys.excepthook(type(failure), failure, failure.__traceback__)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
