"""An event loop in a separate thread, for tests that are plain functions.

A call blocks until its result is there, and can be interrupted like other code. Tests with their own event loop may
call too. The thread may enter other network namespaces; the test stays in its own.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """An event loop that runs coroutines until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="podwire", daemon=True)
        self._thread.start()

    def run(self, body: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result; its exceptions are raised here."""
        running = asyncio.run_coroutine_threadsafe(body, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def close(self) -> None:
        """Cancels what still runs, and ends the thread."""
        if not self._loop.is_closed():
            self.run(_cancel_all())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
