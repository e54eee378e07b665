"""A process whose open descriptors outlive its crash, and the replacement of its program.

How it works: a keeper and its worker are two processes with one table of descriptors (clone(2) with ``CLONE_FILES``,
which fork(2) does not offer). What the worker opens, the keeper has as well, in the same moment and without a message.
A worker that is killed takes its memory along and closes nothing: listening sockets, connections and pipes stay as
they are, and the next worker, which the keeper forks at once, finds them by their numbers. What the numbers mean has to
be in shared memory (a memfd). When the keeper is killed, the worker gets SIGHUP and takes both parts: it replaces
itself by the program, from which keeper and worker come anew. That is also the way to a newer program. Only when both
are killed in the same moment, descriptors close.

Nobody may rely on destructors: the worker leaves by ``os._exit``, and a new worker closes what it has no use for.
The keeper sleeps in waitpid(2). Both are single threads. SIGTERM to the keeper is passed on to the worker.

Why not send descriptors to a holder: two messages for each connection, and what was accepted a moment ago is lost.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from podwire.errors import Unsupported
from podwire.runtime.backoff import Backoff
from podwire.runtime.child import PR_SET_PDEATHSIG, prctl
from podwire.runtime.forkserver import leave

CLONE_FILES = 0x00000400  # linux/sched.h
_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
_SOUND_S = 1.0

KEEPER_GONE = signal.SIGHUP
"""What the worker is told by."""


def fork_sharing_descriptors() -> int:
    """As fork(2), but parent and child have one table of descriptors: the child's pid, or 0 in the child.

    To be called in a process with one thread. Raises: Unsupported on an architecture whose number of clone(2) is not
    known here; OSError.
    """
    number = _CLONE.get(os.uname().machine)
    if number is None:
        raise Unsupported("clone", detail=f"no system call number known for {os.uname().machine}")
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = int(ctypes.PyDLL(None, use_errno=True).syscall(number, CLONE_FILES | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def keep(work: Callable[[], None], go_on: Callable[[], NoReturn]) -> NoReturn:
    """Runs ``work`` in a worker, again whenever that is killed or fails; ends when it returns.

    ``go_on`` is called in a worker whose keeper is gone, at whatever it is; it is to :func:`replace` the program.
    """
    backoff = Backoff(first_s=0.05, ceiling_s=5.0)
    worker = 0

    def pass_on(number: int, _frame: object) -> None:
        if worker:
            os.kill(worker, number)

    signal.signal(signal.SIGTERM, pass_on)
    own = os.getpid()
    while True:
        begun = time.monotonic()
        worker = fork_sharing_descriptors()
        if worker == 0:
            _work(work, go_on, own)
        status = os.waitpid(worker, 0)[1]
        if status == 0:
            os._exit(0)
        if time.monotonic() - begun >= _SOUND_S:
            backoff.reset()
        else:
            time.sleep(backoff.next_delay_s())


def _work(work: Callable[[], None], go_on: Callable[[], NoReturn], keeper: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(KEEPER_GONE, lambda *_: go_on())
        prctl(PR_SET_PDEATHSIG, KEEPER_GONE)
        if os.getppid() != keeper:
            os.kill(os.getpid(), KEEPER_GONE)
        work()
        code = 0
    finally:
        leave(code)


def replace(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Puts a program in the place of this process; every open descriptor stays open.

    Raises: OSError when it cannot be started.
    """
    for name in [entry.name for entry in Path("/proc/self/fd").iterdir()]:
        try:
            os.set_inheritable(int(name), True)
        except OSError:
            continue
    os.execve(argv[0], list(argv), dict(environment))
