"""The report of one agent on the policies in force on its node: one small ConfigMap (pure).

There is one for each node, ``podwire-policies-NODE``, with a key for each kind of policies and a line for each of the
last commits that changed what is in force of it: the digest of the policies (:mod:`podwire.policy.status.digest`),
when it was in force (milliseconds since 1970), and how many milliseconds that was after the agent had heard of the
change. The size does not depend on how many policies there are.
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


class Report(msgspec.Struct, frozen=True):
    """The policies in force on one node."""

    node: str
    commits: Mapping[str, tuple[Commit, ...]]
    """By kind, the last one last."""
    problem: str = ""
    """Why the latest changes are not in force; empty: they are."""


def name_of(node: str) -> str:
    """The name of a node's ConfigMap."""
    name = _PREFIX + node
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 17]}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"


def render(report: Report) -> dict[str, str]:
    """The data of the ConfigMap."""
    lines = {kind: "\n".join(map(_line, report.commits.get(kind, ())[-COMMITS:])) for kind in KINDS}
    return {"node": report.node, "problem": report.problem[:_PROBLEM], **lines}


def _line(commit: Commit) -> str:
    return f"{commit.digest} {commit.at_ms} {commit.took_ms:.1f}"


def parse(data: Mapping[str, str]) -> Report:
    """The report in the data of a ConfigMap; lines that are none are left out."""
    commits = {kind: tuple(filter(None, map(_commit, data.get(kind, "").splitlines()))) for kind in KINDS}
    return Report(data.get("node", ""), commits, data.get("problem", ""))


def _commit(line: str) -> Commit | None:
    try:
        digest, at_ms, took_ms = line.split()
        return Commit(digest, int(at_ms), float(took_ms))
    except ValueError:
        return None
