"""The annotations that configure a policy (pure): ``podwire.io/mode`` and ``podwire.io/log``.

An unknown value is ignored: the policy is enforced, and the node's settings decide what is logged. No other annotation
changes a policy, so annotations that podwire writes itself have no effect.
"""

from collections.abc import Mapping

from podwire.cluster.names import POLICY_LOG, POLICY_MODE

AUDIT, ENFORCE = "audit", "enforce"
ALL, DROPS, NONE = "all", "drops", "none"

VALUES: Mapping[str, tuple[str, ...]] = {POLICY_MODE: (AUDIT, ENFORCE), POLICY_LOG: (ALL, DROPS, NONE)}
"""The valid values of each annotation."""


def in_audit(annotations: Mapping[str, str]) -> bool:
    """Whether the policy is in audit: packets that it would drop are counted and logged, but pass."""
    return annotations.get(POLICY_MODE) == AUDIT


def log_of(annotations: Mapping[str, str]) -> str:
    """``all``, ``drops`` or ``none``; empty: the node's settings decide."""
    value = annotations.get(POLICY_LOG, "")
    return value if value in VALUES[POLICY_LOG] else ""


def problems(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each unknown value."""
    return tuple(
        f"{name}: unknown value {annotations[name]!r}, expected one of {', '.join(values)}; {_EFFECT[name]}"
        for name, values in VALUES.items()
        if name in annotations and annotations[name] not in values
    )


_EFFECT = {POLICY_MODE: "the policy is enforced", POLICY_LOG: "the log settings of the nodes apply"}
