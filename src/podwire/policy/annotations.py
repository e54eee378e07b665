"""What a policy's annotations ask for (pure): ``podwire.io/mode`` and ``podwire.io/log``.

A value that is not known counts as none: the policy is enforced, and logged as the node's settings say. Nothing else
among the annotations concerns policies, so that what podwire writes there itself changes nothing.
"""

from collections.abc import Mapping

from podwire.cluster.names import POLICY_LOG, POLICY_MODE

AUDIT, ENFORCE = "audit", "enforce"
ALL, DROPS, NONE = "all", "drops", "none"

VALUES: Mapping[str, tuple[str, ...]] = {POLICY_MODE: (AUDIT, ENFORCE), POLICY_LOG: (ALL, DROPS, NONE)}
"""The values that each may have."""


def in_audit(annotations: Mapping[str, str]) -> bool:
    """Whether what the policy would drop is only counted and logged."""
    return annotations.get(POLICY_MODE) == AUDIT


def log_of(annotations: Mapping[str, str]) -> str:
    """``all``, ``drops`` or ``none``; empty: as the node's settings say."""
    value = annotations.get(POLICY_LOG, "")
    return value if value in VALUES[POLICY_LOG] else ""


def problems(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """What is not known, a sentence each."""
    return tuple(
        f"{name}: {annotations[name]!r} is not known, there are {', '.join(values)}; {_INSTEAD[name]}"
        for name, values in VALUES.items()
        if name in annotations and annotations[name] not in values
    )


_INSTEAD = {POLICY_MODE: "the policy is enforced", POLICY_LOG: "the settings of the nodes hold"}
