"""An event loop in a thread of its own, for tests that are plain functions.

Whoever calls waits, and is interrupted like any other code. Tests that have an event loop themselves may call too, and
the thread may go into other network namespaces without the test being in them.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """A loop that runs what it is given until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="podwire", daemon=True)
        self._thread.start()

    def run(self, body: Coroutine[Any, Any, T]) -> T:
        """What the body returns; what it raises is raised here."""
        running = asyncio.run_coroutine_threadsafe(body, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def close(self) -> None:
        """Ends the thread, and with it what still ran."""
        if not self._loop.is_closed():
            self.run(_cancel_all())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
