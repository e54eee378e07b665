"""A keeper process whose open descriptors outlive the crash of its worker.

How it works: a program forks a worker that does the work. The keeper stays behind and only waits: when the worker is
killed or crashes, the keeper forks the next one, at once when the worker ran for a second, else after a growing delay.
Call the functions before there is an event loop or a thread. Cost: one idle process that shares the worker's pages.
The keeper has its signals blocked and takes them with sigwait(3): with handlers, a signal that arrives just before a
blocking call would be noticed only after that call.

There are two kinds of worker:

- :func:`keep_worker`: the worker inherits what was opened before, listening sockets above all. While there is no
  worker, datagrams and connections wait in the kernel's queue for the next one instead of being refused. What the
  worker opens itself closes with it. A worker dies with its keeper; a worker that ends by itself ends the keeper.
- :func:`keep_descriptors`: keeper and worker have one table of descriptors (clone(2) with ``CLONE_FILES``, which
  fork(2) does not offer). What the worker opens, the keeper has as well, in the same moment and without a message. A
  worker that is killed frees its memory and closes no descriptor: listening sockets, connections and pipes stay as they
  are, and the next worker finds them by their numbers. What the numbers mean has to be in shared memory (a memfd). When
  the keeper is killed, the worker gets SIGHUP and takes both roles: it replaces itself by the program, from which
  keeper and worker are started again. A newer program is started in the same way. Only when both are killed in the same
  moment, descriptors close. Code in the worker cannot rely on destructors: it leaves by ``os._exit``, and a new worker
  closes what it has no use for.

Why not send descriptors to another process: that takes two messages for each connection, and a connection that was
accepted a moment ago is lost.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from podwire.errors import Unsupported
from podwire.runtime.backoff import Backoff
from podwire.runtime.child import PR_SET_PDEATHSIG, leave, prctl

CLONE_FILES = 0x00000400  # linux/sched.h
_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
_STABLE_S = 1.0
"""A worker that ran for at least this time is replaced at once when it fails."""

KEEPER_GONE = signal.SIGHUP
"""The signal that the worker gets when its keeper ends."""


def fork_sharing_descriptors() -> int:
    """As fork(2), but parent and child have one table of descriptors: the child's pid, or 0 in the child.

    To be called in a process with one thread. Raises: Unsupported on an architecture whose number of clone(2) is not
    defined here; OSError.
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


class _End(msgspec.Struct, frozen=True):
    """The end of a worker: its exit status (negative for a signal), and the seconds that it ran."""

    status: int
    ran_s: float
    asked: bool
    """Whether the keeper got a signal meanwhile and forwarded it."""


class _Keeper:
    """Forks workers and waits for them; forwards ``signals`` to the worker."""

    def __init__(self, fork: Callable[[], int], *signals: signal.Signals) -> None:
        self._fork = fork
        self._signals = signals
        self._backoff = Backoff(first_s=0.05, ceiling_s=5.0)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*signals, signal.SIGCHLD))

    def run_worker(self) -> _End | None:
        """Forks a worker and waits for its end; returns None in the worker, whose signals are not blocked."""
        began = time.monotonic()
        worker = self._fork()
        if worker == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            return None
        asked = False
        while True:
            number = signal.sigwait((*self._signals, signal.SIGCHLD))
            if number != signal.SIGCHLD:
                asked = True
                os.kill(worker, number)
                continue
            ended, status = os.waitpid(worker, os.WNOHANG)
            if ended:
                return _End(os.waitstatus_to_exitcode(status), time.monotonic() - began, asked)

    def delay_s(self, end: _End) -> float:
        """The delay in seconds before the next worker is forked."""
        if end.ran_s < _STABLE_S:
            return self._backoff.next_delay_s()
        self._backoff.reset()
        return 0.0


def keep_worker() -> None:
    """Returns in the worker, each time in a new one; never returns in the keeper.

    SIGTERM and SIGINT are passed on and end both. A worker that ends by itself ends the keeper with the same status,
    unless it ran for a second and failed.
    """
    own = os.getpid()
    keeper = _Keeper(os.fork, signal.SIGTERM, signal.SIGINT)
    while (end := keeper.run_worker()) is not None:
        failed = end.status < 0 or (end.status > 0 and end.ran_s >= _STABLE_S)
        if end.asked or not failed:
            os._exit(end.status if end.status >= 0 else 128 - end.status)
        received = signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), keeper.delay_s(end))
        if received is not None:
            os._exit(128 + received.si_signo)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != own:
        os._exit(1)


def keep_descriptors(work: Callable[[], None], take_over: Callable[[], NoReturn]) -> NoReturn:
    """Runs ``work`` in a worker, again whenever that is killed or fails; ends when ``work`` returns.

    SIGTERM is passed on to the worker; one that arrives between two workers waits for the next. ``take_over`` is called
    in a worker whose keeper is gone, whatever the worker is doing; it has to :func:`replace` the program.
    """
    own = os.getpid()
    keeper = _Keeper(fork_sharing_descriptors, signal.SIGTERM)
    while (end := keeper.run_worker()) is not None:
        if end.status == 0:
            os._exit(0)
        time.sleep(keeper.delay_s(end))
    _work(work, take_over, own)


def _work(work: Callable[[], None], take_over: Callable[[], NoReturn], keeper: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(KEEPER_GONE, lambda *_: take_over())
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
