"""The table of policies."""

import datetime
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.cases.policy_table import read_cases

from podwire.cluster.names import POLICY_ENFORCED
from podwire.cluster.world import World
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.status.coverage import Coverage
from podwire.policy.status.overview import HEAD, Packets, PolicyRow, policy_rows

CASES = read_cases(Path(__file__).parents[3] / "cases/policies")
WORLD = next(case for case in CASES if case.name == "a Pass in audit that would lead by an Accept to a denial").world
NOW = datetime.datetime(2026, 1, 1, 0, 0, 5, tzinfo=datetime.UTC)


COUNTS = {("shop/quiet", "dropped"): 7, ("first", "audited"): 3}


def annotated(world: World, **output: object) -> World:
    """The world with what is said of its NetworkPolicy."""
    (policy,) = world.policies
    text = Coverage(**output).text()  # type: ignore[arg-type]
    meta = replace(policy.metadata, generation=2, annotations={POLICY_ENFORCED: text})
    return replace(world, policies=(replace(policy, metadata=meta),))


def quiet(world: World, packets: Packets | None = None) -> PolicyRow:
    return next(line for line in policy_rows(world, NOW, packets) if line.name == "quiet")


def test_policies_of_both_kinds_count_their_pods() -> None:
    result = list(policy_rows(WORLD, NOW, Packets(COUNTS)))
    assert [line.cells() for line in result] == [
        ("shop", "quiet", "NetworkPolicy", "enforce", "1", "-", "-", "7", "0"),
        ("-", "first", "ClusterNP", "audit", "6", "-", "-", "0", "3"),
        ("-", "second", "ClusterNP", "enforce", "6", "-", "-", "0", "0"),
    ]
    assert all(len(line.cells()) == len(HEAD) for line in result)


def test_counts_of_some_nodes_are_lower_bounds() -> None:
    subset = quiet(WORLD, Packets(COUNTS, not_asked=2))
    assert subset.cells()[-2:] == ("7+", "0+")
    assert (subset.dropped, subset.not_asked) == (7, 2)
    assert quiet(WORLD).cells()[-2:] == ("-", "-")


def test_pods_of_a_cluster_policy_are_counted_by_both_selectors() -> None:
    spec = {"subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}}}
    policy = msgspec.convert({"metadata": {"name": "web"}, "spec": spec}, ClusterNetworkPolicy)
    empty = msgspec.convert({"metadata": {"name": "none"}}, ClusterNetworkPolicy)
    world = replace(WORLD, policies=(), cluster_policies=(policy, empty))
    assert [line.selects for line in policy_rows(world, NOW)] == [0, 3]


def test_where_and_how_long_it_is_in_force() -> None:
    world = annotated(WORLD, generation=2, nodes="3/3", since="2026-01-01T00:00:03.500Z", took="4ms")
    assert quiet(world).cells()[5:] == ("3/3", "1.5s", "-", "-")
    assert quiet(world).in_force_for_ms == 1500
    partly = annotated(WORLD, generation=2, nodes="2/3", missing=("node-3: no memory",))
    assert quiet(partly).cells()[5:7] == ("2/3", "-")
    assert quiet(partly).missing == ("node-3: no memory",)


@pytest.mark.parametrize("output", [{"generation": 1}, {"generation": 2, "mode": "audit"}])
def test_reports_about_other_generations_are_not_shown(output: dict[str, object]) -> None:
    line = quiet(annotated(WORLD, nodes="3/3", since="2026-01-01T00:00:03Z", **output))
    assert (line.nodes, line.in_force_for_ms) == ("", None)


def test_malformed_annotations_are_ignored() -> None:
    (policy,) = WORLD.policies
    for text in ("", "x", '{"generation":0,"nodes":"1/1","since":"soon"}'):
        meta = replace(policy.metadata, annotations={POLICY_ENFORCED: text})
        world = replace(WORLD, policies=(NetworkPolicy(metadata=meta, spec=policy.spec),))
        assert quiet(world).in_force_for_ms is None
