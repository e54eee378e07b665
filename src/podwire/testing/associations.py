"""SCTP for kernels without it: the first two packets of an association, between the namespaces of pods.

No server needs to listen: this module also writes the answer, in the namespace where the packet arrives. Policies and
connection tracking see the same packets as for a real association.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from podwire.errors import ConfigError
from podwire.local.conformance.attempts import Trial, Trials
from podwire.local.conformance.verdicts import ANSWERED
from podwire.local.probe.plan import Attempt
from podwire.local.probe.result import ProbeResult
from podwire.testing.targets import SCTP

NamespaceOf = Callable[[str], Path | None]
"""The network namespace of the pod that has an address; None when no pod with a known namespace has it."""


def tried(
    trials: Trials, attempts: Sequence[Attempt], namespace_of: NamespaceOf, address_of: Callable[[Attempt], str]
) -> list[ProbeResult]:
    """Tries the attempts and returns their results; ``address_of`` gives the source address. Blocks.

    Raises: ConfigError when an end is not a pod's own address (Services, and connections that nodes masquerade);
    KernelError.
    """
    outcomes = trials.run([_trial(attempt, address_of(attempt), namespace_of) for attempt in attempts])
    return [
        ProbeResult(attempt, reached=outcome == ANSWERED, error="" if outcome == ANSWERED else outcome)
        for attempt, outcome in zip(attempts, outcomes, strict=True)
    ]


def _trial(attempt: Attempt, source: str, namespace_of: NamespaceOf) -> Trial:
    namespaces = [None if attempt.named else namespace_of(attempt.address), namespace_of(source)]
    if namespaces[0] is None or namespaces[1] is None:
        end = attempt.target if namespaces[0] is None else attempt.source.name
        raise ConfigError("reaches", "", f"{end}: SCTP connections can be tried between pods only")
    return Trial(
        source=namespaces[1],
        source_address=source,
        target=namespaces[0],
        address=attempt.address,
        protocol=SCTP,
        port=attempt.port.number,
        allowed=attempt.expected or not attempt.because,
    )
