"""Findings about policies that are not in force: in audit, defined twice, or of an unenforced kind (pure)."""

from collections.abc import Iterator

from podwire.cluster.names import POLICY_MODE
from podwire.policy.check.context import ClusterIndex, UnenforcedPolicy
from podwire.policy.check.finding import KINDS, Finding

_AUDIT = {
    "NetworkPolicy": "it isolates no pod and drops nothing, it only counts and logs what it would drop. Other "
    "findings about it apply when it is in force",
    "ClusterNetworkPolicy": "it neither denies nor accepts nor passes, it only counts and logs what it would drop. "
    "Other findings about it apply when it is in force",
}

_NEWER = "policy.networking.k8s.io/v1alpha2"
_OLDER = "policy.networking.k8s.io/v1alpha1"
_INSTEAD = {
    "AdminNetworkPolicy": f"ClusterNetworkPolicy of {_NEWER} with tier Admin has replaced it",
    "BaselineAdminNetworkPolicy": f"ClusterNetworkPolicy of {_NEWER} with tier Baseline has replaced it",
    "ClusterNetworkPolicy": f"podwire reads {_NEWER}",
    "NetworkPolicy": "podwire reads networking.k8s.io/v1",
}
_UPSTREAM = (_OLDER, _NEWER, "networking.k8s.io/v1beta1", "extensions/v1beta1")
"""The API versions in which these kinds are earlier forms of what podwire enforces; others use the same names."""


def check(index: ClusterIndex) -> Iterator[Finding]:
    """Findings about policies that files define twice, that are in audit, or that are not enforced."""
    for policy in index.policies:
        if policy.audit:
            yield policy.finding("in-audit", f"metadata.annotations[{POLICY_MODE}]", _AUDIT[policy.kind])
        if unused_definition := index.details.duplicates.get(policy.name):
            text = f"it is also defined in {unused_definition}; the last definition is used, and this one is checked"
            yield policy.finding("given-twice", "metadata.name", text)
    for unenforced in index.details.unenforced:
        yield _not_enforced(unenforced)


def skipped_note(other: UnenforcedPolicy) -> str:
    """A note about a policy that is left out because podwire does not enforce its kind."""
    policy = f"{other.kind} {other.name} in {other.where}"
    return f"{policy} is skipped: podwire does not enforce {other.kind} of {other.api_version}; {_instead(other)}"


def _instead(other: UnenforcedPolicy) -> str:
    replacement = _INSTEAD.get(other.kind, "") if other.api_version in _UPSTREAM else ""
    return replacement or "it has an effect only if another component of the cluster enforces it"


def _not_enforced(other: UnenforcedPolicy) -> Finding:
    instead = _instead(other)
    text = f"podwire neither enforces nor checks {other.kind} of {other.api_version}: {instead}"
    name = "not-enforced"
    return Finding(
        id=name, severity=KINDS[name][0], kind=other.kind, name=other.name, field="kind", text=text, where=other.where
    )
