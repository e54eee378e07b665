"""A process that outlives its own crash: a holder keeps what must not close, a worker forked from it does the work.

How it works: :func:`hold` forks. The child returns and goes on as the worker. The parent stays inside and only
waits: when the worker is killed or crashes it forks again, at once the first time, then with a growing delay. What
was opened before, listening sockets above all, stays open meanwhile, so datagrams and connections wait in the
kernel's queue for the next worker instead of being refused. SIGTERM and SIGINT are passed on; a worker that ends by
itself ends the holder with the same status. A worker dies with its holder.

To be called before there is an event loop or a thread. Cost: one idle process that shares the worker's pages.
"""

import os
import signal
import time
from types import FrameType

from podwire.runtime.backoff import Backoff
from podwire.runtime.child import PR_SET_PDEATHSIG, prctl

_SOUND_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Holder:
    def __init__(self) -> None:
        self.worker = 0
        """The process to pass signals on to; 0: there is none at this moment."""
        self.ended_by = 0

    def pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.ended_by = number
        if self.worker:
            os.kill(self.worker, number)


def hold() -> None:
    """Returns in the worker, each time in a new one; never returns in the holder."""
    holder, backoff = _Holder(), Backoff(first_s=0.05, ceiling_s=5.0)
    before = {number: signal.signal(number, holder.pass_on) for number in _SIGNALS}
    own = os.getpid()
    while True:
        begun = time.monotonic()
        # A signal that comes while a worker begins or has ended waits until it is known whom to pass it on to.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        holder.worker = os.fork()
        if holder.worker == 0:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            if os.getppid() != own:
                os._exit(1)
            return
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.waitid(os.P_PID, holder.worker, os.WEXITED | os.WNOWAIT)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        worker, holder.worker = holder.worker, 0
        status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        sound = time.monotonic() - begun >= _SOUND_S
        if holder.ended_by or (status >= 0 and not (status and sound)):
            os._exit(status if status >= 0 else 128 - status)
        if sound:
            backoff.reset()
        else:
            time.sleep(backoff.next_delay_s())
            if holder.ended_by:
                os._exit(128 + holder.ended_by)
