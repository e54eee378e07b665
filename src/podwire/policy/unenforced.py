"""The fallback data plane of a node that cannot enforce policies: pods that a policy selects are refused.

A pod that a policy selects gets no device: it has no network rather than an open network. Pods that no policy selects
run. Pods that ran before the policy was created keep running, and the error names them.
"""

import os
from collections.abc import Mapping

from podwire.dataplane.plane import Written
from podwire.errors import Unsupported
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.nodepods import PolicyDelta
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
        """Writes nothing.

        Raises: Unsupported when a policy selects a pod of this node.
        """
        selected = [
            pod for pod, profiles in compiler.pods.items() if pod in devices and (profiles.ingress or profiles.egress)
        ]
        if selected:
            names = ", ".join(sorted(selected)[:3]) + (", ..." if len(selected) > 3 else "")
            detail = f"cannot enforce the policies that select {names}: {self._missing.detail or self._missing}"
            raise Unsupported(self._missing.feature, self._missing.minimum, detail)
        return ()

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], _delta: PolicyDelta, facts: PolicyFacts | None = None
    ) -> Written:
        """Writes nothing.

        Raises: Unsupported when a policy selects a pod of this node.
        """
        return self.load(compiler, devices, facts)

    def heal(self) -> Written:
        """Restores nothing: there are no rules."""
        return ()

    def fileno(self) -> int:
        """A descriptor that is never readable."""
        return self._read

    def disturbed(self) -> bool:
        """Returns False: there are no rules that another program could change."""
        return False

    def hit(self, _prefix: str) -> RuleHit | None:
        """Returns None: nothing is logged."""
        return None

    def counts(self) -> tuple[Counted, ...]:
        """Returns no counts: nothing is counted."""
        return ()

    def desired(self) -> tuple[StateValue, ...]:
        """Returns no state: nothing is programmed."""
        return ()

    def remove(self) -> None:
        """Does nothing: there are no rules."""

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._read)
        os.close(self._write)
