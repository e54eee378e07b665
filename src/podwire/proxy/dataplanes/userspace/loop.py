"""The relay's event loop: epoll, level-triggered, and timers; no queue, no thread, no coroutine.

A handler is called with the events of its descriptor. Descriptors are closed after all events of one poll are handled,
so that the kernel does not reuse a descriptor number among these events.
"""

import heapq
import itertools
import os
import select
import time
from collections.abc import Callable

Handler = Callable[[int], None]
READ, WRITE = select.EPOLLIN, select.EPOLLOUT
BROKEN = select.EPOLLERR
_EVENTS = 256


class Loop:
    """Watched descriptors and timers, with their handlers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._poll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._masks: dict[int, int] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._closing: list[int] = []
        self.running = True
        self.now = clock()
        """The time of the last poll."""

    def fileno(self) -> int:
        """The descriptor of epoll itself."""
        return self._poll.fileno()

    def watch(self, fd: int, mask: int, handler: Handler) -> None:
        """Calls the handler when the descriptor has an event of ``mask`` or an error; a mask of 0 stops watching.

        A later call for the same descriptor replaces the mask and the handler.
        """
        before = self._masks.get(fd, 0)
        if not mask:
            self.ignore(fd)
            return
        self._handlers[fd] = handler
        if before == mask:
            return
        self._masks[fd] = mask
        if before:
            self._poll.modify(fd, mask)
        else:
            self._poll.register(fd, mask)

    def ignore(self, fd: int) -> None:
        """Stops watching a descriptor; does nothing when the descriptor is not watched."""
        if self._masks.pop(fd, 0):
            del self._handlers[fd]
            self._poll.unregister(fd)

    def close(self, fd: int) -> None:
        """Closes a descriptor after the events of this poll are handled."""
        self.ignore(fd)
        self._closing.append(fd)

    def close_all(self) -> None:
        """Closes epoll; the owners of the watched descriptors close them."""
        self._poll.close()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Calls ``action`` once, ``delay_s`` seconds after the last poll."""
        heapq.heappush(self._timers, (self.now + delay_s, next(self._order), action))

    def run(self) -> None:
        """Handles events until ``running`` is false."""
        while self.running:
            self.turn()

    def turn(self) -> None:
        """Waits for events or the next timer, and handles them."""
        wait = max(0.0, self._timers[0][0] - self._clock()) if self._timers else None
        events = self._poll.poll(wait, _EVENTS)
        self.now = self._clock()
        for fd, mask in events:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(mask)
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()
        closing, self._closing = self._closing, []
        for fd in closing:
            os.close(fd)
