"""How far a migration is, and where a run that was killed continues."""

import pytest

from podwire.errors import ConfigError
from podwire.install.migration.record import (
    MEANINGS,
    STEPS,
    Direction,
    MigrationRecord,
    NodeBefore,
    NodeRecord,
    entry,
    parse,
)


def finished(record: NodeRecord, direction: Direction) -> NodeRecord:
    while step := record.next_step(direction):
        record = record.after(direction, step)
    return record


def test_every_step_has_a_meaning() -> None:
    assert {step for steps in STEPS.values() for step in steps} == MEANINGS.keys()


@pytest.mark.parametrize("count", range(len(STEPS["apply"]) + 1))
def test_a_killed_run_continues_behind_each_recorded_step(count: int) -> None:
    record = NodeRecord(before=NodeBefore(kube_proxy="iptables"))
    for step in STEPS["apply"][:count]:
        record = record.after("apply", step)
    again = parse(entry("node-1", record)).node("node-1")
    assert again == record
    remaining = STEPS["apply"][count:]
    assert again.next_step("apply") == (remaining[0] if remaining else "")
    assert finished(again, "apply").state == "podwire"


@pytest.mark.parametrize("count", range(len(STEPS["apply"]) + 1))
def test_back_undoes_whatever_was_done(count: int) -> None:
    record = NodeRecord()
    for step in STEPS["apply"][:count]:
        record = record.after("apply", step)
    changed = count > 1
    assert record.next_step("back") == ("release" if changed else "")
    returned = finished(record, "back")
    assert returned.state == "old network"
    assert finished(returned, "apply").state == "podwire", "and there again"


def test_an_interrupted_way_back_is_shown_and_may_turn() -> None:
    record = finished(NodeRecord(), "apply").after("back", "release")
    assert record.state == "back: release"
    assert record.next_step("back") == "network-back"
    assert record.next_step("apply") == "check"


def test_wrong_records_are_refused_with_their_key() -> None:
    with pytest.raises(ConfigError, match=r"data\.direction: expected apply or back, got 'up'"):
        parse({"direction": "up"})
    with pytest.raises(ConfigError, match=r"data\.node\.a"):
        parse({"node.a": "{"})
    assert parse({}) == MigrationRecord()
