"""The stand-in data plane of a node that cannot enforce policies: pods that a policy selects are refused.

A pod that a policy selects gets no device: it is cut off rather than open. Pods that no policy selects run. Pods that
ran before the policy was created keep running, and the error names them.
"""

import os
from collections.abc import Mapping

from podwire.dataplane.plane import Written
from podwire.errors import Unsupported
from podwire.policy.compile import Compiler, Delta
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.status.counts import Counted
from podwire.policy.verdicts import RuleHit
from podwire.state.value import StateValue


class Unenforced:
    """A data plane that refuses every pod which a policy selects."""

    name = "none"

    def __init__(self, missing: Unsupported) -> None:
        self._missing = missing
        self._read, self._write = os.pipe()

    def load(self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None) -> Written:
        """Nothing, where no policy selects a pod of this node.

        Raises: Unsupported.
        """
        selected = [pod for pod, found in compiler.pods.items() if pod in devices and (found.ingress or found.egress)]
        if selected:
            some = ", ".join(sorted(selected)[:3]) + (", ..." if len(selected) > 3 else "")
            detail = f"cannot enforce the policies that select {some}: {self._missing.detail or self._missing}"
            raise Unsupported(self._missing.feature, self._missing.minimum, detail)
        return ()

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], _delta: Delta, facts: PolicyFacts | None = None
    ) -> Written:
        """The same as :meth:`load`.

        Raises: Unsupported.
        """
        return self.load(compiler, devices, facts)

    def heal(self) -> Written:
        """There is nothing to heal."""
        return ()

    def fileno(self) -> int:
        """Never readable."""
        return self._read

    def disturbed(self) -> bool:
        """Never."""
        return False

    def hit(self, _prefix: str) -> RuleHit | None:
        """Nothing is logged."""
        return None

    def counts(self) -> tuple[Counted, ...]:
        """Nothing is counted."""
        return ()

    def desired(self) -> tuple[StateValue, ...]:
        """Nothing."""
        return ()

    def remove(self) -> None:
        """There is nothing."""

    def close(self) -> None:
        """Lets go of the descriptor."""
        os.close(self._read)
        os.close(self._write)
