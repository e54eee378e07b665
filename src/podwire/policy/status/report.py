"""The report of one agent on the policies in force on its node: one small ConfigMap (pure).

Each node has a ConfigMap ``podwire-policies-NODE`` with a key for each kind of policies. The value has a line for each
of the last commits that changed the policies in force: the digest of the policies
(:mod:`podwire.policy.status.digest`), when they were in force (milliseconds since 1970), and how many milliseconds
after the agent received the change. The size does not depend on the number of policies.
"""

import hashlib
from collections.abc import Mapping

import msgspec

NAMESPACE = "kube-system"
LABEL_VALUE = "policies"
KINDS = ("NetworkPolicy", "ClusterNetworkPolicy")
COMMITS = 16
"""How many commits of each kind are listed; a slower reader misses the older ones."""

_PREFIX = "podwire-policies-"
_LONGEST = 253
_PROBLEM = 300


class Commit(msgspec.Struct, frozen=True, gc=False):
    """A set of policies was put in force."""

    digest: str
    at_ms: int
    """Since 1970."""
    took_ms: float
    """Since the agent received the first change of the commit."""


class EnforcedPolicies(msgspec.Struct, frozen=True):
    """The policies in force on one node."""

    node: str
    commits: Mapping[str, tuple[Commit, ...]]
    """By kind, the newest commit last."""
    problem: str = ""
    """Why the latest changes are not in force; empty when they are in force."""


def name_of(node: str) -> str:
    """The name of a node's ConfigMap."""
    name = _PREFIX + node
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 17]}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"


def render(report: EnforcedPolicies) -> dict[str, str]:
    """The data of the ConfigMap."""
    lines = {kind: "\n".join(map(_line, report.commits.get(kind, ())[-COMMITS:])) for kind in KINDS}
    return {"node": report.node, "problem": report.problem[:_PROBLEM], **lines}


def _line(commit: Commit) -> str:
    return f"{commit.digest} {commit.at_ms} {commit.took_ms:.1f}"


def parse(data: Mapping[str, str]) -> EnforcedPolicies:
    """The report in the data of a ConfigMap; invalid lines are ignored."""
    commits = {kind: tuple(filter(None, map(_commit, data.get(kind, "").splitlines()))) for kind in KINDS}
    return EnforcedPolicies(data.get("node", ""), commits, data.get("problem", ""))


def _commit(line: str) -> Commit | None:
    try:
        digest, at_ms, took_ms = line.split()
        return Commit(digest, int(at_ms), float(took_ms))
    except ValueError:
        return None
