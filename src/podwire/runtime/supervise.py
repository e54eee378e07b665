"""Supervision of long-running tasks inside one process.

A :class:`Supervisor` runs named coroutines in one task group. A coroutine that fails is logged with its
traceback and started again after a backoff; one that returns is done. Cancelling the supervisor cancels all.
This is the only place with a broad ``except``; :func:`failure_of` offers it for single calls.

Guarantees: 1. a failing task never ends its siblings; 2. between two starts of a task lies its backoff, from
0.05 s doubling to 30 s; 3. a task that ran for a minute starts again with the shortest delay.
"""

import asyncio
from collections.abc import Awaitable, Callable

from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import Clock

Report = Callable[[str, BaseException], None]
"""Called for each failure with the name of the task and the exception."""

_STEADY_S = 60.0


def failure_of(action: Callable[..., object], *arguments: object) -> Exception | None:
    """Calls ``action``; returns the exception that it raised, which must not end the caller's task, or None."""
    try:
        action(*arguments)
    except Exception as failure:
        return failure
    return None


class Supervisor:
    """Runs named tasks and starts them again when they fail."""

    def __init__(self, clock: Clock, report: Report) -> None:
        self._clock = clock
        self._report = report
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> "Supervisor":
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._group.__aexit__(*failure)  # type: ignore[arg-type]

    def start(self, name: str, body: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Starts ``body()`` under ``name``; the task ends when the body returns."""
        return self._group.create_task(self._keep_running(name, body), name=name)

    async def contain(self, name: str, action: Awaitable[None]) -> bool:
        """Awaits ``action`` and reports its failure under ``name``; returns whether it succeeded."""
        try:
            await action
        except Exception as failure:
            self._report(name, failure)
            return False
        return True

    async def _keep_running(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff()
        while True:
            started = self._clock.monotonic()
            try:
                await body()
            except Exception as failure:
                self._report(name, failure)
            else:
                return
            if self._clock.monotonic() - started > _STEADY_S:
                backoff.reset()
            await self._clock.sleep(backoff.next_delay_s())
