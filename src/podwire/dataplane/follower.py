"""The loop that keeps a data plane equal to the API.

1. A commit follows each change, after ``gather`` has waited for what comes with it. 2. A commit that the kernel refuses
is tried again after a backoff from 0.1 s to 10 s, and never ends the loop; the last good state stays in force. 3. A
change that somebody else makes in the kernel wakes the loop too: :attr:`Follower.disturbed` is set, and the commit
restores the state. 4. When the loop ends, everything stays in force.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from podwire.dataplane.plane import DataPlane
from podwire.errors import KernelError
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import Clock

T = TypeVar("T")


class Source(Protocol[T]):
    """A collection that is kept current; the informer of ``kube`` is one."""

    objects: dict[str, T]
    synced: asyncio.Event

    def subscribe(self, callback: Callable[[str, T | None, T | None], None], *, replay: bool = True) -> None:
        """Calls back with key, old and new object on each change."""
        ...


class Follower:
    """What has changed, whether the kernel holds it, and the loop that makes the kernel hold it."""

    def __init__(self, plane: DataPlane, clock: Clock, subject: str, refused: Callable[[KernelError], None]) -> None:
        """``subject`` is what is programmed, as :attr:`problem` names it; ``refused`` hears of each refusal."""
        self._plane = plane
        self._clock = clock
        self._subject = subject
        self._refused = refused
        self.wake = asyncio.Event()
        """Set while there is something to commit."""
        self.disturbed = False
        """Whether another program may have changed what the data plane holds; the commit resets it."""
        self.programmed = asyncio.Event()
        """Set while the kernel holds everything known."""
        self.loaded = asyncio.Event()
        """Set once the kernel held everything known."""
        self.refusal = ""
        """Why the kernel does not take what is known; empty while it does."""

    @property
    def problem(self) -> str:
        """Why the node does not do what the API asks for; empty: it does, be a change on its way or not."""
        if not self.loaded.is_set():
            return f"{self._subject} yet"
        return f"{self._subject}: {self.refusal}" if self.refusal else ""

    def change(self) -> None:
        """Something changed that the kernel does not hold yet."""
        self.programmed.clear()
        self.wake.set()

    def look(self) -> None:
        """Asks the data plane whether somebody else changed what it holds."""
        if self._plane.disturbed():
            self.disturbed = True
            self.wake.set()

    def refuse(self, failure: KernelError) -> None:
        """The kernel refused a commit; the last good state is in force."""
        self.refusal = str(failure)
        self._refused(failure)

    async def run(self, commit: Callable[[], Awaitable[None]], gather: Callable[[], Awaitable[None]]) -> None:
        """Commits until cancelled; ``commit`` raises KernelError when the kernel refuses."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._plane.fileno(), self.look)
        backoff = Backoff(0.1, 10.0)
        try:
            while True:
                try:
                    await commit()
                    backoff.reset()
                except KernelError as failure:
                    self.refuse(failure)
                    await self._clock.sleep(backoff.next_delay_s())
                    continue
                await self.wake.wait()
                await gather()
        finally:
            loop.remove_reader(self._plane.fileno())
