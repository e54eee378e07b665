"""The end of child processes as a descriptor that becomes readable, for the loop of a process without asyncio."""

import os
import signal

_CHUNK = 1 << 16


class ChildExits:
    """The ends of all children of this process; at most one object in a process, made in its main thread.

    ``reset_signals`` of :mod:`podwire.runtime.child` ends it in a forked process.
    """

    def __init__(self) -> None:
        self._wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)

    def fileno(self) -> int:
        """The descriptor, readable when a child may have ended."""
        return self._wake

    def reap(self) -> list[tuple[int, int]]:
        """Process number and exit status (a negated signal number after a signal) of each child that has ended.

        Returns without blocking; a child is returned once.
        """
        try:
            os.read(self._wake, _CHUNK)
        except BlockingIOError:
            pass
        ended: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            ended.append((pid, os.waitstatus_to_exitcode(status)))
