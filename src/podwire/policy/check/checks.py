"""All findings about the policies of a cluster, in order (pure).

The annotation ``podwire.io/ignore: id,id`` of a policy hides findings of these kinds about it.
"""

from collections.abc import Callable, Iterator, Mapping

from podwire.cluster.names import POLICY_ENFORCED, POLICY_IGNORE, PREFIX
from podwire.cluster.world import World
from podwire.policy.annotations import VALUES, problems
from podwire.policy.check import blocks, inactive, lookups, peers, ports, priority, redundant, types, unmatched
from podwire.policy.check.context import ClusterDetails, ClusterIndex
from podwire.policy.check.finding import KINDS, SEVERITIES, Finding
from podwire.policy.check.outline import PolicyOutline
from podwire.policy.check.phrases import first_names

_NAMES = (POLICY_ENFORCED, *VALUES, POLICY_IGNORE)

CHECKS: tuple[Callable[[ClusterIndex], Iterator[Finding]], ...] = (
    inactive.check,
    unmatched.check,
    types.check,
    peers.check,
    ports.check,
    blocks.check,
    lookups.check,
    redundant.check,
    priority.check,
)


def check(world: World, details: ClusterDetails | None = None) -> tuple[Finding, ...]:
    """The probable mistakes in policies, by object; for each object the most severe first."""
    index = ClusterIndex(world, details)
    ignored = {policy.name: _ignored(policy.meta.annotations) for policy in index.policies}
    ignored |= {
        f"{policy_of_other_kind.kind} {policy_of_other_kind.name}": _ignored(policy_of_other_kind.annotations)
        for policy_of_other_kind in index.details.unenforced
    }
    findings = [finding for check_of_kind in CHECKS for finding in check_of_kind(index)]
    findings += [finding for policy in index.policies for finding in _unknown(policy, ignored[policy.name])]
    findings += [finding for policy in index.policies for finding in _annotations(policy)]
    kept_findings = {
        check_of_kind
        for check_of_kind in findings
        if check_of_kind.id not in ignored[f"{check_of_kind.kind} {check_of_kind.name}"]
    }
    return tuple(sorted(kept_findings, key=_order))


def _order(finding: Finding) -> tuple[str, str, int, str, str, str]:
    return (finding.kind, finding.name, SEVERITIES.index(finding.severity), finding.field, finding.id, finding.text)


def _ignored(annotations: Mapping[str, str]) -> frozenset[str]:
    return frozenset(filter(None, (word.strip() for word in annotations.get(POLICY_IGNORE, "").split(","))))


def _unknown(policy: PolicyOutline, ignored: frozenset[str]) -> Iterator[Finding]:
    wrong = sorted(word for word in ignored if word not in KINDS)
    if wrong:
        text = f"unknown kind of finding: {first_names(wrong)}"
        yield policy.finding("unknown-ignore", f"metadata.annotations[{POLICY_IGNORE}]", text)


def _annotations(policy: PolicyOutline) -> Iterator[Finding]:
    """Findings about misspelled annotations and unknown values."""
    annotations: Mapping[str, str] = policy.meta.annotations
    for problem in problems(annotations):
        name, _, text = problem.partition(": ")
        yield policy.finding("unknown-annotation", f"metadata.annotations[{name}]", text)
    for name in sorted(name for name in annotations if name.startswith(PREFIX) and name not in _NAMES):
        text = f"unknown annotation, it has no effect; podwire reads {', '.join(_NAMES)}"
        yield policy.finding("unknown-annotation", f"metadata.annotations[{name}]", text)
