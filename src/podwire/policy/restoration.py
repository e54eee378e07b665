"""Restores rules of policies that another program changed."""

from podwire.dataplane.plane import Restoring
from podwire.observe.log import Log
from podwire.policy.dataplane import PolicyDataPlane
from podwire.runtime.clock import Clock


class RuleRestoration:
    """Restores the rules of one data plane."""

    def __init__(self, plane: PolicyDataPlane, clock: Clock, log: Log) -> None:
        self._plane = plane
        self._clock = clock
        self._log = log
        self._restored = False
        self._restore_rested_at = 0.0
        """When rules may be restored again, in the clock's monotonic seconds."""

    def heal(self) -> None:
        """Restores rules that another program changed.

        Raises: KernelError; rules may be missing until everything is loaded again.
        """
        healed = any(self._plane.heal())
        restored, self._restored = self._restored or healed, False
        if restored:
            self._log.warning("restored rules that another program changed", plane=self._plane.name)

    def put_back(self) -> None:
        """Writes at once what notifications named; repeated calls use at most half of the time."""
        began = self._clock.monotonic()
        if began < self._restore_rested_at or not isinstance(self._plane, Restoring):
            return
        self._restored = any(self._plane.restore()) or self._restored
        ended = self._clock.monotonic()
        self._restore_rested_at = ended + (ended - began)
