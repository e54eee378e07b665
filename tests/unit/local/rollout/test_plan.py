"""The steps of a local upgrade, their order in both directions, and the record."""

import msgspec
import pytest

from podwire.errors import ConfigError
from podwire.local.rollout import plan
from podwire.local.rollout.plan import LocalBuild, LocalRecord

BUILDS = LocalBuild("/a", "0.1.0+aaaa"), LocalBuild("/b", "0.1.0+bbbb")


def record(*, direction: plan.Direction = "apply", done: int = 0) -> LocalRecord:
    steps = plan.steps_of(["node-1", "node-2"], "node-2", ["dns", "gateway"])
    steps = tuple(
        msgspec.structs.replace(step, state="done" if number < done else "pending") for number, step in enumerate(steps)
    )
    return LocalRecord(before=BUILDS[0], after=BUILDS[1], direction=direction, steps=steps)


def run(record: LocalRecord) -> list[str]:
    """The steps that are done, or undone, one after the other."""
    order: list[str] = []
    while (step := plan.next_step(record)) is not None:
        step = plan.begun(step, record.direction, 1.0)
        step = plan.ended(step, record.direction, 2.0)
        record = plan.changed(record, step)
        order.append(step.id)
    return order


def test_the_canary_comes_before_other_nodes() -> None:
    assert run(record()) == [
        "supervisor", "apiserver", "kinds", "controller", "kubelet-node-2", "agent-node-2", "kubelet-node-1",
        "agent-node-1", "dns", "gateway",
    ]  # fmt: skip


def test_going_back_renews_pods_after_kubelets() -> None:
    assert run(record(direction="rollback", done=10)) == [
        "agent-node-1", "kubelet-node-1", "agent-node-2", "kubelet-node-2", "dns", "gateway", "controller",
        "apiserver", "supervisor",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("done", "undone"),
    [
        (0, []),
        (1, ["supervisor"]),
        (3, ["apiserver", "supervisor"]),
        (5, ["kubelet-node-2", "dns", "gateway", "controller", "apiserver", "supervisor"]),
    ],
)
def test_going_back_from_the_middle_undoes_what_was_done(done: int, undone: list[str]) -> None:
    assert run(record(direction="rollback", done=done)) == undone


def test_an_interrupted_step_is_repeated_and_keeps_its_first_time() -> None:
    first = plan.begun(record().steps[0], "apply", 5.0)
    again = plan.next_step(plan.changed(record(), first))
    assert again is not None and (again.id, plan.begun(again, "apply", 9.0).at) == ("supervisor", 5.0)


def test_an_unknown_canary_is_refused() -> None:
    with pytest.raises(ConfigError, match="--canary: 'node-9' is not a node of this cluster; the nodes are node-1"):
        plan.steps_of(["node-1"], "node-9", [])


def test_without_a_network_there_are_no_agents() -> None:
    assert [step.id for step in plan.steps_of(["node-1"], "", [], agents=False)][-1] == "kubelet-node-1"


def test_the_record_is_read_back_and_described() -> None:
    stopped = record(done=2)
    assert plan.parse_record(msgspec.json.encode(stopped), "record.json") == stopped
    assert plan.lines(stopped)[:3] == ["0.1.0+aaaa -> 0.1.0+bbbb: under way", "supervisor: done", "apiserver: done"]
    back = msgspec.structs.replace(stopped, direction="rollback", reason="2 messages were lost", ended=3.0)
    assert plan.lines(back)[:2] == [
        "0.1.0+aaaa -> 0.1.0+bbbb: rolled back", "rolled back because: 2 messages were lost",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="expected the record of an upgrade"):
        plan.parse_record(b"{}", "record.json")
