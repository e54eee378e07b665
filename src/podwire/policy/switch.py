"""The data plane of policies that is in force, and the change to another mode while policies are enforced.

While both are there a packet passes when both let it (see :mod:`podwire.dataplane.switch`). Where none can be had, pods
that policies select are refused (:mod:`podwire.policy.unenforced`).
"""

from collections.abc import Mapping, Sequence

from podwire.dataplane import switch
from podwire.dataplane.modes import Modes
from podwire.dataplane.plane import Written
from podwire.errors import KernelError, Unsupported
from podwire.policy.compile import Compiler, Delta
from podwire.policy.dataplane import Locking, PolicyDataPlane, PolicyFacts
from podwire.policy.registry import AUTO
from podwire.policy.status.counts import Counted
from podwire.policy.unenforced import Unenforced
from podwire.policy.verdicts import RuleHit


class Switch(switch.Switch[PolicyFacts, PolicyDataPlane]):
    """The data plane in force, and the one that is wanted, which may be ``auto``."""

    def __init__(self, modes: Modes[PolicyFacts, PolicyDataPlane], wanted: str, facts: PolicyFacts) -> None:
        """Opens the wanted one, or else another.

        Raises: KernelError of the wanted one when none can be had, and another reason than that the machine lacks it.
        """
        names = modes.names()
        super().__init__(modes, wanted, facts, names if wanted == AUTO else tuple(dict.fromkeys((wanted, *names))))

    def _substitute(self, failure: KernelError) -> PolicyDataPlane:
        if not isinstance(failure, Unsupported):
            raise failure
        return Unenforced(failure)

    @property
    def problem(self) -> tuple[str, KernelError] | None:
        """The wanted mode that is not available, and why; None when the wanted mode is in force."""
        if isinstance(self._plane, Unenforced):
            name = self.wanted if self.wanted in self._failures else next(iter(self._failures))
            return name, self._failures[name]
        return super().problem

    def locked(self) -> bool:
        """Whether somebody holds a lock that a change takes."""
        return isinstance(self._plane, Locking) and self._plane.locked()

    def _preferred(self) -> Sequence[str]:
        if self.wanted != AUTO:
            return super()._preferred()
        names = self._modes.names()
        return names[: names.index(self.name)] if self.name in names else names

    def load(self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None) -> Written:
        """Makes the kernel hold exactly what the compiler says, in the wanted mode if that can be had.

        Raises: KernelError; what was in force stays.
        """
        own = self._facts = facts or self._facts
        return self._load(lambda plane: plane.load(compiler, devices, own))

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: Delta, facts: PolicyFacts | None = None
    ) -> Written:
        """Takes over a change of the compiler, and facts where they are others.

        Raises: KernelError.
        """
        self._facts = facts or self._facts
        return self._plane.update(compiler, devices, delta, facts)

    def heal(self) -> Written:
        """Restores what another program changed; returns what had to be written.

        Raises: KernelError.
        """
        return self._plane.heal()

    def hit(self, prefix: str) -> RuleHit | None:
        """What a packet met that was logged with a prefix."""
        return self._plane.hit(prefix)

    def counts(self) -> tuple[Counted, ...]:
        """What rules have counted.

        Raises: KernelError.
        """
        return self._plane.counts()
