"""Wakes a pod's worker for its next step: at a change, or at a time."""

import asyncio

from podwire.runtime.clock import Clock


class Wakeup:
    """Wakes one worker. The worker repeats: :meth:`begin`, a step that may call :meth:`wake_in`, :meth:`wait`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken = asyncio.Event()
        self._at: float | None = None

    def begin(self) -> None:
        """Begins a step and forgets all earlier wake-ups, since the step sees their changes."""
        self._woken.clear()
        self._at = None

    def wake(self) -> None:
        """Lets the worker make a step now, or another step after the current step."""
        self._woken.set()

    def wake_in(self, seconds: float) -> None:
        """Lets the worker make a step after ``seconds`` at the latest."""
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
