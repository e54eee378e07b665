"""Short-lived tasks of one owner: each ends by itself, all end with the owner.

:mod:`podwire.runtime.supervise` keeps named loops running; a :class:`TaskSet` holds the tasks that requests and
connections start. Guarantees: 1. a failing task never ends its siblings; it is reported once; 2. ``close`` cancels
running tasks and returns when all have ended; 3. a finished task is dropped at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Report = Callable[[str, BaseException], None]
"""Called for each failure with the name of the task and the exception."""


class TaskSet:
    """Tasks that belong to one owner."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, name: str, body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts ``body`` under ``name``."""
        task = asyncio.get_running_loop().create_task(body, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._report(task.get_name(), failure)

    async def close(self) -> None:
        """Cancels every task and waits for all of them."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._tasks)
