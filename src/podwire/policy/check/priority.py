"""Findings about cluster policies of one tier and priority that contradict each other (pure).

The API leaves their order open; podwire asks them in the order of their names.
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
        for one, other in combinations(in_order(index, tier), 2):
            if one.priority == other.priority:
                pods = {id(pod) for pod in index.pods(one.subject)}
                if any(id(pod) in pods for pod in index.pods(other.subject)):
                    yield from _two(index, one, other)


def _two(index: ClusterIndex, one: PolicyOutline, other: PolicyOutline) -> Iterator[Finding]:
    for mine in one.rules:
        for theirs in other.of(mine.direction):
            if mine.action == theirs.action or not _ports_meet(mine, theirs) or not _peers_meet(index, mine, theirs):
                continue
            text = (
                f"{theirs.action} here and {mine.action} in {mine.path} of {one.key} match the same connections, and "
                f"both policies have priority {one.priority}: the API leaves the order open (podwire: {one.key} first, "
                "by its name). Give them different priorities"
            )
            yield other.finding("equal-priority", theirs.path, text)
            return


def _ports_meet(one: RuleOutline, other: RuleOutline) -> bool:
    if not one.ports or not other.ports or one.names & other.names:
        return True
    have = dict(other.numbers.ports)
    return any(overlap(ranges, have.get(protocol, ())) for protocol, ranges in one.numbers.ports)


def _peers_meet(index: ClusterIndex, one: RuleOutline, other: RuleOutline) -> bool:
    if one.everyone or other.everyone:
        return True
    return any(_meet(index, mine, theirs) for mine in one.peers for theirs in other.peers)


def _meet(index: ClusterIndex, one: PeerOutline, other: PeerOutline) -> bool:
    if one.pods is not None and other.pods is not None:
        pods = {id(pod) for pod in index.pods(one.pods)}
        return any(id(pod) in pods for pod in index.pods(other.pods))
    if one.nodes is not None and other.nodes is not None:
        both = (node.metadata.labels for node in index.world.nodes)
        return any(one.nodes.matches(labels) and other.nodes.matches(labels) for labels in both)
    numbered = [(number, block) for number, peer in enumerate((one, other)) for _, block in peer.blocks]
    return any(len(rules) > 1 for family in (4, 6) for _, _, rules in Blocks(numbered, family).intervals)
