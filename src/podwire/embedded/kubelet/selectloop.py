"""The event loop of a shim: one action for each descriptor that becomes readable."""

import selectors
from collections.abc import Callable
from typing import Protocol


class Readable(Protocol):
    """An object with a descriptor, such as a socket."""

    def fileno(self) -> int:
        """The descriptor."""
        ...


class SelectLoop:
    """Calls actions in one thread, until :meth:`stop` is called."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._running = True

    def watch(self, file: Readable | int, action: Callable[[], None]) -> None:
        """Calls ``action`` whenever ``file`` is readable or at its end."""
        self._selector.register(file, selectors.EVENT_READ, action)

    def unwatch(self, file: Readable | int) -> None:
        """Ends :meth:`watch`; to be called before the file is closed."""
        self._selector.unregister(file)

    def run(self) -> None:
        """Returns after :meth:`stop`, when the actions of the same round have run."""
        watched = self._selector.get_map()
        while self._running:
            for key, _ in self._selector.select():
                # An earlier action of this round may have closed the descriptor, and a new file may have its number.
                if watched.get(key.fd) is key:
                    key.data()

    def stop(self) -> None:
        """Makes :meth:`run` return."""
        self._running = False
