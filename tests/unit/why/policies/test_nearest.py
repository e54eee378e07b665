"""The nearest rules in random clusters: what is said to miss or match does so, and the distances are in order."""

import pytest
from tests.unit.policy.test_compile import Chaos

from podwire.cluster.world import World
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import (
    EGRESS,
    INGRESS,
    DirectionCase,
    EvaluationOptions,
    decide,
    ends,
    evaluate,
    policy_rules,
)
from podwire.why.explain import explain_connection
from podwire.why.policies.nearest import nearest


def sides(case: DirectionCase) -> list[int]:
    """On how many sides each rule of the policies that isolate misses."""
    return [
        (not case.matcher.peers_match(policy, rule.peers)) + (not case.matcher.ports_match(rule.ports))
        for policy in case.isolating()
        for rule in policy_rules(policy, case.direction)
    ]


def check(world: World, connection: Connection, direction: str) -> bool:
    """Whether there was a nearest rule to look at."""
    if (
        decide(world, connection, direction, EvaluationOptions()).policy
        or not decide(world, connection, direction, EvaluationOptions()).tier
    ):
        return False
    subject, peer = ends(connection, direction)
    assert subject.pod is not None
    case = DirectionCase(world, connection, direction, subject.pod, peer)
    rules = nearest(case)
    assert len(rules) == min(3, len(sides(case)))
    distances = [sum(miss.cost for miss in near.misses) for near in rules]
    assert distances == sorted(distances)
    if not rules:
        return False
    result = rules[0]
    assert distances[0] == min(sum(m.cost for m in near.misses) for near in nearest(case, 1000))
    assert result.policy in case.isolating()
    rule = policy_rules(result.policy, direction)[result.rule_index]
    assert bool(result.peer_misses) == (not case.matcher.peers_match(result.policy, rule.peers))
    assert (result.port_miss is not None) == (not case.matcher.ports_match(rule.ports))
    assert (result.peer is None) == (not rule.peers or bool(result.peer_misses))
    assert (result.port is None) == (not rule.ports or result.port_miss is not None)
    return True


@pytest.mark.parametrize("seed", range(4))
def test_random_clusters(seed: int) -> None:
    chaos = Chaos(4000 + seed)
    looked = 0
    for _ in range(6):
        for _ in range(4):
            chaos.change()
        for connection in chaos.connections():
            verdict = evaluate(chaos.world, connection)
            assert (explain_connection(chaos.world, connection).outcome == "allowed") == verdict.allowed
            looked += sum(check(chaos.world, connection, direction) for direction in (INGRESS, EGRESS))
    assert looked
