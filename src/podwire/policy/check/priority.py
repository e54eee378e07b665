"""Findings about cluster policies of one tier and priority that contradict each other (pure).

The API does not define their order; podwire evaluates them in the order of their names.
"""

from collections.abc import Iterator
from itertools import combinations

from podwire.policy.blocks import Blocks
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.finding import Finding
from podwire.policy.check.outline import PeerOutline, PolicyOutline, RuleOutline
from podwire.policy.check.redundant import in_order
from podwire.policy.ports import overlap


def check(index: ClusterIndex) -> Iterator[Finding]:
    """One finding for each pair of policies of one tier and priority with contradicting rules."""
    for tier in ("Admin", "Baseline"):
        for first, second in combinations(in_order(index, tier), 2):
            if first.priority == second.priority:
                pods = {id(pod) for pod in index.pods(first.subject)}
                if any(id(pod) in pods for pod in index.pods(second.subject)):
                    yield from _two(index, first, second)


def _two(index: ClusterIndex, first: PolicyOutline, second: PolicyOutline) -> Iterator[Finding]:
    for earlier in first.rules:
        for later in second.of(earlier.direction):
            if (
                earlier.action == later.action
                or not _ports_meet(earlier, later)
                or not _peers_meet(index, earlier, later)
            ):
                continue
            text = (
                f"{later.action} here and {earlier.action} in {earlier.path} of {first.key} match equal connections, "
                f"and both policies have priority {first.priority}: the API does not define their order (podwire "
                f"evaluates {first.key} first, by name). Give them different priorities"
            )
            yield second.finding("equal-priority", later.path, text)
            return


def _ports_meet(first: RuleOutline, second: RuleOutline) -> bool:
    if not first.ports or not second.ports or first.names & second.names:
        return True
    have = dict(second.numbers.ports)
    return any(overlap(ranges, have.get(protocol, ())) for protocol, ranges in first.numbers.ports)


def _peers_meet(index: ClusterIndex, first: RuleOutline, second: RuleOutline) -> bool:
    if first.everyone or second.everyone:
        return True
    return any(_meet(index, earlier, later) for earlier in first.peers for later in second.peers)


def _meet(index: ClusterIndex, first: PeerOutline, second: PeerOutline) -> bool:
    if first.pods is not None and second.pods is not None:
        pods = {id(pod) for pod in index.pods(first.pods)}
        return any(id(pod) in pods for pod in index.pods(second.pods))
    if first.nodes is not None and second.nodes is not None:
        both = (node.metadata.labels for node in index.world.nodes)
        return any(first.nodes.matches(labels) and second.nodes.matches(labels) for labels in both)
    numbered = [(number, block) for number, peer in enumerate((first, second)) for _, block in peer.blocks]
    return any(len(rules) > 1 for family in (4, 6) for _, _, rules in Blocks(numbered, family).intervals)
