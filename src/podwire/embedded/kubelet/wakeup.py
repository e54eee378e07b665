"""What makes a pod's worker take its next step: a change outside, or a time that has come."""

import asyncio

from podwire.runtime.clock import Clock


class Wakeup:
    """The waiting of one worker: :meth:`begin`, a step that may call :meth:`wake_in`, :meth:`wait`, and again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken = asyncio.Event()
        self._at: float | None = None

    def begin(self) -> None:
        """Begins a step, which answers all earlier wake-ups."""
        self._woken.clear()
        self._at = None

    def wake(self) -> None:
        """Makes the worker take a step now, or another one after the step under way."""
        self._woken.set()

    def wake_in(self, seconds: float) -> None:
        """Makes the worker take a step after ``seconds`` at the latest."""
        at = self._clock.monotonic() + seconds
        self._at = at if self._at is None else min(at, self._at)

    async def wait(self) -> None:
        """Returns when the next step is due."""
        if self._at is None:
            await self._woken.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, self._at - self._clock.monotonic())):
                await self._woken.wait()
        except TimeoutError:
            pass
