"""Rolling updates: tables, and a simulated cluster that must keep the limits at every moment."""

import datetime
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.present import present
from tests.unit.embedded.workloads.sample_pods import NOW

from podwire.embedded.workloads import deploymentstatus, rollout
from podwire.embedded.workloads.rollout import Sets
from podwire.model.meta import Condition, ObjectMeta
from podwire.model.workload import (
    Deployment,
    DeploymentSpec,
    DeploymentStatus,
    ReplicaSet,
    ReplicaSetSpec,
    ReplicaSetStatus,
    RollingUpdate,
    Strategy,
)

Amount = int | str | None
"""A number of pods, or a percentage."""


def template(version: int) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": f"i:{version}"}]},
    }


def deployment(
    replicas: int = 10,
    version: int = 1,
    surge: Amount = "25%",
    unavailable: Amount = "25%",
    kind: str = "RollingUpdate",
    **spec: Any,
) -> Deployment:
    update = RollingUpdate(max_surge=surge, max_unavailable=unavailable)
    strategy = Strategy(type=kind, rolling_update=update)
    return Deployment(
        metadata=ObjectMeta(name="web", generation=1),
        spec=DeploymentSpec(replicas=replicas, template=template(version), strategy=strategy, **spec),
    )


def replicaset(
    version: int,
    replicas: int,
    available: int | None = None,
    *,
    age: int = 0,
    annotations: dict[str, str] | None = None,
) -> ReplicaSet:
    have = replicas if available is None else available
    return ReplicaSet(
        metadata=ObjectMeta(
            name=f"web-{version}",
            creation_timestamp=f"2026-01-01T00:00:{10 - age:02}Z",
            annotations=annotations or {},
        ),
        spec=ReplicaSetSpec(replicas=replicas, template=template(version)),
        status=ReplicaSetStatus(replicas=replicas, available_replicas=have, ready_replicas=have),
    )


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "want"),
    [
        (10, "25%", "25%", (3, 2)),
        (1, "25%", "25%", (1, 0)),
        (3, None, None, (1, 0)),
        (10, 0, 0, (0, 1)),
        (10, "0%", "0%", (0, 1)),
        (2, 5, "100%", (5, 2)),
        (4, "50%", 9, (2, 4)),
        (4, "x", "y", (1, 1)),
    ],
)
def test_limits(replicas: int, surge: Amount, unavailable: Amount, want: tuple[int, int]) -> None:
    limits = rollout.limits(deployment(replicas, surge=surge, unavailable=unavailable).spec)
    assert (limits.surge, limits.unavailable) == want


STEPS = [
    # replicas 10, surge 3, unavailable 2: (new spec, new available, old spec, old available) -> step
    ("grows to the surge", (0, 0, 10, 10), {"web-2": 3}),
    ("waits for the new to be available", (3, 0, 10, 10), {"web-1": 8}),
    ("then gives up old ones", (5, 0, 8, 8), {}),
    ("as new ones become available", (5, 3, 8, 8), {"web-1": 5}),
    ("gives up sick old ones first", (3, 0, 10, 6), {"web-1": 8}),
    ("sick ones do not block", (3, 0, 10, 0), {"web-1": 8}),
    ("is done", (10, 10, 0, 0), {}),
    ("shrinks the new when scaled down", (12, 12, 0, 0), {"web-2": 10}),
    ("last ones", (10, 10, 2, 2), {"web-1": 0}),
]


@pytest.mark.parametrize(("numbers", "want"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS])
def test_rolling_steps(numbers: tuple[int, int, int, int], want: dict[str, int]) -> None:
    new, new_ok, old, old_ok = numbers
    sets = Sets(replicaset(2, new, new_ok), (replicaset(1, old, old_ok, age=5),))
    assert rollout.rolling(deployment(10, 2).spec, sets) == want


def test_recreate() -> None:
    spec = deployment(3, 2, kind="Recreate").spec
    old, new = replicaset(1, 3), replicaset(2, 0)
    assert rollout.recreate(spec, Sets(new, (old,)), old_pods=3) == {"web-1": 0}
    closed = replicaset(1, 0)
    assert rollout.recreate(spec, Sets(new, (closed,)), old_pods=1) == {}
    assert rollout.recreate(spec, Sets(new, (closed,)), old_pods=0) == {"web-2": 3}
    assert rollout.maximum(spec) == 3


def test_partition_ignores_the_hash_label_and_takes_the_oldest() -> None:
    first = replicaset(2, 1, age=5)
    labelled = msgspec.structs.replace(
        first.spec,
        template={
            "metadata": {"labels": {"app": "a", "pod-template-hash": "x"}},
            "spec": first.spec.template["spec"],
        },
    )
    first = msgspec.structs.replace(first, spec=labelled)
    sets = rollout.partition(deployment(version=2), [replicaset(2, 1), replicaset(1, 1), first])
    assert sets.new is first
    assert [item.metadata.name for item in sets.old] == ["web-1", "web-2"]


