"""Runs one component as the whole of a process, until it returns or SIGTERM or SIGINT asks it to end."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from podwire.runtime.limits import raise_open_files

Body = Callable[[], Coroutine[Any, Any, None]]


def run_until_signal(body: Body) -> None:
    """Runs ``body()`` in a new event loop; a signal cancels it, and it may clean up before it ends.

    The limit of open files is raised first.
    """
    raise_open_files()
    asyncio.run(_guarded(body))


async def _guarded(body: Body) -> None:
    main = asyncio.current_task()
    assert main is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main.cancel)
    try:
        await body()
    except asyncio.CancelledError:
        return
