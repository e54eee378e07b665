"""Sets up a process after a fork, and runs programs to their end.

A forked child of a warm Python process starts in a millisecond, but with its parent's signal handlers, descriptors,
session and name. :func:`settle` changes these, in this order: parent-death signal or session, signals, log, descriptors
(the passed ones become 3, 4, 5 ... as with socket activation), network namespace, name.

:func:`run` starts a program by ``posix_spawn`` (the kernel's vfork path: no page table is copied, 0.3 ms) and awaits
its end through a pidfd. Standard input, output and error are memory files, so no pipe has to be read meanwhile; a
program that runs at the time limit is killed. :func:`call` does the same in a thread that may block: the program is in
the thread's own network namespace, and its input is written to a pipe after the caller has received the process id.
"""

import ctypes
import errno
import fcntl
import io
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWNS = 0x00020000  # linux/sched.h
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWNET = 0x40000000

_FIRST_PASSED_FD = 3
_HIGH_FD = 200
_DEFAULT_SIGNALS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a forked child.

    ``title``: its name in ps and top; empty keeps the parent's. ``netns``: path of the network namespace to enter;
    empty keeps the parent's. ``log``: file to which standard output and error are appended; empty keeps the parent's.
    ``daemon``: outlives the fork server, in a session of its own; other children get SIGTERM when the fork server ends.
    """

    title: str = ""
    netns: str = ""
    log: str = ""
    daemon: bool = False


class Finished(msgspec.Struct, frozen=True):
    """A program that ended; ``code`` is negative for a signal, None when it was killed at the time limit."""

    code: int | None
    output: bytes
    errors: bytes


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, operation: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{operation}: {os.strerror(number)}")


def enter_namespace(fd: int, kinds: int) -> None:
    """Moves this thread into the namespaces of ``fd`` (an nsfs file, or a pidfd with several ``kinds``).

    Raises: OSError; the thread is then in its former namespaces.
    """
    _check(_libc().setns(fd, kinds), "setns")


def unshare(kinds: int) -> None:
    """Gives this process new namespaces of ``kinds`` (CLONE_NEW...).

    Raises: OSError; nothing has changed then.
    """
    _check(_libc().unshare(kinds), "unshare")


def prctl(option: int, value: int) -> None:
    """One integer option of prctl(2).

    Raises: OSError.
    """
    _check(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def enter_netns(path: str) -> None:
    """Moves this thread into the network namespace mounted at ``path``.

    Raises: OSError when there is none.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter_namespace(fd, CLONE_NEWNET)
    finally:
        os.close(fd)


def set_title(title: str) -> None:
    """Names this process: 15 bytes of ``comm``, and as much of the command line as the old one had."""
    name = ctypes.create_string_buffer(title.encode()[:15])
    _libc().prctl(PR_SET_NAME, name, 0, 0, 0)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: proc(5), fields 48 and 49
    if 0 < start < end:
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


