"""Turns a forked process into a container, or into a program inside a container.

Descriptors from the shim: 0, 1, 2 for the program, 3 the start pipe, 4 (exec only) the container's mount namespace.
When a step fails, its error is written to the start pipe as text and the process ends with status 128. exec closes the
start pipe; a built-in server closes the start pipe when it listens.
"""

import errno
import fcntl
import os
import signal
import socket
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from podwire.embedded.kubelet.mounts import enter_root, protect_root
from podwire.embedded.kubelet.orders import ContainerOrder, ExecOrder, Privileges, ProcessUser, ShimOrder
from podwire.embedded.kubelet.ownprogram import find_own, keep_capabilities, run_own
from podwire.kernel.cgroup import join
from podwire.runtime.child import (
    CLONE_NEWNS,
    PR_CAPBSET_DROP,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    enter_namespace,
    place_fds,
    prctl,
    renew_streams,
    reset_signals,
    set_title,
)

START_PIPE = 3
_MOUNTS = 4
_NOT_STARTED = 128


class Started:
    """Reports through the start pipe that a built-in server is ready; to be called once."""

    def __call__(self) -> None:
        """Closes the start pipe."""
        os.close(START_PIPE)

    @staticmethod
    def settle(fds: Sequence[int]) -> None:
        """Sets session, descriptors and signals of a freshly forked process; ``fds`` become 0, 1, 2, 3 ..."""
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        place_fds(fds)
        for number in range(3):
            os.dup2(3 + number, number)
        extra = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in range(6, 3 + len(fds))]
        os.closerange(3, 20)
        for offset, fd in enumerate(extra):
            os.dup2(fd, START_PIPE + offset, inheritable=False)
            os.close(fd)
        reset_signals()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        renew_streams()


def become_container(order: ContainerOrder, shim: ShimOrder, entries: Mapping[str, Callable[..., None]]) -> None:
    """Runs the container's program; returns when a built-in server has ended, never for another program."""
    try:
        join(order.groups)
        enter_root(shim.root, shim.binds, order.files, order.mounts, own_sysfs=not shim.host_network)
        if order.tty:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if order.cwd != "/":
            Path(order.cwd).mkdir(parents=True, exist_ok=True)
        if order.read_only_root:
            protect_root(shim.binds)
        os.chdir(order.cwd)
        if order.entry:
            hostname = socket.gethostname()
            set_title(f"{order.entry} {hostname}/{order.name}")
        else:
            _run(order.argv, order.env, order.user, order.privileges, order.executable)
    except OSError as failure:
        _fail(str(failure))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(order.env)
    entries[order.entry](order.payload, Started())


def become_exec(order: ExecOrder, container: ContainerOrder) -> None:
    """Runs another program in a container, whose mount namespace is descriptor 4."""
    try:
        join(container.groups)
        enter_namespace(_MOUNTS, CLONE_NEWNS)
        if order.tty:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(container.cwd)
        env = {"TERM": "xterm", **container.env} if order.tty else container.env
        _run(order.argv, env, order.user, order.privileges)
    except OSError as failure:
        _fail(str(failure))


def _run(
    argv: Sequence[str], env: Mapping[str, str], user: ProcessUser | None, privileges: Privileges, executable: str = ""
) -> NoReturn:
    """Becomes the program; ``podwire`` itself runs in this process.

    Raises: OSError.
    """
    own = find_own(executable or argv[0], env)
    _become_user(user, privileges)
    if own:
        if os.getuid() == 0 and privileges.capabilities is not None:
            keep_capabilities(privileges.capabilities)
        run_own(own, argv[1:], env)
    _exec(argv, env, executable)


def _become_user(user: ProcessUser | None, privileges: Privileges) -> None:
    if privileges.capabilities is not None:
        _bound(frozenset(privileges.capabilities))
    if user is not None:
        os.setgroups(user.groups)
        os.setgid(user.gid)
        os.setuid(user.uid)
    if privileges.no_new_privileges:
        prctl(PR_SET_NO_NEW_PRIVS, 1)


def _bound(bounding: frozenset[int]) -> None:
    """Removes capabilities from the bounding set: exec gives root all capabilities of that set, and no others."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    for number in range(last + 1):
        if number not in bounding:
            prctl(PR_CAPBSET_DROP, number)


def _exec(argv: Sequence[str], env: Mapping[str, str], executable: str) -> NoReturn:
    try:
        os.execvpe(executable or argv[0], list(argv), dict(env))
    except OSError as failure:
        if failure.errno in (errno.ENOENT, errno.ENOTDIR):
            where = "no such file or directory" if "/" in argv[0] else "executable file not found in $PATH"
            raise OSError(f'exec: "{argv[0]}": {where}') from failure
        raise OSError(f'exec: "{argv[0]}": {os.strerror(failure.errno or 0).lower()}') from failure


def _fail(problem: str) -> None:
    os.write(START_PIPE, problem.encode())
    raise SystemExit(_NOT_STARTED)
