"""The order of a migration, and that a run may end between any two of its calls."""

import asyncio
from typing import cast

import pytest
from tests.fakes.migration_cluster import Killed, MigrationCluster

from podwire.errors import ClusterError, ConfigError
from podwire.install.migration.clusterobjects import ClusterObjects
from podwire.install.migration.record import STEPS
from podwire.install.migration.run import Migration, MigrationOptions

NODES = ("a", "b")


def run(cluster: MigrationCluster, action: str, *nodes: str) -> list[str]:
    lines: list[str] = []
    migration = Migration(cast("ClusterObjects", cluster), MigrationOptions(nodes=nodes), lines.append)
    asyncio.run(migration.run(action))
    return lines


def is_podwire(cluster: MigrationCluster) -> bool:
    excluded = cluster.affinity is not None
    return excluded and set(cluster.network.values()) == {"podwire"} and set(cluster.labels.values()) == {"true"}


def is_old(cluster: MigrationCluster) -> bool:
    cleared = cluster.affinity is None and not cluster.data
    return cleared and set(cluster.network.values()) == {"old"} and set(cluster.labels.values()) == {None}


def test_all_nodes_are_checked_before_the_first_changes() -> None:
    cluster = MigrationCluster(*NODES)
    lines = run(cluster, "apply")
    assert cluster.steps == [
        ("a", "check"), ("b", "check"),
        ("a", "network"), ("a", "services"), ("a", "verify"),
        ("b", "network"), ("b", "services"), ("b", "verify"),
    ]  # fmt: skip
    assert is_podwire(cluster) and not cluster.flow_pods
    assert lines[-1] == "tcp: 0 of 18 messages lost in 2 flows, 0 connections ended, longest gap 0ms"


def test_back_goes_in_reverse_order_and_leaves_nothing() -> None:
    cluster = MigrationCluster(*NODES)
    run(cluster, "apply")
    cluster.steps.clear()
    run(cluster, "back")
    back = [step for step in STEPS["back"] if step != "release"]
    assert cluster.steps == [(node, step) for node in ("b", "a") for step in back]
    assert is_old(cluster)


@pytest.mark.parametrize("action", ["apply", "back"])
def test_a_run_that_is_killed_anywhere_continues(action: str) -> None:
    whole = MigrationCluster(*NODES)
    run(whole, "apply")
    before = whole.calls if action == "back" else 0
    if action == "back":
        run(whole, "back")
    for allowed in range(whole.calls - before):
        cluster = MigrationCluster(*NODES)
        if action == "back":
            run(cluster, "apply")
        cluster.allowed = allowed
        with pytest.raises(Killed):
            run(cluster, action)
        cluster.allowed = None
        run(cluster, action)
        assert is_podwire(cluster) if action == "apply" else is_old(cluster), allowed
        assert not cluster.flow_pods


def test_from_wherever_it_was_killed_back_is_possible() -> None:
    whole = MigrationCluster(*NODES)
    run(whole, "apply")
    for allowed in range(whole.calls):
        cluster = MigrationCluster(*NODES)
        cluster.allowed = allowed
        with pytest.raises(Killed):
            run(cluster, "apply")
        cluster.allowed = None
        run(cluster, "back")
        assert is_old(cluster), allowed


def test_a_fault_of_one_node_changes_no_node() -> None:
    cluster = MigrationCluster(*NODES)
    cluster.faults.add(("b", "check"))
    with pytest.raises(ClusterError, match="b has a fault; nothing was changed"):
        run(cluster, "apply")
    assert set(cluster.labels.values()) == {None} and cluster.affinity is None
    assert "step select: end the pods of the old network on the node, start the agent" in run(cluster, "plan", "a")


def test_a_failed_step_stops_the_run_at_its_node() -> None:
    cluster = MigrationCluster(*NODES)
    cluster.faults.add(("a", "network"))
    with pytest.raises(ClusterError, match="a: the step network failed; `podwire migrate back` undoes"):
        run(cluster, "apply")
    assert cluster.network == {"a": "old", "b": "old"} and cluster.labels == {"a": "true", "b": None}
    cluster.faults.clear()
    run(cluster, "apply")
    assert is_podwire(cluster)


def test_only_the_nodes_that_are_named_move() -> None:
    cluster = MigrationCluster(*NODES)
    run(cluster, "apply", "b")
    assert cluster.network == {"a": "old", "b": "podwire"}
    with pytest.raises(ConfigError, match="--node: 'c' is not a node of this cluster; the nodes are a, b"):
        run(cluster, "apply", "c")
