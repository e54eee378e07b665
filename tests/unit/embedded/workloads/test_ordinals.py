"""StatefulSets: order, partitions, revisions, and a simulated cluster."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.embedded.workloads.sample_pods import NOW, make_pod

from podwire.embedded.workloads.ordinals import Revision, StatefulSetPlan, ordinal_of, plan
from podwire.embedded.workloads.statefulset import claim_body, pod_body
from podwire.model.pod import Pod
from podwire.model.workload import StatefulSet, StatefulSetStatus

OLD, NEW = "h1", "h2"
STABLE = Revision(NEW, NEW)
ROLLING = Revision(OLD, NEW)


def stateful(
    replicas: int = 3, *, partition: int = 0, status: dict[str, Any] | None = None, **spec: Any
) -> StatefulSet:
    body = {
        "metadata": {"name": "db", "uid": "S", "namespace": "d", "generation": 1},
        "spec": {"replicas": replicas, "serviceName": "db", "updateStrategy": {
            "type": "RollingUpdate", "rollingUpdate": {"partition": partition}}} | spec,
        "status": status or {},
    }  # fmt: skip
    return msgspec.convert(body, StatefulSet)


def pods(text: str, digest: str = NEW) -> list[Pod]:
    """``0 1! 2-`` : ordinals, ``!`` unready, ``-`` going, ``x`` failed, ``'`` of the old revision."""
    result = []
    for word in text.split():
        number = word.rstrip("!-x'")
        marks = word[len(number) :]
        result.append(
            make_pod(
                f"db-{number}",
                ready="!" not in marks,
                going="-" in marks,
                phase="Failed" if "x" in marks else "Running",
                labels={"controller-revision-hash": OLD if "'" in marks else digest},
            )
        )
    return result


def did(chosen: StatefulSetPlan) -> tuple[list[int], list[str]]:
    return [n for n, _ in chosen.create], [p.metadata.name for p in chosen.delete]


TABLE = [
    ("the first", {}, "", ([0], [])),
    ("waits for the first", {}, "0!", ([], [])),
    ("the next", {}, "0", ([1], [])),
    ("fills a hole before going on", {}, "0 2", ([1], [])),
    ("waits while one is going", {}, "0 1-", ([], [])),
    ("replaces a failed one", {}, "0 1x", ([], ["db-1"])),
    ("all there", {}, "0 1 2", ([], [])),
    ("highest goes first", {}, "0 1 2 3 4", ([], ["db-4"])),
    ("one at a time", {}, "0 1 2 3 4-", ([], [])),
    ("nobody goes while one is not ready", {}, "0 1! 2 3", ([], [])),
    ("parallel creates all", {"podManagementPolicy": "Parallel"}, "1!", ([0, 2], [])),
    ("parallel deletes all", {"podManagementPolicy": "Parallel"}, "0 1 2 3 4", ([], ["db-4", "db-3"])),
    ("from another ordinal", {"ordinals": {"start": 5}}, "5", ([6], [])),
]


@pytest.mark.parametrize(("spec", "text", "want"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_order(spec: dict[str, Any], text: str, want: tuple[list[int], list[str]]) -> None:
    assert did(plan(stateful(**spec), pods(text), STABLE, NOW)) == want


UPDATES: list[tuple[str, dict[str, Any], str, tuple[list[int], list[str]]]] = [
    ("the highest first", {}, "0' 1' 2'", ([], ["db-2"])),
    ("waits for it", {}, "0' 1' 2!", ([], [])),
    ("then the next", {}, "0' 1' 2", ([], ["db-1"])),
    ("stops at the partition", {"partition": 2}, "0' 1' 2", ([], [])),
    ("never when deleted by hand only", {"updateStrategy": {"type": "OnDelete"}}, "0' 1' 2'", ([], [])),
    (
        "one after the other when parallel too",
        {"podManagementPolicy": "Parallel"},
        "0' 1' 2'",
        ([], ["db-2"]),
    ),
]


@pytest.mark.parametrize(("spec", "text", "want"), [row[1:] for row in UPDATES], ids=[row[0] for row in UPDATES])
def test_updates(spec: dict[str, Any], text: str, want: tuple[list[int], list[str]]) -> None:
    assert did(plan(stateful(**spec), pods(text), ROLLING, NOW)) == want


def test_a_replaced_pod_gets_the_revision_of_its_ordinal() -> None:
    result = plan(stateful(), pods("0' 1' 2'"), ROLLING, NOW)
    assert result.status.current_replicas == 2
    during = stateful(status=msgspec.to_builtins(result.status))
    assert plan(during, pods("0' 1'"), ROLLING, NOW).create == [(2, NEW)]
    assert plan(during, pods("1' 2"), ROLLING, NOW).create == [(0, OLD)]
    parted = stateful(partition=1)
    assert plan(parted, [], ROLLING, NOW).create == [(0, OLD)]
    assert plan(parted, pods("0'"), ROLLING, NOW).create == [(1, NEW)]


def test_current_revision_changes_when_the_update_is_complete() -> None:
    status = plan(stateful(), pods("0 1 2"), ROLLING, NOW).status
    assert (status.current_revision, status.update_revision, status.current_replicas) == (NEW, NEW, 3)
    status = plan(stateful(), pods("0' 1 2"), ROLLING, NOW).status
    assert (status.current_revision, status.updated_replicas) == (OLD, 2)


def test_stateful_set_being_deleted_changes_no_pods() -> None:
    item = stateful()
    item = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, deletion_timestamp="t"))
    assert did(plan(item, [], STABLE, NOW)) == ([], [])


