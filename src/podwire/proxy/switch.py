"""Replaces the data plane of Services by another mode while connections continue.

All modes use the same connection tracking, so established connections survive a change of mode. See
:mod:`podwire.dataplane.switch` for how a mode is replaced.
"""

from collections.abc import Callable

from podwire.dataplane import switch
from podwire.dataplane.modes import Modes
from podwire.dataplane.plane import Repairing, Restoring, Written
from podwire.proxy.dataplane import Counting, Counts, ServiceDataPlane
from podwire.proxy.servicemap import NodeFacts, ServiceMap


class Switch(switch.Switch[NodeFacts, ServiceDataPlane]):
    """The data plane in force, and the configured mode."""

    def __init__(
        self,
        modes: Modes[NodeFacts, ServiceDataPlane],
        mode: str,
        facts: NodeFacts,
        loaded: Callable[[], None] = lambda: None,
        fallback: str = "",
    ) -> None:
        """Opens the wanted mode, or else ``fallback``, or else another mode; ``loaded`` is called after each load.

        Raises: KernelError of the wanted mode when no mode can be opened.
        """
        names = modes.names()
        self._loaded = loaded
        super().__init__(
            modes, mode, facts, tuple(dict.fromkeys((mode, *(name for name in names if name == fallback), *names)))
        )

    @property
    def instant(self) -> bool:
        """Whether an update takes only few milliseconds; otherwise it runs in a thread."""
        return self._plane.instant

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> Written:
        """Makes the kernel hold exactly these Services, in the wanted mode if it can be opened.

        Raises: KernelError.
        """
        own = facts or self._facts
        if self.configured_mode == self.name or own.ipvs != self._facts.ipvs:
            self._failures.clear()
        self._facts = own
        written = self._load(lambda plane: plane.load(services, own))
        self._loaded()
        return written

    def update(self, services: ServiceMap, changed: ServiceMap) -> Written:
        """Applies changed Services; an empty tuple removes one. ``services`` has all Services, the changed ones too.

        Raises: KernelError.
        """
        return self._plane.update(services, changed)

    def restore(self) -> Written:
        """Writes at once what notifications named, where that takes little time; :meth:`heal` does the rest."""
        return self._plane.restore() if isinstance(self._plane, Restoring) else ()

    def repair(self) -> Written:
        """Writes what notifications named before everything is read, for data planes that need longer for that."""
        return self._plane.repair() if isinstance(self._plane, Repairing) else ()

    def heal(self, services: ServiceMap) -> Written:
        """Restores what another program changed; returns what had to be written. ``services`` has all Services.

        Raises: KernelError.
        """
        return self._plane.heal(services)

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend that another Service owns."""
        return self._plane.conflicts()

    def counts(self) -> Counts:
        """The counters of the data plane in force.

        Raises: KernelError.
        """
        plane = self._plane
        return plane.counts() if isinstance(plane, Counting) else Counts()
