"""A data plane that is replaced by another one while it serves.

A change of mode takes effect with the next load: the new data plane is opened and programmed whole, and only then is
the old one removed, so that a packet finds rules at any moment. A mode that cannot be had (the kernel or the machine
lacks something) leaves the data plane in force as it is, or at the start gives way to the next one of the registry;
:attr:`Switch.problem` names the mode and the reason. A mode that is not supported is not tried again.

What an earlier run left of other modes is removed after the first load.
"""

import select
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from podwire.dataplane.modes import Modes
from podwire.dataplane.plane import DataPlane, Written
from podwire.errors import KernelError, Unsupported
from podwire.state.value import StateValue

Facts = TypeVar("Facts")
Plane = TypeVar("Plane", bound=DataPlane)


class Switch(Generic[Facts, Plane]):
    """The data plane in force, and the one that is wanted."""

    def __init__(self, modes: Modes[Facts, Plane], wanted: str, facts: Facts, start: Sequence[str]) -> None:
        """Opens the first of ``start`` that can be had.

        Raises: KernelError of the first when none can be had and nothing stands in for it.
        """
        self._modes = modes
        self._facts = facts
        self._lock = threading.Lock()
        self._cleared = False
        self._failures: dict[str, KernelError] = {}
        self.wanted = wanted
        """The mode to be in; takes effect with the next load."""
        self._plane = self._first(start)
        self._poll = select.epoll()
        self._poll.register(self._plane.fileno(), select.EPOLLIN)

    def _first(self, names: Sequence[str]) -> Plane:
        for name in names:
            try:
                return self._modes.open(name, self._facts)
            except KernelError as failure:
                self._failures[name] = failure
        return self._stand_in(self._failures[names[0]])

    def _stand_in(self, failure: KernelError) -> Plane:
        """What is in force where no mode can be had; ``failure`` is that of the first.

        Raises: KernelError where there is nothing.
        """
        raise failure

    def _better(self) -> Sequence[str]:
        """The modes to be in rather than in the one in force, the best first."""
        return () if self.wanted == self.name else (self.wanted,)

    @property
    def name(self) -> str:
        """The mode in force."""
        return self._plane.name

    @property
    def problem(self) -> tuple[str, KernelError] | None:
        """The wanted mode that is not available, and why; None when the wanted mode is in force."""
        failure = self._failures.get(self.wanted)
        return (self.wanted, failure) if failure is not None and self.wanted != self.name else None

    def close(self) -> None:
        """Closes what is open to the kernel; what is in force stays."""
        self._poll.close()
        self._plane.close()

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be asked, whatever data plane is in force."""
        return self._poll.fileno()

    def disturbed(self) -> bool:
        """Whether another program may have changed what the data plane in force holds."""
        with self._lock:
            return self._plane.disturbed()

    def heal(self) -> Written:
        """Restores what another program changed; returns what had to be written.

        Raises: KernelError.
        """
        return self._plane.heal()

    def desired(self) -> tuple[StateValue, ...]:
        """What the kernel should hold."""
        return self._plane.desired()

    def remove(self) -> None:
        """Takes all of it out of the kernel.

        Raises: KernelError.
        """
        self._plane.remove()

    def _load(self, program: Callable[[Plane], Written]) -> Written:
        """Programs a better mode where one can be had, or else the one in force; returns what was written.

        Raises: KernelError of the data plane in force; what was in force stays.
        """
        written = self._change(program)
        if written is None:
            written = program(self._plane)
        if not self._cleared:
            self._clear()
        return written

    def _change(self, program: Callable[[Plane], Written]) -> Written | None:
        """Goes to the best mode that can be had; None where none is better than the one in force."""
        for name in self._better():
            if isinstance(self._failures.get(name), Unsupported):
                continue
            try:
                return self._go_to(name, program)
            except KernelError as failure:
                self._failures[name] = failure
        return None

    def _go_to(self, name: str, program: Callable[[Plane], Written]) -> Written:
        """Programs another mode, and then removes the one in force.

        Raises: KernelError; what was in force stays, or is the other mode where only the removal failed.
        """
        coming = self._modes.open(name, self._facts)
        try:
            written = program(coming)
        except KernelError:
            coming.close()
            self._clear()
            raise
        with self._lock:
            going, self._plane = self._plane, coming
            self._poll.unregister(going.fileno())
            self._poll.register(coming.fileno(), select.EPOLLIN)
        self._failures.pop(name, None)
        self._cleared = False
        try:
            going.remove()
        finally:
            going.close()
        return written

    def _clear(self) -> None:
        """Removes what is left of other modes; what cannot be removed is tried again with the next load."""
        self._cleared = True
        for name in self._modes.names():
            if name != self._plane.name:
                try:
                    self._modes.clear(name)
                except Unsupported:
                    continue
                except KernelError:
                    self._cleared = False
