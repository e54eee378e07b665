"""On how many nodes each policy is in force, from the reports of their agents (pure).

A policy is in force on a node that reports a set of policies which there was after the policy's last change, or at that
very change. Nodes that are not Ready are told apart: nobody waits for them. A node without a report enforces nothing,
or its agent has never been started, and is no node here.
"""

import datetime
from collections.abc import Iterable, Mapping

import msgspec

from podwire.cluster.names import POLICY_MODE
from podwire.policy.annotations import AUDIT
from podwire.policy.status.digest import AnyPolicy, History
from podwire.policy.status.report import Report

SILENT = "its agent has not reported the policy as in force"
"""Why a policy is not in force on a node that gives no reason: it may be about to."""
_NAMED = 3


class Coverage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the annotation ``podwire.io/enforced`` says."""

    generation: int = 0
    mode: str = ""
    """``audit``, or nothing."""
    nodes: str = ""
    """On how many of the Ready nodes that enforce policies it is in force: ``2/3``."""
    since: str = ""
    """Since when it is in force on all of them, RFC 3339."""
    took: str = ""
    """How long that was after the last of them had heard of it: ``12ms``."""
    missing: tuple[str, ...] = ()
    """The first three nodes where it is not in force, each with the reason."""
    not_ready: tuple[str, ...] = ()
    """The first three nodes that are not Ready; what is in force there is not known."""

    @property
    def complete(self) -> bool:
        """Whether it is in force everywhere."""
        own, _, all_nodes = self.nodes.partition("/")
        return own == all_nodes not in ("", "0")

    @property
    def explained(self) -> bool:
        """Whether each of the nodes that are named gives a reason."""
        return all(not text.endswith(SILENT) for text in self.missing)

    def text(self) -> str:
        """The annotation."""
        return msgspec.json.encode(self).decode()


def parse(text: str) -> Coverage | None:
    """What an annotation says; None: it is none of ours."""
    try:
        return msgspec.json.decode(text, type=Coverage)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


class NodeReport(msgspec.Struct, frozen=True):
    """A node, as far as it concerns policies."""

    ready: bool
    report: Report


def coverage_of(
    key: str, kind: str, policy: AnyPolicy, history: History, places: Mapping[str, NodeReport]
) -> Coverage | None:
    """Where a policy is in force; None: no node has told anything."""
    if not places:
        return None
    changed = history.changed(key)
    at_ms, took_ms, missing = 0, 0.0, []
    ready = {name: place for name, place in places.items() if place.ready}
    for name, place in sorted(ready.items()):
        commits = place.report.commits.get(kind, ())
        found = next((commit for commit in commits if history.step(commit.digest) >= changed), None)
        if found is None:
            missing.append(f"{name}: {place.report.problem or SILENT}")
        else:
            at_ms, took_ms = max(at_ms, found.at_ms), max(took_ms, found.took_ms)
    complete = bool(ready) and not missing
    return Coverage(
        generation=policy.metadata.generation,
        mode=AUDIT if policy.metadata.annotations.get(POLICY_MODE) == AUDIT else "",
        nodes=f"{len(ready) - len(missing)}/{len(ready)}",
        since=_stamp(at_ms) if complete else "",
        took=f"{took_ms:.0f}ms" if complete else "",
        missing=tuple(missing[:_NAMED]),
        not_ready=tuple(sorted(name for name, place in places.items() if not place.ready)[:_NAMED]),
    )


def keep_since(before: Coverage | None, now: Coverage) -> Coverage:
    """``now``, with the time since when where it is in force as it was before, on whichever nodes there were."""
    if before is None or not (before.complete and now.complete):
        return now
    if (before.generation, before.mode) != (now.generation, now.mode):
        return now
    return msgspec.structs.replace(now, since=before.since, took=before.took)


def newest_step(history: History, kind: str, report: Report | None) -> int:
    """How far a node has come; -1: nobody knows."""
    commits: Iterable[str] = (each.digest for each in report.commits.get(kind, ())) if report is not None else ()
    return max((history.step(digest) for digest in commits), default=-1)


def _stamp(at_ms: int) -> str:
    instant = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return f"{instant:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
