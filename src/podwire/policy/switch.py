"""The data plane of policies in force, and the switch to another mode while policies are enforced.

During a switch both data planes are in force, and a packet passes only if both accept it
(see :mod:`podwire.dataplane.switch`). If no data plane is available, pods that policies select are refused
(:mod:`podwire.policy.unenforced`).
"""

from collections.abc import Mapping, Sequence

from podwire.dataplane import switch
from podwire.dataplane.modes import Modes
from podwire.dataplane.plane import Restoring, Written
from podwire.errors import KernelError, Unsupported
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import Locking, PolicyDataPlane, PolicyFacts
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.registry import AUTO
from podwire.policy.status.counts import Counted
from podwire.policy.unenforced import Unenforced
from podwire.policy.verdicts import RuleHit


class Switch(switch.Switch[PolicyFacts, PolicyDataPlane]):
    """The data plane in force, and the configured mode ``wanted``, which may be ``auto``."""

    def __init__(self, modes: Modes[PolicyFacts, PolicyDataPlane], mode: str, facts: PolicyFacts) -> None:
        """Opens the configured data plane, or a fallback.

        Raises: KernelError of the configured mode when no mode can be opened for a reason other than a missing feature.
        """
        names = modes.names()
        super().__init__(modes, mode, facts, names if mode == AUTO else tuple(dict.fromkeys((mode, *names))))

    def _substitute(self, failure: KernelError) -> PolicyDataPlane:
        if not isinstance(failure, Unsupported):
            raise failure
        return Unenforced(failure)

    @property
    def problem(self) -> tuple[str, KernelError] | None:
        """The wanted mode that is not available, and why; None when the wanted mode is in force."""
        if isinstance(self._plane, Unenforced):
            name = self.configured_mode if self.configured_mode in self._failures else next(iter(self._failures))
            return name, self._failures[name]
        return super().problem

    def locked(self) -> bool:
        """Whether another process holds the lock that a change takes."""
        return isinstance(self._plane, Locking) and self._plane.locked()

    def _preferred(self) -> Sequence[str]:
        if self.configured_mode != AUTO:
            return super()._preferred()
        names = self._modes.names()
        return names[: names.index(self.name)] if self.name in names else names

    def load(self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None) -> Written:
        """Makes the kernel hold exactly the compiler's policies, in the configured mode if it is available.

        Raises: KernelError; the rules that were in force stay.
        """
        own = self._facts = facts or self._facts
        return self._load(lambda plane: plane.load(compiler, devices, own))

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: PolicyDelta, facts: PolicyFacts | None = None
    ) -> Written:
        """Writes a change of the compiler; ``facts`` is None when the facts of the node did not change.

        Raises: KernelError.
        """
        self._facts = facts or self._facts
        return self._plane.update(compiler, devices, delta, facts)

    def restore(self) -> Written:
        """Writes at once what notifications named; :meth:`heal` does the rest."""
        return self._plane.restore() if isinstance(self._plane, Restoring) else ()

    def heal(self) -> Written:
        """Restores what another program changed; returns what had to be written.

        Raises: KernelError.
        """
        return self._plane.heal()

    def hit(self, prefix: str) -> RuleHit | None:
        """The rule that logs packets with a prefix; None: the rule is unknown or was deleted long ago."""
        return self._plane.hit(prefix)

    def counts(self) -> tuple[Counted, ...]:
        """The counts of all rules.

        Raises: KernelError.
        """
        return self._plane.counts()