def marked(item: ReplicaSet, desired: int, most: int) -> ReplicaSet:
    remarks = {rollout.DESIRED: str(desired), rollout.MAXIMUM: str(most)}
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, annotations=remarks))


def test_scaling_in_the_middle_of_a_rollout_is_proportional() -> None:
    spec = deployment(20, 2, surge=5, unavailable=2).spec
    sets = Sets(marked(replicaset(2, 7), 10, 15), (marked(replicaset(1, 8), 10, 15),))
    assert rollout.resized(spec, sets)
    sizes = rollout.scale(spec, sets)
    assert sum(sizes.values()) == 25
    assert sizes == {"web-2": 12, "web-1": 13}
    down = deployment(5, 2, surge=5, unavailable=2).spec
    sizes = rollout.scale(down, sets)
    assert sum(sizes.values()) == 10
    zero = deployment(0, 2, surge=5, unavailable=2).spec
    assert rollout.scale(zero, sets) == {"web-2": 0, "web-1": 0}


def test_scaling_one_set_and_none() -> None:
    spec = deployment(5).spec
    single = marked(replicaset(1, 3), 3, 4)
    assert rollout.scale(spec, Sets(single, ())) == {"web-1": 5}
    assert rollout.scale(spec, Sets(marked(replicaset(1, 5), 3, 4), ())) == {}
    assert rollout.scale(spec, Sets(None, ())) == {}
    assert not rollout.resized(spec, Sets(replicaset(1, 3), ()))


def test_revisions_and_annotations() -> None:
    old = replicaset(1, 0, annotations={rollout.REVISION: "3"})
    new = replicaset(2, 0, annotations={rollout.REVISION: "2", rollout.HISTORY: "1"})
    shown = deployment(4, 2)
    remarks = {"kubernetes.io/change-cause": "why", rollout.REVISION: "9",
             "kubectl.kubernetes.io/last-applied-configuration": "{}"}  # fmt: skip
    shown = msgspec.structs.replace(shown, metadata=ObjectMeta(name="web", annotations=remarks))
    assert rollout.set_annotations(shown, Sets(new, (old,))) == {
        rollout.REVISION: "4",
        rollout.HISTORY: "1,2",
        rollout.DESIRED: "4",
        rollout.MAXIMUM: "5",
        "kubernetes.io/change-cause": "why",
    }
    assert rollout.set_annotations(shown, Sets(None, ()))[rollout.REVISION] == "1"


def test_obsolete_sets_beyond_the_history() -> None:
    old = tuple(replicaset(n, 0, annotations={rollout.REVISION: str(n)}) for n in (3, 1, 2))
    spec = deployment(revision_history_limit=1).spec
    assert [item.metadata.name for item in rollout.obsolete(spec, Sets(None, old))] == ["web-1", "web-2"]
    busy = (replicaset(1, 1), *old)
    assert len(rollout.obsolete(spec, Sets(None, busy))) == 2


# --- a simulated cluster


