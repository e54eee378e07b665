"""A process that outlives its own crash: a holder keeps what must not close, a worker forked from it does the work.

How it works: :func:`hold` forks. The child returns and goes on as the worker. The parent stays inside and only
waits: when the worker is killed or crashes, the parent forks again, at once the first time, then with a growing delay.
What was opened before, listening sockets above all, stays open meanwhile, so datagrams and connections wait in the
kernel's queue for the next worker instead of being refused. SIGTERM and SIGINT are passed on; a worker that ends by
itself ends the holder with the same status. A worker dies with its holder.

The holder has its signals blocked and takes them with sigwait(3). With handlers, a signal that arrives just before a
blocking call would be noticed only after that call.

Call :func:`hold` before there is an event loop or a thread. Cost: one idle process that shares the worker's pages.
"""

import os
import signal
import time

from podwire.runtime.backoff import Backoff
from podwire.runtime.child import PR_SET_PDEATHSIG, prctl

_STABLE_S = 1.0
"""A worker that ran for so long is replaced at once when it fails."""
_ENDING = (signal.SIGTERM, signal.SIGINT)


def hold() -> None:
    """Returns in the worker, each time in a new one; never returns in the holder."""
    backoff, holder = Backoff(first_s=0.05, ceiling_s=5.0), os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_ENDING, signal.SIGCHLD))
    while True:
        began = time.monotonic()
        worker = os.fork()
        if worker == 0:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if os.getppid() != holder:
                os._exit(1)
            return
        status, ending = _wait(worker)
        stable = time.monotonic() - began >= _STABLE_S
        if ending or (status >= 0 and not (status and stable)):
            os._exit(status if status >= 0 else 128 - status)
        if stable:
            backoff.reset()
        elif (received := signal.sigtimedwait(_ENDING, backoff.next_delay_s())) is not None:
            os._exit(128 + received.si_signo)


def _wait(worker: int) -> tuple[int, bool]:
    """The exit code of a worker that has ended, and whether a signal to the holder asked for the end."""
    ending = False
    while True:
        number = signal.sigwait((*_ENDING, signal.SIGCHLD))
        if number != signal.SIGCHLD:
            ending = True
            os.kill(worker, number)
            continue
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), ending
