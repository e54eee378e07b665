"""Brings the log of the address ledger to the disk, on a slow disk while the kernel makes the pod's devices.

A change is in the log file as soon as SQLite has committed it (``synchronous=NORMAL``), where it outlives the process;
it outlives a power cut after ``fdatasync``. ADD needs both, but not at once: the devices may be made in between,
because they are gone after a power cut, too. So :meth:`LogSync.start` begins the ``fdatasync``, and
:meth:`LogSync.wait` returns when all changes before the last ``start`` are on the disk. One ``fdatasync`` serves all
changes that were committed before it began.

An ``fdatasync`` takes 0.06 ms here, and 1 ms and more on network disks. A thread costs the caller some 0.1 ms: its
processor has to wake up, and both threads wait for the interpreter lock. So the caller itself waits for a disk whose
last ``fdatasync`` took less than :data:`FAST_S`, and gives the work to a thread otherwise.

Source: sqlite.org/wal.html, "Performance Considerations", and sqlite.org/pragma.html#pragma_synchronous: what
``synchronous=FULL`` adds is this ``fdatasync`` for each commit.
"""

import os
import threading
import time
from pathlib import Path
from queue import SimpleQueue

FAST_S = 0.0002


class LogSync:
    """One log file; it has a thread from the first slow ``fdatasync`` to ``close``."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._asked = 0
        self._done = 0
        self._failure: OSError | None = None
        self._requests: SimpleQueue[int] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, OSError | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._descriptor = -1
        """The log file; it changes only while the thread has nothing to do."""
        self._inode = 0
        self._last_s = 0.0
        """How long the last ``fdatasync`` took."""

    def start(self) -> None:
        """Begins to bring what the log has now to the disk."""
        while not self._answers.empty():
            self._take()
        try:
            self._open()
        except OSError as failure:
            self._failure = failure
            self._close()
        self._asked += 1
        if self._done + 1 == self._asked and self._last_s < FAST_S:
            self._failure = self._sync() or self._failure
            self._done = self._asked
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ledger log", daemon=True)
            self._thread.start()
        self._requests.put(self._asked)

    def _open(self) -> None:
        """Opens the log file unless it is open.

        Raises: OSError.
        """
        inode = os.stat(self._log).st_ino  # noqa: PTH116 - for each ADD, and a Path takes twice as long
        if inode == self._inode:
            return
        self._close()
        self._descriptor = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
        self._inode = inode

    def _close(self) -> None:
        """Closes the log file as soon as the thread does not use it."""
        while self._done < self._asked:
            self._take()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._inode = -1, 0

    def wait(self) -> None:
        """Returns when everything that was in the log at the last ``start`` is on the disk.

        Raises: OSError when it, or an earlier change, could not be brought there.
        """
        while self._done < self._asked:
            self._take()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _take(self) -> None:
        self._done, failure = self._answers.get()
        self._failure = failure or self._failure

    def close(self) -> None:
        """Waits for the disk and ends the thread; a failure is ignored."""
        if self._thread is not None:
            self._requests.put(0)
            self._thread.join()
            self._thread = None
        self._close()

    def _run(self) -> None:
        while number := self._requests.get():
            while not self._requests.empty():
                if not (further := self._requests.get()):
                    self._requests.put(0)
                    break
                number = further
            self._answers.put((number, self._sync()))

    def _sync(self) -> OSError | None:
        """Brings the log to the disk; ``start`` keeps the failure to open it."""
        began = time.perf_counter()
        try:
            if self._descriptor >= 0:
                os.fdatasync(self._descriptor)
        except OSError as failure:
            return failure
        finally:
            self._last_s = time.perf_counter() - began
        return None
