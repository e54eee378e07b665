"""The record of an upgrade in its ConfigMap."""

import pytest
from tests.unit.upgrade.apply.scenario import make_plan

from podwire.errors import ConfigError
from podwire.upgrade.apply import record
from podwire.upgrade.apply.record import ObjectBefore, StepRecord

PLAN = make_plan()


def data(**steps: StepRecord) -> dict[str, str | None]:
    result: dict[str, str | None] = dict(record.plan_entry(PLAN))
    for name, entry in steps.items():
        result |= record.step_entry(name, entry)
    return result


def test_a_record_is_read_as_it_was_written() -> None:
    before = ObjectBefore(api_version="v1", kind="ConfigMap", namespace="a", name="b", patch={"data": {"x": None}})
    first, second = (step.id for step in PLAN.steps[:2])
    entries = {first: StepRecord(state="done", before=(before,)), second: StepRecord(state="begun")}
    held = record.held_entry(second, "node.example", held=True)
    parsed = record.parse({**data(**entries), **held})
    assert (parsed.plan, parsed.steps, parsed.held) == (PLAN, entries, ((second, "node.example"),))
    assert [step.id for step in parsed.pending()] == [step.id for step in PLAN.steps[1:]]
    assert [step.id for step in parsed.begun()] == [first, second] and parsed.state == "in progress"
    assert record.held_entry(second, "a", held=False) == {f"held.{second}.a": None}


def test_states_in_words() -> None:
    assert record.parse({}).state == "no upgrade was begun"
    ids = [step.id for step in PLAN.steps]
    assert record.parse(data(**dict.fromkeys(ids, StepRecord(state="done")))).state == "done"
    assert record.parse(data(**{ids[0]: StepRecord(state="reverting")})).state == "a step is being rolled back"


def test_a_record_changed_by_hand_is_refused_by_key() -> None:
    with pytest.raises(ConfigError, match=r"ConfigMap podwire-upgrade: data.plan: expected a plan"):
        record.parse({"plan": "{"})
    with pytest.raises(ConfigError, match=r"data.step.1-flannel: Invalid enum value 'begu'"):
        record.parse({**record.plan_entry(PLAN), "step.1-flannel": '{"state": "begu"}'})
