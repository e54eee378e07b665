"""A clock that tests move by hand.

Sleepers wake in the order of their instants, each when :meth:`FakeClock.advance` passes it. Between two wake-ups the
loop runs until nothing is ready, so a chain of short sleeps inside one long advance unfolds as it would in time.
"""

import asyncio
import datetime
import heapq
import itertools

_SETTLE_TURNS = 20


class FakeClock:
    """Time that stands still until ``advance``."""

    def __init__(self, start: datetime.datetime | None = None) -> None:
        self._start = start or datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        self._elapsed_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed_s

    def now(self) -> datetime.datetime:
        """The start plus what was advanced."""
        return self._start + datetime.timedelta(seconds=self._elapsed_s)

    async def sleep(self, seconds: float) -> None:
        """Returns once ``advance`` has passed ``seconds`` from now; yields once for zero or less."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), wake))
        await wake

    def spend(self, seconds: float) -> None:
        """Advances the time without waking sleepers, like time that passes within a call."""
        self._elapsed_s += seconds

    async def advance(self, seconds: float) -> None:
        """Moves time on, waking every sleeper on the way in order."""
        end = self._elapsed_s + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, wake = heapq.heappop(self._sleepers)
            self._elapsed_s = max(self._elapsed_s, at)
            if not wake.done():
                wake.set_result(None)
            await _settle()
        self._elapsed_s = max(self._elapsed_s, end)


async def _settle() -> None:
    for _ in range(_SETTLE_TURNS):
        await asyncio.sleep(0)
