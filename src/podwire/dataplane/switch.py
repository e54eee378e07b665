"""A data plane that can be replaced by another one while traffic flows.

A change of mode takes effect with the next load: the new data plane is opened and loaded completely, and only then is
the old one removed, so that packets find rules at any moment. When a mode is not available (the kernel or the machine
lacks something), the data plane in force stays; at the start, the next mode of ``start`` is tried.
:attr:`Switch.problem` names the mode and the reason. A mode that is not supported is not tried again.

The state of other modes that an earlier run left is removed after the first load.
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
    """The data plane in force, and the configured one."""

    def __init__(self, modes: Modes[Facts, Plane], mode: str, facts: Facts, start: Sequence[str]) -> None:
        """Opens the first available mode of ``start``.

        Raises: KernelError of the first mode, when no mode is available and there is no substitute.
        """
        self._modes = modes
        self._facts = facts
        self._lock = threading.Lock()
        self._cleared = False
        self._failures: dict[str, KernelError] = {}
        self.configured_mode = mode
        """The configured mode; takes effect with the next load."""
        self._plane = self._first(start)
        self._poll = select.epoll()
        self._poll.register(self._plane.fileno(), select.EPOLLIN)

    def _first(self, names: Sequence[str]) -> Plane:
        for name in names:
            try:
                return self._modes.open(name, self._facts)
            except KernelError as failure:
                self._failures[name] = failure
        return self._substitute(self._failures[names[0]])

    def _substitute(self, failure: KernelError) -> Plane:
        """The substitute data plane when no mode is available; ``failure`` is the error of the first mode.

        Raises: KernelError when there is no substitute.
        """
        raise failure

    def _preferred(self) -> Sequence[str]:
        """The modes that are preferred to the mode in force, the best first."""
        return () if self.configured_mode == self.name else (self.configured_mode,)

    @property
    def name(self) -> str:
        """The mode in force."""
        return self._plane.name

    @property
    def problem(self) -> tuple[str, KernelError] | None:
        """The configured mode that is not available, and the reason; None when the configured mode is in force."""
        failure = self._failures.get(self.configured_mode)
        return (self.configured_mode, failure) if failure is not None and self.configured_mode != self.name else None

    def close(self) -> None:
        """Closes the sockets to the kernel; the kernel keeps its state."""
        self._poll.close()
        self._plane.close()

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be called, for any data plane in force."""
        return self._poll.fileno()

    def disturbed(self) -> bool:
        """Whether another program may have changed what the data plane in force holds."""
        with self._lock:
            return self._plane.disturbed()

    def desired(self) -> tuple[StateValue, ...]:
        """What the kernel should hold."""
        return self._plane.desired()

    def remove(self) -> None:
        """Removes everything that the data plane in force owns from the kernel.

        Raises: KernelError.
        """
        self._plane.remove()

    def _load(self, program: Callable[[Plane], Written]) -> Written:
        """Programs a preferred mode if one is available, otherwise the mode in force; returns what was written.

        Raises: KernelError of the data plane in force; the kernel keeps its last good state.
        """
        written = self._change(program)
        if written is None:
            written = program(self._plane)
        if not self._cleared:
            self._clear()
        return written

    def _change(self, program: Callable[[Plane], Written]) -> Written | None:
        """Switches to the best available preferred mode; returns what was written, or None when there was no switch."""
        for name in self._preferred():
            if isinstance(self._failures.get(name), Unsupported):
                continue
            try:
                return self._switch_to(name, program)
            except KernelError as failure:
                self._failures[name] = failure
        return None

    def _switch_to(self, name: str, program: Callable[[Plane], Written]) -> Written:
        """Programs another mode, and then removes the one in force.

        Raises: KernelError; the old mode stays in force, or the new mode is in force when only the removal failed.
        """
        new_plane = self._modes.open(name, self._facts)
        try:
            written = program(new_plane)
        except KernelError:
            new_plane.close()
            self._clear()
            raise
        with self._lock:
            old_plane, self._plane = self._plane, new_plane
            self._poll.unregister(old_plane.fileno())
            self._poll.register(new_plane.fileno(), select.EPOLLIN)
        self._failures.pop(name, None)
        self._cleared = False
        try:
            old_plane.remove()
        finally:
            old_plane.close()
        return written

    def _clear(self) -> None:
        """Removes what is left of other modes; a failed removal is tried again with the next load."""
        self._cleared = True
        for name in self._modes.names():
            if name != self._plane.name:
                try:
                    self._modes.clear(name)
                except Unsupported:
                    continue
                except KernelError:
                    self._cleared = False
