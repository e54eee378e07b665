"""Looks at state of the kernel that changes without notifications, several times a second, for little CPU time."""

import time
from collections.abc import Callable

from podwire.kernel.iptables import Ticker

LOOK_S = 0.05
_REST = 1000
"""The pause after a look, as a multiple of its CPU time: looks take at most 0.1 % of one CPU."""


class Looks:
    """A timer whose descriptor becomes readable every 0.05 s."""

    def __init__(self) -> None:
        self._ticker = Ticker(LOOK_S)
        self._rested_at = 0.0
        self.fileno = self._ticker.fileno
        self.close = self._ticker.close

    def differs(self, differs: Callable[[], bool]) -> bool:
        """Whether a look was due, and ``differs``, which is called then, returned True."""
        if not self._ticker.period_ended() or time.monotonic() < self._rested_at:
            return False
        began = time.thread_time()
        try:
            return differs()
        finally:
            self._rested_at = time.monotonic() + _REST * (time.thread_time() - began)