@pytest.mark.parametrize(
    ("name", "want"), [("db-3", 3), ("db-x", None), ("other-1", None), ("db-1-2", None), ("db", None)]
)
def test_ordinals_of_names(name: str, want: int | None) -> None:
    assert ordinal_of("db", name) == want


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 5), st.integers(0, 6), st.booleans(), st.integers(0, 3), st.integers(0, 2**32))
def test_random_losses_disturb_one_pod_at_a_time(
    before: int, after: int, ordered: bool, losses: int, seed: int
) -> None:
    """Scale and update at once while pods are lost: at the end all are there and new."""
    chooser = random.Random(seed)  # noqa: S311
    policy = "OrderedReady" if ordered else "Parallel"
    world = {f"db-{n}": make_pod(f"db-{n}", labels={"controller-revision-hash": OLD}) for n in range(before)}
    status = StatefulSetStatus(current_replicas=before)
    for _ in range(300):
        item = stateful(after, podManagementPolicy=policy)
        item = msgspec.structs.replace(item, status=status)
        chosen = plan(item, world.values(), ROLLING, NOW)
        status = chosen.status
        if ordered:
            assert len(chosen.create) + len(chosen.delete) <= 1
        for ordinal, digest in chosen.create:
            name = f"db-{ordinal}"
            assert name not in world
            world[name] = make_pod(name, ready=False, labels={"controller-revision-hash": digest})
        for pod in chosen.delete:
            del world[pod.metadata.name]
        unready = [name for name, pod in world.items() if not pod.ready]
        if losses and world and chooser.random() < 0.1:
            losses -= 1
            del world[chooser.choice(sorted(world))]
        elif unready:
            name = chooser.choice(unready)
            world[name] = make_pod(name, labels=world[name].metadata.labels)
        elif not chosen.create and not chosen.delete and not losses:
            break
    assert sorted(world) == sorted(f"db-{n}" for n in range(after))
    assert {pod.metadata.labels["controller-revision-hash"] for pod in world.values()} <= {NEW}


def test_pods_and_claims_have_stable_names() -> None:
    item = stateful(
        volumeClaimTemplates=[{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
        selector={"matchLabels": {"app": "db"}},
    )
    body = pod_body(item, {"spec": {"volumes": [{"name": "data"}, {"name": "v"}]}}, 1, NEW)
    assert (body["metadata"]["name"], body["spec"]["hostname"], body["spec"]["subdomain"]) == (
        "db-1",
        "db-1",
        "db",
    )
    assert body["spec"]["volumes"] == [
        {"name": "v"}, {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-1"}},
    ]  # fmt: skip
    assert body["metadata"]["labels"] == {
        "controller-revision-hash": NEW,
        "statefulset.kubernetes.io/pod-name": "db-1",
        "apps.kubernetes.io/pod-index": "1",
    }
    claim = claim_body(item, item.spec.volume_claim_templates[0], "db-1")
    assert claim["metadata"] == {"name": "data-db-1", "namespace": "d", "labels": {"app": "db"}}