def reset_signals() -> None:
    """Sets default handlers and an empty mask for signals; SIGPIPE stays ignored, as Python expects."""
    signal.set_wakeup_fd(-1)
    for number in _DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def place_fds(fds: Sequence[int]) -> None:
    """Makes ``fds`` the descriptors 3, 4, 5 ... and closes every other one above standard error."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD) for fd in fds]
    os.closerange(_FIRST_PASSED_FD, _HIGH_FD)
    for offset, fd in enumerate(high):
        os.dup2(fd, _FIRST_PASSED_FD + offset, inheritable=False)
    os.closerange(_HIGH_FD, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def renew_streams() -> None:
    """Opens new text streams on descriptors 1 and 2, so that text buffered by the parent is not written twice."""
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def settle(placement: Placement, fds: Sequence[int], parent: int) -> None:
    """Applies ``placement`` to a freshly forked process; to be called in the child, once.

    Raises: OSError (no such namespace, log not writable); the child should then exit.
    """
    if placement.daemon:
        os.setsid()
    else:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            raise SystemExit(1)
    reset_signals()
    if placement.log:
        log = os.open(placement.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    renew_streams()
    place_fds(fds)
    if placement.netns:
        enter_netns(placement.netns)
    if placement.title:
        set_title(placement.title)


def leave(code: int) -> NoReturn:
    """Ends a forked process: prints the traceback of the present exception, if any, and exits."""
    kind, failure, trace = sys.exc_info()
    if isinstance(failure, SystemExit):
        code = failure.code if isinstance(failure.code, int) else int(failure.code is not None)
    elif kind is not None and failure is not None:
        sys.excepthook(kind, failure, trace)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


def _memory_file(name: str, content: bytes = b"") -> int:
    fd = os.memfd_create(name)
    if content:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


async def run(argv: Sequence[str], *, env: Mapping[str, str], stdin: bytes = b"", timeout_s: float = 60.0) -> Finished:
    """Runs a program to its end; ``argv[0]`` is its path, ``env`` its whole environment.

    Raises: OSError when it cannot be started. Cancelling kills the program.
    """
    fds = (_memory_file("stdin", stdin), _memory_file("stdout"), _memory_file("stderr"))
    try:
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
        pid = os.posix_spawn(argv[0], list(argv), env, file_actions=actions, setsigdef=(signal.SIGPIPE,))
        code = await _ended(pid, timeout_s)
        return Finished(code, _read_all(fds[1]), _read_all(fds[2]))
    finally:
        for fd in fds:
            os.close(fd)


async def _ended(pid: int, timeout_s: float) -> int | None:
    import asyncio  # here, since commands that only fork and mount need no event loop

    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(pid)
    ended: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(pidfd, wake)
    code: int | None = None
    try:
        async with asyncio.timeout(timeout_s):
            await ended
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        if not ended.done() or ended.cancelled():
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if ended.done() and not ended.cancelled():
            code = os.waitstatus_to_exitcode(status)
    return code


def call(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: bytes = b"",
    timeout_s: float = 60.0,
    started: Callable[[int], None] | None = None,
) -> Finished:
    """Runs a program to its end in this thread; ``started`` gets its process id before the program gets its input.

    Raises: OSError when it cannot be started.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    fds = (reading, _memory_file("stdout"), _memory_file("stderr"))
    try:
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            pid = os.posix_spawn(argv[0], list(argv), env, file_actions=actions, setsigdef=(signal.SIGPIPE,))
            pidfd = os.pidfd_open(pid)
            ended = False
            try:
                if started is not None:
                    started(pid)
                ended = _feed(pipe, stdin, pidfd, time.monotonic() + timeout_s)
            finally:
                os.close(pidfd)
                if not ended:
                    os.kill(pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
        return Finished(os.waitstatus_to_exitcode(status) if ended else None, _read_all(fds[1]), _read_all(fds[2]))
    finally:
        for fd in fds:
            os.close(fd)


def spawn_apart(argv: Sequence[str], fds: Sequence[int] = ()) -> None:
    """Starts a program in a session of its own, which outlives this process, with ``fds`` as descriptors 3, 4, 5 ...

    The program must fork once and end its first process; this function waits for that end. The program runs in the
    network namespace of the calling thread.

    Raises: OSError when it cannot be started, or ends with a failure.
    """
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD) for fd in fds]
    try:
        actions = [(os.POSIX_SPAWN_DUP2, fd, _FIRST_PASSED_FD + offset) for offset, fd in enumerate(high)]
        pid = os.posix_spawn(argv[0], list(argv), os.environ, file_actions=actions, setsid=True)
    finally:
        for fd in high:
            os.close(fd)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError(errno.ECHILD, f"{' '.join(argv)} did not start")


def _feed(pipe: io.FileIO, text: bytes, pidfd: int, deadline: float) -> bool:
    """Writes the program's input, closes it and waits for the program's end; False at the time limit."""
    os.set_blocking(pipe.fileno(), False)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(pipe, select.POLLOUT)
    writing = pipe.fileno()
    rest = memoryview(text)
    while (remaining_s := deadline - time.monotonic()) > 0:
        ready = dict(poll.poll(remaining_s * 1000))
        if pidfd in ready:
            return True
        if writing in ready:
            try:
                rest = rest[pipe.write(rest) or 0 :] if rest else rest
            except BrokenPipeError:
                rest = rest[:0]
            if not rest:
                poll.unregister(writing)
                pipe.close()
                writing = -1
    return False