class Cluster:
    """ReplicaSets whose pods get available in any order; deletions count at once."""

    def __init__(self, spec: DeploymentSpec, chooser: random.Random) -> None:
        self.spec = spec
        self.random = chooser
        self.sets: dict[str, ReplicaSet] = {}
        self.least = self.most = None

    def add(self, version: int, replicas: int, available: int | None) -> None:
        self.sets[f"web-{version}"] = replicaset(version, replicas, available, age=10 - len(self.sets))

    def scale(self, name: str, size: int) -> None:
        item = self.sets[name]
        available = min(item.status.available_replicas, size)
        status = ReplicaSetStatus(replicas=size, available_replicas=available)
        self.sets[name] = msgspec.structs.replace(
            item, spec=msgspec.structs.replace(item.spec, replicas=size), status=status
        )

    def some_become_available(self, good: set[str]) -> bool:
        waiting = [n for n, s in self.sets.items() if n in good and s.status.available_replicas < s.spec.replicas]
        if not waiting:
            return False
        name = self.random.choice(waiting)
        item = self.sets[name]
        status = msgspec.structs.replace(item.status, available_replicas=item.status.available_replicas + 1)
        self.sets[name] = msgspec.structs.replace(item, status=status)
        return True

    def totals(self) -> tuple[int, int]:
        every = self.sets.values()
        return sum(s.spec.replicas for s in every), sum(s.status.available_replicas for s in every)

    def step(self, shown: Deployment) -> bool:
        sets = rollout.partition(shown, tuple(self.sets.values()))
        if sets.new is None:
            version = shown.spec.template["spec"]["containers"][0]["image"][2:]
            self.add(version, rollout.first_size(shown.spec, sets.old), 0)
            return True
        scaling = rollout.rolling(shown.spec, sets)
        for name, size in scaling.items():
            self.scale(name, size)
        return bool(scaling)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 12),
    st.sampled_from([0, 1, 2, "25%", "100%"]),
    st.sampled_from([0, 1, 2, "25%", "100%"]),
    st.integers(0, 12),
    st.integers(0, 2**32),
)
def test_a_rollout_ends_and_keeps_within_its_limits(
    replicas: int, surge: Amount, unavailable: Amount, sick: int, seed: int
) -> None:
    shown = deployment(replicas, 2, surge=surge, unavailable=unavailable)
    limits = rollout.limits(shown.spec)
    chooser = random.Random(seed)  # noqa: S311
    cluster = Cluster(shown.spec, chooser)
    cluster.add(1, replicas, replicas - min(sick, replicas))
    least = min(replicas - limits.unavailable, replicas - min(sick, replicas))
    for _ in range(400):
        moved = cluster.step(shown) if chooser.random() < 0.5 else cluster.some_become_available({"web-2"})
        total, available = cluster.totals()
        assert total <= replicas + limits.surge
        assert available >= least
        if not moved and not cluster.step(shown) and not cluster.some_become_available({"web-2"}):
            break
    assert cluster.sets["web-1"].spec.replicas == 0
    assert cluster.sets["web-2"].status.available_replicas == replicas


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 10), st.integers(0, 2**32))
def test_bad_version_stays_within_limits_and_undo_repairs(replicas: int, seed: int) -> None:
    chooser = random.Random(seed)  # noqa: S311
    bad = deployment(replicas, 2)
    limits = rollout.limits(bad.spec)
    cluster = Cluster(bad.spec, chooser)
    cluster.add(1, replicas, replicas)
    while cluster.step(bad):
        total, available = cluster.totals()
        assert total <= replicas + limits.surge
        assert available >= replicas - limits.unavailable
    good = deployment(replicas, 1)
    for _ in range(200):
        if not cluster.step(good) and not cluster.some_become_available({"web-1"}):
            break
        total, available = cluster.totals()
        assert total <= replicas + limits.surge
        assert available >= replicas - limits.unavailable
    assert cluster.sets["web-1"].status.available_replicas == replicas
    assert cluster.sets["web-2"].spec.replicas == 0


# --- status


def status_of(shown: Deployment, *sets: ReplicaSet, event: Condition | None = None, after_s: float = 0) -> Deployment:
    now = NOW + datetime.timedelta(seconds=after_s)
    partition = rollout.partition(shown, sets)
    return msgspec.structs.replace(shown, status=deploymentstatus.plan(shown, partition, now, event))


def reasons(shown: Deployment) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in shown.status.conditions}


def test_conditions_of_a_rollout_past_its_deadline() -> None:
    shown = deployment(4, 2, progress_deadline_seconds=60)
    event = deploymentstatus.progressing("NewReplicaSetCreated", "x")
    shown = status_of(shown, replicaset(2, 4, 0), event=event)
    # The numbers moved at once, which is what is said then.
    assert reasons(shown) == {
        "Available": ("False", "MinimumReplicasUnavailable"), "Progressing": ("True", "ReplicaSetUpdated"),
    }  # fmt: skip
    assert 60 <= present(deploymentstatus.deadline_in_s(shown, NOW)) <= 61
    shown = status_of(shown, replicaset(2, 4, 3), after_s=10)
    assert reasons(shown)["Available"] == ("True", "MinimumReplicasAvailable")
    shown = status_of(shown, replicaset(2, 4, 3), after_s=75)
    assert reasons(shown)["Progressing"] == ("False", "ProgressDeadlineExceeded")
    shown = status_of(shown, replicaset(2, 4, 3), after_s=80)
    assert reasons(shown)["Progressing"] == ("False", "ProgressDeadlineExceeded")
    shown = status_of(shown, replicaset(2, 4, 4), after_s=90)
    assert reasons(shown)["Progressing"] == ("True", "NewReplicaSetAvailable")
    assert deploymentstatus.deadline_in_s(shown, NOW) is None
    again = status_of(shown, replicaset(2, 4, 4), after_s=500)
    assert again.status == shown.status


def test_numbers_and_pause() -> None:
    shown = deployment(4, 2, paused=True)
    pause = deploymentstatus.progressing("DeploymentPaused", "Deployment is paused", "Unknown")
    shown = status_of(shown, replicaset(2, 1, 1), replicaset(1, 4, 3, age=3), event=pause)
    status = shown.status
    assert isinstance(status, DeploymentStatus)
    assert (status.replicas, status.updated_replicas, status.available_replicas, status.unavailable_replicas) == (
        5, 1, 4, 1,
    )  # fmt: skip
    assert reasons(shown)["Progressing"] == ("Unknown", "DeploymentPaused")
    assert deploymentstatus.deadline_in_s(shown, NOW) is None
