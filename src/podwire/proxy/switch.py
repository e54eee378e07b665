"""A data plane that becomes another one while it serves.

A change of mode takes effect with the next :meth:`Switch.load`: the new data plane is opened and programmed whole, and
only then is the old one taken away, so that a new connection finds rules at any moment. Connection tracking belongs to
neither, so established connections go on. What cannot be had (the kernel or the machine lacks something) leaves the
old one in force, or at the start the next one of the registry that works; ``problem`` says so.

What an earlier run left of other modes is taken away after the first load.
"""

import select
import threading
from collections.abc import Callable, Sequence

from podwire.dataplane.registry import Modes
from podwire.errors import KernelError, Unsupported
from podwire.proxy.dataplane import Counting, Counts, DataPlane, Held
from podwire.proxy.servicemap import NodeFacts, ServiceMap


class Switch:
    """The data plane in force, and the one that is wanted."""

    def __init__(
        self,
        modes: Modes[NodeFacts, DataPlane],
        wanted: str,
        facts: NodeFacts,
        told: Callable[[], None] = lambda: None,
        fallback: str = "",
    ) -> None:
        """Opens the wanted one, or else ``fallback``, or else another.

        Raises: KernelError of the wanted one when none can be had.
        """
        self._modes = modes
        self._facts = facts
        self._told = told
        self._lock = threading.Lock()
        self._cleared = False
        self._failure: tuple[str, KernelError] | None = None
        self.wanted = wanted
        """The mode to be in; takes effect with the next load."""
        self._plane = self._first(fallback)
        self._poll = select.epoll()
        self._poll.register(self._plane.fileno(), select.EPOLLIN)

    def _first(self, fallback: str) -> DataPlane:
        names = self._modes.names()
        for name in dict.fromkeys((self.wanted, *((fallback,) if fallback in names else ()), *names)):
            try:
                return self._modes.open(name, self._facts)
            except KernelError as failure:
                self._failure = self._failure or (self.wanted, failure)
        assert self._failure is not None, "one at least was tried"
        raise self._failure[1]

    @property
    def name(self) -> str:
        """The mode in force."""
        return self._plane.name

    @property
    def instant(self) -> bool:
        """Whether an update takes no time worth a thread."""
        return self._plane.instant

    @property
    def problem(self) -> tuple[str, KernelError] | None:
        """The mode that could not be had, and why."""
        return self._failure

    def close(self) -> None:
        """Lets go of the kernel; traffic goes on."""
        self._poll.close()
        self._plane.close()

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be asked, whatever data plane is in force."""
        return self._poll.fileno()

    def disturbed(self) -> bool:
        """Whether somebody else may have changed what the data plane in force holds."""
        with self._lock:
            return self._plane.disturbed()

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> Sequence[object]:
        """Makes the kernel hold exactly these Services, in the wanted mode if that can be had; what had to be written.

        Raises: KernelError.
        """
        told_otherwise = facts is not None and facts.ipvs != self._facts.ipvs
        self._facts = facts or self._facts
        written: Sequence[object] | None = None
        if self.wanted == self._plane.name:
            self._failure = None
        elif told_otherwise or not self._hopeless():
            written = self._change(services)
        if written is None:
            written = self._plane.load(services, self._facts)
        if not self._cleared:
            self._cleared = True
            self._clear()
        self._told()
        return written

    def _hopeless(self) -> bool:
        """Whether the wanted mode is known to be missing here."""
        if self._failure is None:
            return False
        mode, failure = self._failure
        return mode == self.wanted and isinstance(failure, Unsupported)

    def _change(self, services: ServiceMap) -> Sequence[object] | None:
        """Programs the wanted mode and takes the old one away; None when that failed, and all is as it was."""
        try:
            coming = self._modes.open(self.wanted, self._facts)
        except KernelError as failure:
            self._failure = (self.wanted, failure)
            return None
        try:
            written = coming.load(services, self._facts)
        except KernelError as failure:
            self._failure = (self.wanted, failure)
            coming.close()
            self._clear()
            return None
        with self._lock:
            going, self._plane = self._plane, coming
            self._poll.unregister(going.fileno())
            self._poll.register(coming.fileno(), select.EPOLLIN)
        self._failure = None
        self._cleared = False
        try:
            going.remove()
        finally:
            going.close()
        return written

    def _clear(self) -> None:
        """Takes away what is left of other modes."""
        for name in self._modes.names():
            if name != self._plane.name:
                try:
                    self._modes.clear(name)
                except KernelError:
                    self._cleared = False

    def update(self, changed: ServiceMap) -> object:
        """Takes over changed Services; an empty tuple removes one.

        Raises: KernelError.
        """
        return self._plane.update(changed)

    def heal(self) -> Sequence[object]:
        """Puts right what somebody else changed.

        Raises: KernelError.
        """
        return self._plane.heal()

    def conflicts(self) -> tuple[str, ...]:
        """Services of which a frontend is held by another Service."""
        return self._plane.conflicts()

    def counts(self) -> Counts:
        """What the data plane in force counts.

        Raises: KernelError.
        """
        plane = self._plane
        return plane.counts() if isinstance(plane, Counting) else Counts()

    def desired(self) -> tuple[Held, ...]:
        """What the kernel should hold."""
        return self._plane.desired()
