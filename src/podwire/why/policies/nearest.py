"""The rules of the isolating policies that are nearest to allowing a connection (pure).

The distance of a rule is the sum of the costs of all its mismatches, of peers and ports together: a rule with two slips
(a namespace's name and a port) is nearer than a rule that is for other pods. Of equal rules, the first is nearer.
"""

import heapq
from typing import NamedTuple

from podwire.model.policy import EgressRule, IngressRule, NetworkPolicy
from podwire.policy.evaluate import INGRESS, DirectionCase, policy_rules
from podwire.why.policies.mismatch import Miss, RulePart, peer_misses, peer_text, port_miss, port_text

NEAREST = 3
"""The number of rules that an explanation names."""


class RuleDistance(NamedTuple):
    """A rule, its peer and its port that match, and its parts that do not match."""

    policy: NetworkPolicy
    rule_index: int
    peer: RulePart | None
    port: RulePart | None
    peer_misses: tuple[Miss, ...]
    port_miss: Miss | None

    @property
    def misses(self) -> tuple[Miss, ...]:
        """All parts that do not match."""
        return (*self.peer_misses, self.port_miss) if self.port_miss is not None else self.peer_misses


def rule_field(direction: str, rule_index: int) -> str:
    """``spec.ingress[0]``."""
    return f"spec.{direction.lower()}[{rule_index}]"


def nearest(case: DirectionCase, count: int = NEAREST) -> list[RuleDistance]:
    """The nearest rules of the isolating policies, at most ``count``, nearest first."""
    rules = (
        (policy, rule_index, rule)
        for policy in case.isolating()
        for rule_index, rule in enumerate(policy_rules(policy, case.direction))
    )
    return heapq.nsmallest(count, (_near(case, *rule) for rule in rules), key=_distance)


def _distance(near: RuleDistance) -> float:
    return sum(miss.cost for miss in near.misses)


def _near(case: DirectionCase, policy: NetworkPolicy, rule_index: int, rule: IngressRule | EgressRule) -> RuleDistance:
    peer, port = matching_parts(case, policy, rule_index, rule)
    field = rule_field(case.direction, rule_index)
    misses: tuple[Miss, ...] = ()
    if not case.matcher.peers_match(policy, rule.peers):
        peers = enumerate(rule.peers)
        namespace = policy.metadata.namespace
        misses_by_peer = [
            peer_misses(case, namespace, rule_peer, f"{field}.{peers_word(case)}[{number}]")
            for number, rule_peer in peers
        ]
        misses = min(misses_by_peer, key=lambda one_peer: sum(miss.cost for miss in one_peer))
    missed_port = None if case.matcher.ports_match(rule.ports) else port_miss(case, rule.ports, field)
    return RuleDistance(policy, rule_index, peer, port, misses, missed_port)


def peers_word(case: DirectionCase) -> str:
    """``from`` or ``to``."""
    return "from" if case.direction == INGRESS else "to"


def matching_parts(
    case: DirectionCase, policy: NetworkPolicy, rule_index: int, rule: IngressRule | EgressRule
) -> tuple[RulePart | None, RulePart | None]:
    """The first peer and the first port of a rule that match; None: it has none, or none matches."""
    field = rule_field(case.direction, rule_index)
    peers = (
        RulePart(f"{field}.{peers_word(case)}[{number}]", peer_text(peer))
        for number, peer in enumerate(rule.peers)
        if case.matcher.peer_matches(policy, peer)
    )
    ports = (
        RulePart(f"{field}.ports[{number}]", port_text(port))
        for number, port in enumerate(rule.ports)
        if case.matcher.port_matches(port)
    )
    return next(peers, None), next(ports, None)
