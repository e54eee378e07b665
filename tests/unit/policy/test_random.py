"""Random policies from a seed: the evaluator against the rules of every data plane, followed packet by packet.

``SEED=n`` begins with another seed than 0, ``SEEDS=n`` tries so many. The same seeds are tried with real packets by
``tests/kernel/test_policy_random.py``.
"""

import os
from functools import cache
from pathlib import Path

import pytest
from tests.cases.policy_table import read_cases
from tests.cases.random_policies import RandomPolicies
from tests.unit.policy.dataplanes.nftables.test_contents import device
from tests.unit.policy.test_packet_table import POD_RANGES, Verdict, passes

from podwire.cluster.world import World
from podwire.policy.compile import compile_world
from podwire.policy.connectionmatch import Connection
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.evaluate import ConnectionVerdict, EvaluationOptions, evaluate
from podwire.policy.registry import DATAPLANES
from podwire.policy.tracing import open_tracing
from podwire.trace.packet import LocalAddresses

BASE = read_cases(Path(__file__).parents[2] / "cases/policies")[0].world
FIRST, COUNT = int(os.environ.get("SEED", "0")), int(os.environ.get("SEEDS", "30"))
SEEDS = range(FIRST, FIRST + COUNT)
CONNECTIONS = 120


def planned(name: str, world: World, node: str, *, own_node_egress: bool) -> Verdict:
    """What the rules make of a packet that a data plane would program on a node."""
    seam = open_tracing(name)
    assert seam is not None, "every data plane can be traced"
    addresses = next(item for item in world.nodes if item.metadata.name == node).internal_ips
    compiler = compile_world(world, node, own_node_egress=own_node_egress)
    devices = {key: device(key) for key in compiler.pods}
    facts = PolicyFacts(pod_ranges=POD_RANGES[node], addresses=addresses)
    tracer = seam.planned(compiler, devices, facts, LocalAddresses(addresses=frozenset(addresses)))
    return lambda packet: next(iter(tracer.outcomes(packet))).verdict


@cache
def evaluated(seed: int) -> tuple[World, tuple[tuple[Connection, ConnectionVerdict], ...]]:
    """The cluster of a seed, and its connections with the verdicts of the evaluator, for every data plane."""
    policies = RandomPolicies(BASE, seed)
    world = policies.world()
    options = EvaluationOptions(own_node_egress=own_node_egress(seed))
    connections = policies.connections(world, CONNECTIONS)
    return world, tuple((connection, evaluate(world, connection, options)) for connection in connections)


def own_node_egress(seed: int) -> bool:
    return seed % 3 > 0


@pytest.mark.parametrize("name", DATAPLANES)
@pytest.mark.parametrize("seed", SEEDS)
def test_rules_and_evaluator_agree(seed: int, name: str) -> None:
    world, connections = evaluated(seed)
    planes = {node: planned(name, world, node, own_node_egress=own_node_egress(seed)) for node in ("n1", "n2")}
    for connection, expected in connections:
        assert passes(planes, connection) == expected.allowed, (connection.source.name, connection, expected)


def test_a_seed_gives_the_same_again() -> None:
    item, other = (RandomPolicies(BASE, 7) for _ in range(2))
    world = item.world()
    assert world == other.world()
    assert item.changed(world) == other.changed(world)
    assert list(item.connections(world, 50)) == list(other.connections(world, 50))
    assert RandomPolicies(BASE, 8).world() != world


def test_random_policies_are_neither_all_open_nor_all_shut() -> None:
    result: list[bool] = []
    by_rule = 0
    for seed in range(40):
        policies = RandomPolicies(BASE, seed)
        world = policies.world()
        verdicts = [evaluate(world, connection) for connection in policies.connections(world, 50)]
        result += (verdict.allowed for verdict in verdicts)
        by_rule += sum(bool(verdict.ingress.policy or verdict.egress.policy) for verdict in verdicts)
    assert 0.3 < sum(result) / len(result) < 0.8
    assert by_rule > 0.2 * len(result), "rules decide, not only that there is none"
