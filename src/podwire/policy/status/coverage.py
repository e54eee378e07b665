"""On how many nodes each policy is in force, from the reports of their agents (pure).

A policy is in force on a node when the node reports a set of policies that existed at or after the last change of the
policy. Nodes that are not Ready are listed separately: they do not delay the report. A node without a report enforces
no policies, or its agent has never started: it is not counted.
"""

import datetime
from collections.abc import Iterable, Mapping

import msgspec

from podwire.cluster.names import POLICY_MODE
from podwire.model.wording import duration
from podwire.policy.annotations import AUDIT
from podwire.policy.status.digest import AnyPolicy, History
from podwire.policy.status.report import EnforcedPolicies

SILENT = "its agent has not reported the policy as in force"
"""The reason for a node that reports no problem: the policy may be in force there soon."""
_NAMED = 3


class Coverage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The value of the annotation ``podwire.io/enforced``."""

    generation: int = 0
    mode: str = ""
    """``audit``; empty for a policy that is enforced."""
    nodes: str = ""
    """In force on this many of the Ready nodes that enforce policies: ``2/3``."""
    since: str = ""
    """When the policy was in force on all of them, RFC 3339."""
    took: str = ""
    """The longest time from receiving the change to having it in force: ``12ms``."""
    missing: tuple[str, ...] = ()
    """The first three nodes where the policy is not in force, each with the reason."""
    not_ready: tuple[str, ...] = ()
    """The first three nodes that are not Ready; their state is unknown."""

    @property
    def complete(self) -> bool:
        """Whether the policy is in force on all Ready nodes."""
        own, _, all_nodes = self.nodes.partition("/")
        return own == all_nodes not in ("", "0")

    @property
    def explained(self) -> bool:
        """Whether each named node gives a reason."""
        return all(not text.endswith(SILENT) for text in self.missing)

    def text(self) -> str:
        """The value as JSON, for the annotation."""
        return msgspec.json.encode(self).decode()


def parse(text: str) -> Coverage | None:
    """The value of an annotation; None: the text does not have this format."""
    try:
        return msgspec.json.decode(text, type=Coverage)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


class NodeReport(msgspec.Struct, frozen=True):
    """The readiness of one node and its last report."""

    ready: bool
    report: EnforcedPolicies


def coverage_of(
    key: str, kind: str, policy: AnyPolicy, history: History, nodes: Mapping[str, NodeReport]
) -> Coverage | None:
    """On which nodes a policy is in force; None: no node has reported."""
    if not nodes:
        return None
    changed = history.changed(key)
    at_ms, took_ms, missing = 0, 0.0, []
    ready = {name: node for name, node in nodes.items() if node.ready}
    for name, node in sorted(ready.items()):
        commits = node.report.commits.get(kind, ())
        commit = next((commit for commit in commits if history.step(commit.digest) >= changed), None)
        if commit is None:
            missing.append(f"{name}: {node.report.problem or SILENT}")
        else:
            at_ms, took_ms = max(at_ms, commit.at_ms), max(took_ms, commit.took_ms)
    complete = bool(ready) and not missing
    return Coverage(
        generation=policy.metadata.generation,
        mode=AUDIT if policy.metadata.annotations.get(POLICY_MODE) == AUDIT else "",
        nodes=f"{len(ready) - len(missing)}/{len(ready)}",
        since=_stamp(at_ms) if complete else "",
        took=duration(took_ms) if complete else "",
        missing=tuple(missing[:_NAMED]),
        not_ready=tuple(sorted(name for name, node in nodes.items() if not node.ready)[:_NAMED]),
    )


def keep_since(before: Coverage | None, now: Coverage) -> Coverage:
    """``now``, with the earlier ``since`` and ``took`` if the same version was already in force everywhere."""
    if before is None or not (before.complete and now.complete):
        return now
    if (before.generation, before.mode) != (now.generation, now.mode):
        return now
    return msgspec.structs.replace(now, since=before.since, took=before.took)


def newest_step(history: History, kind: str, report: EnforcedPolicies | None) -> int:
    """The newest step of the history that a node has reached; -1: unknown."""
    commits: Iterable[str] = (commit.digest for commit in report.commits.get(kind, ())) if report is not None else ()
    return max((history.step(digest) for digest in commits), default=-1)


def _stamp(at_ms: int) -> str:
    instant = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return f"{instant:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
