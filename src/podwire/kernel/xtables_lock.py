"""The lock of xtables: to hold it, and to notice programs of legacy iptables, each of which opens it until it ends.

The kernel sends no notifications of legacy rules. inotify(7) reports that a program closed the lock file, also one that
only read rules, or that works in another network namespace; so the report is only a reason to look. Programs in a mount
namespace with another ``/run`` are not noticed.
"""

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from podwire.kernel.failure import refusal

LOCK = "/run/xtables.lock"
_LIBC = ctypes.CDLL(None, use_errno=True)
_IN_CLOSE = 0x18  # IN_CLOSE_WRITE and IN_CLOSE_NOWRITE, linux/inotify.h
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def lock() -> Iterator[bool]:
    """Holds the lock while a block runs, if no program holds it; yields whether it does."""
    try:
        descriptor = os.open(LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _is_free(descriptor)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    """Takes the lock; returns whether no other process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class LockUses:
    """A descriptor that becomes readable when a program closes the lock file."""

    def __init__(self) -> None:
        """Raises: KernelError."""
        self._fd: int = _LIBC.inotify_init1(_FLAGS)
        if self._fd < 0:
            raise refusal("create", "inotify descriptor", ctypes.get_errno())
        self._watched = False
        self.watch()

    def watch(self) -> None:
        """Watches the lock file, if that is not done yet and the first program has made the file."""
        if not self._watched:
            self._watched = _LIBC.inotify_add_watch(self._fd, LOCK.encode(), _IN_CLOSE) >= 0

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._fd

    def used(self) -> bool:
        """Whether a program closed the lock file since the last call."""
        try:
            return bool(os.read(self._fd, 1 << 12))
        except OSError as failure:
            if failure.errno != errno.EAGAIN:
                raise refusal("read", "inotify descriptor", failure.errno or 0) from failure
            return False

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._fd)
