"""A policy data plane that becomes another one while it enforces.

A change of mode takes effect with the next :meth:`Switch.load`: the new data plane is opened and programmed whole, and
only then is the old one taken away, so that a packet finds rules at any moment; while both are there it passes when
both let it. What cannot be had (the kernel or the machine lacks something) leaves the old one in force, or at the start
the next one of the registry that works; ``problem`` says so. Where none can be had, pods that policies select are
refused (:mod:`podwire.policy.unenforced`).

What an earlier run left of other modes is taken away after the first load.
"""

import select
from collections.abc import Mapping, Sequence

from podwire.dataplane.registry import Modes
from podwire.errors import KernelError, Unsupported
from podwire.policy.compile import Compiler, Delta
from podwire.policy.dataplane import Facts, Held, Locking, PolicyDataPlane
from podwire.policy.modes import AUTO
from podwire.policy.status.counts import Counted
from podwire.policy.unenforced import Unenforced
from podwire.policy.verdicts import Ruled


class Switch:
    """The data plane in force, and the one that is wanted."""

    def __init__(self, modes: Modes[Facts, PolicyDataPlane], wanted: str, facts: Facts) -> None:
        """Opens the wanted one, or else another.

        Raises: KernelError of the wanted one when none can be had, and another reason than that the machine lacks it.
        """
        self._modes = modes
        self._facts = facts
        self._cleared = False
        self._failures: dict[str, KernelError] = {}
        self.wanted = wanted
        """The mode to be in, or ``auto``; takes effect with the next load."""
        self._plane = self._first()
        self._poll = select.epoll()
        self._poll.register(self._plane.fileno(), select.EPOLLIN)

    def _first(self) -> PolicyDataPlane:
        names = self._modes.names()
        asked = names if self.wanted == AUTO else tuple(dict.fromkeys((self.wanted, *names)))
        for name in asked:
            try:
                return self._modes.open(name, self._facts)
            except KernelError as failure:
                self._failures[name] = failure
        first = self._failures[asked[0]]
        if not isinstance(first, Unsupported):
            raise first
        return Unenforced(first)

    @property
    def name(self) -> str:
        """The mode in force; ``none`` where none can be had."""
        return self._plane.name

    @property
    def problem(self) -> tuple[str, KernelError] | None:
        """The mode that could not be had, and why; None when what was asked for is in force."""
        if isinstance(self._plane, Unenforced):
            name = self.wanted if self.wanted in self._failures else next(iter(self._failures))
            return name, self._failures[name]
        failure = self._failures.get(self.wanted)
        return (self.wanted, failure) if failure is not None and self.wanted != self.name else None

    def close(self) -> None:
        """Lets go of the kernel; what is in force stays."""
        self._poll.close()
        self._plane.close()

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be asked, whatever data plane is in force."""
        return self._poll.fileno()

    def locked(self) -> bool:
        """Whether somebody holds a lock that a change takes."""
        return isinstance(self._plane, Locking) and self._plane.locked()

    def disturbed(self) -> bool:
        """Whether somebody else may have changed what the data plane in force holds."""
        return self._plane.disturbed()

    def load(self, compiler: Compiler, devices: Mapping[str, str], facts: Facts | None = None) -> Sequence[object]:
        """Makes the kernel hold exactly what the compiler says, in the wanted mode if that can be had.

        Raises: KernelError; what was in force stays.
        """
        self._facts = facts or self._facts
        done = self._change(compiler, devices) or self._plane.load(compiler, devices, self._facts)
        if not self._cleared:
            self._cleared = True
            self._clear()
        return done

    def _better(self) -> Sequence[str]:
        """The modes to be in rather than in the one in force, the best first."""
        if self.wanted != AUTO:
            return () if self.wanted == self.name else (self.wanted,)
        names = self._modes.names()
        return names[: names.index(self.name)] if self.name in names else names

    def _change(self, compiler: Compiler, devices: Mapping[str, str]) -> Sequence[object]:
        """Programs another mode and takes the one in force away; nothing where none is better or can be had."""
        for name in self._better():
            if isinstance(self._failures.get(name), Unsupported):
                continue
            try:
                return self._go_to(name, compiler, devices)
            except KernelError as failure:
                self._failures[name] = failure
        return ()

    def _go_to(self, name: str, compiler: Compiler, devices: Mapping[str, str]) -> Sequence[object]:
        coming = self._modes.open(name, self._facts)
        try:
            done = coming.load(compiler, devices, self._facts)
        except KernelError:
            coming.close()
            self._cleared = False
            raise
        going, self._plane = self._plane, coming
        self._poll.unregister(going.fileno())
        self._poll.register(coming.fileno(), select.EPOLLIN)
        self._failures.pop(name, None)
        self._cleared = False
        try:
            going.remove()
        finally:
            going.close()
        return done

    def _clear(self) -> None:
        """Takes away what is left of other modes; what cannot be is tried again with the next load."""
        for name in self._modes.names():
            if name != self._plane.name:
                try:
                    self._modes.clear(name)
                except Unsupported:
                    continue
                except KernelError:
                    self._cleared = False

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: Delta, facts: Facts | None = None
    ) -> Sequence[object]:
        """Takes over a change of the compiler, and facts where they are others.

        Raises: KernelError.
        """
        self._facts = facts or self._facts
        return self._plane.update(compiler, devices, delta, facts)

    def heal(self) -> Sequence[object]:
        """Puts right what somebody else changed.

        Raises: KernelError.
        """
        return self._plane.heal()

    def ruled(self, prefix: str) -> Ruled | None:
        """What a packet met that was logged with a prefix."""
        return self._plane.ruled(prefix)

    def counts(self) -> tuple[Counted, ...]:
        """What rules have counted.

        Raises: KernelError.
        """
        return self._plane.counts()

    def desired(self) -> tuple[Held, ...]:
        """What the kernel should hold."""
        return self._plane.desired()

    def remove(self) -> None:
        """Takes all of it out of the kernel.

        Raises: KernelError.
        """
        self._plane.remove()
