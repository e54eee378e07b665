"""An event loop in which time stands still while the machine does something else.

A test waits for things that are done by the same loop: a server's answer, a controller's next look. On a machine that
gives the process a turn only now and then, real time runs out for all of them at once, and what was to be seen in
between is not. Here each reading of the clock takes it on by 5 ms at most, however late it comes; on an idle machine
that is real time, as nothing is waited for longer than 4 ms in one go.

Where everything that is waited for is done by the loop, as in a whole control plane, ``hurried`` makes time pass five
times as fast whenever there is nothing to do.
"""

import asyncio
import datetime
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager

from podwire.runtime.clock import SystemClock

_TURN_S = 0.004
_STEP_S = 0.005
_HURRY = 5


class _Selector(selectors.DefaultSelector):
    """Waits for a turn at most."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= _TURN_S:
            return super().select(timeout)
        result = super().select(_TURN_S)
        if Policy.hurry and not result:
            self.skipped_s += min(_TURN_S * (_HURRY - 1), timeout or 0.0)
        return result


class PatientLoop(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self._at = self._read = time.monotonic()
        self._turns = _Selector()
        self._began = self._at, datetime.datetime.now(datetime.UTC)
        super().__init__(self._turns)

    def time(self) -> float:
        """Seconds that only grow, from an arbitrary start."""
        now = time.monotonic()
        self._at += min(now - self._read, _STEP_S) + self._turns.skipped_s
        self._read, self._turns.skipped_s = now, 0.0
        return self._at

    def now(self) -> datetime.datetime:
        """The time of day as far as it has come."""
        at, day = self._began
        return day + datetime.timedelta(seconds=self.time() - at)


class Policy(asyncio.DefaultEventLoopPolicy):
    """Makes such loops."""

    _loop_factory = PatientLoop
    hurry = False


@contextmanager
def hurried() -> Iterator[None]:
    """Time passes faster in all loops."""
    Policy.hurry = True
    try:
        yield
    finally:
        Policy.hurry = False


class LoopClock(SystemClock):
    """A clock that goes with the loop it is read in."""

    def monotonic(self) -> float:
        """The loop's seconds."""
        return self._loop.time()

    def now(self) -> datetime.datetime:
        """The loop's time of day."""
        return self._loop.now()

    @property
    def _loop(self) -> PatientLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PatientLoop)
        return loop
