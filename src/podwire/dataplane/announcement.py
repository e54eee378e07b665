"""Tells when the data plane in use may have changed: after each load of everything, one call at a time."""

import asyncio
from collections.abc import Awaitable, Callable


class LoadAnnouncer:
    """Calls ``announce`` after loads; several loads during one call are followed by one more call.

    ``announce`` gets whether this is the first load of this process.
    """

    def __init__(self, announce: Callable[[bool], Awaitable[None]]) -> None:
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._loaded = asyncio.Event()

    def loaded(self) -> None:
        """Records a load; may be called from another thread."""
        self._loop.call_soon_threadsafe(self._loaded.set)

    async def run(self) -> None:
        """Announces loads until cancelled."""
        first = True
        while True:
            await self._loaded.wait()
            self._loaded.clear()
            await self._announce(first)
            first = False
