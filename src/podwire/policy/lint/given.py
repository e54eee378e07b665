"""What was given and is not in force: policies that come a second time, and those of another's kind (pure)."""

from collections.abc import Iterator

from podwire.policy.lint.finding import KINDS, Finding
from podwire.policy.lint.scene import Other, Scene

_INSTEAD = {
    "AdminNetworkPolicy": "ClusterNetworkPolicy of tier Admin has taken its place",
    "BaselineAdminNetworkPolicy": "ClusterNetworkPolicy of tier Baseline has taken its place",
}


def check(scene: Scene) -> Iterator[Finding]:
    """Policies that files have twice, and those that are not enforced."""
    for policy in scene.policies:
        if before := scene.around.twice.get(policy.name):
            text = f"it is also in {before}; which one is in force depends on the order, here it is this one"
            yield policy.finding("given-twice", "metadata.name", text)
    for other in scene.around.others:
        yield _not_enforced(other)


def _not_enforced(other: Other) -> Finding:
    instead = _INSTEAD.get(other.kind, "only what else enforces it in the cluster makes it hold")
    text = f"podwire enforces no {other.kind} of {other.api_version}, and does not check it: {instead}"
    name = "not-enforced"
    return Finding(
        id=name, severity=KINDS[name][0], kind=other.kind, name=other.name, field="kind", text=text, where=other.where
    )
