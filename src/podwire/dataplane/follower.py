"""The loop that keeps a data plane equal to the API.

1. A commit follows each change, after ``gather`` has waited for further changes. 2. When the kernel refuses a commit,
the loop retries the commit after a backoff from 0.1 s to 10 s and does not end; the last good state stays in force.
3. A change that another program makes in the kernel also wakes the loop: :attr:`Follower.disturbed` is set, and the
commit restores the state. 4. When the loop ends, the kernel keeps its state.
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
    """The commit loop of a data plane, and whether the kernel holds the latest desired state."""

    def __init__(
        self,
        plane: DataPlane,
        clock: Clock,
        subject: str,
        refused: Callable[[KernelError], None],
        restore: Callable[[], None] = lambda: None,
    ) -> None:
        """``subject`` begins the text of :attr:`problem`; ``refused`` gets the error of each refused commit.

        ``restore`` is called as soon as another program may have changed something, before the commit that follows.
        """
        self._plane = plane
        self._clock = clock
        self._subject = subject
        self._refused = refused
        self._restore = restore
        self.wake = asyncio.Event()
        """Set while there is something to commit."""
        self.disturbed = asyncio.Event()
        """Set while another program may have changed what the data plane holds; the commit clears it."""
        self.programmed = asyncio.Event()
        """Set while the kernel holds the latest desired state."""
        self.loaded = asyncio.Event()
        """Set after the first successful commit."""
        self.refusal = ""
        """Why the kernel refused the last commit; empty when it succeeded."""

    @property
    def problem(self) -> str:
        """Why the node does not follow the API; empty when it does, even while a change is being committed."""
        if not self.loaded.is_set():
            return f"{self._subject} yet"
        return f"{self._subject}: {self.refusal}" if self.refusal else ""

    def change(self) -> None:
        """Records that the desired state changed, and wakes the loop."""
        self.programmed.clear()
        self.wake.set()

    def look(self) -> None:
        """Wakes the loop when another program changed what the data plane holds."""
        if self._plane.disturbed():
            self._restore()
            self.disturbed.set()
            self.wake.set()

    def refuse(self, failure: KernelError) -> None:
        """Records that the kernel refused a commit; the last good state is in force."""
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
