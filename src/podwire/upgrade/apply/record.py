"""How far an upgrade is: a ConfigMap, as values. Pure.

The ConfigMap ``podwire-upgrade`` has the key ``plan`` (the whole plan), ``step.<id>`` for each step that was begun (its
state, and the fields of its objects from before, for the way back), and ``held.<id>.<node>`` while a node's network
configuration is held by a file of the step. A step is recorded before its first change, so a run that was killed
continues, or goes back, from what the record says.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError
from podwire.model.meta import Fact
from podwire.upgrade.plan.values import UpgradePlan, UpgradeStep, parse_plan

NAME = "podwire-upgrade"
"""The name of the ConfigMap and of the Lease."""
PLAN = "plan"
_STEP = "step."
_HELD = "held."
StepState = Literal["begun", "done", "reverting"]


class ObjectBefore(Fact, frozen=True, kw_only=True):
    """The fields of one object as they were before the step: the patch that takes the step back."""

    api_version: str
    kind: str
    namespace: str = ""
    name: str
    patch: dict[str, Any]

    @property
    def title(self) -> str:
        """As ``DaemonSet kube-system/kube-proxy``."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class StepRecord(Fact, frozen=True, kw_only=True):
    """One step that was begun."""

    state: StepState
    before: tuple[ObjectBefore, ...] = ()
    """In the order of the changes."""


class UpgradeRecord(Fact, frozen=True, kw_only=True):
    """The whole upgrade; ``plan`` None: none was begun."""

    plan: UpgradePlan | None = None
    steps: Mapping[str, StepRecord] = {}
    held: tuple[tuple[str, str], ...] = ()
    """(step, node) whose network configuration is held."""

    def pending(self) -> tuple[UpgradeStep, ...]:
        """The steps that are not done, in their order."""
        steps = self.plan.steps if self.plan is not None else ()
        return tuple(step for step in steps if step.id not in self.steps or self.steps[step.id].state != "done")

    def begun(self) -> tuple[UpgradeStep, ...]:
        """The steps that were begun, in their order."""
        steps = self.plan.steps if self.plan is not None else ()
        return tuple(step for step in steps if step.id in self.steps)

    @property
    def state(self) -> str:
        """In words."""
        if self.plan is None:
            return "no upgrade was begun"
        if any(step.state == "reverting" for step in self.steps.values()):
            return "a step is being rolled back"
        return "in progress" if self.pending() else "done"


def parse(data: Mapping[str, Any]) -> UpgradeRecord:
    """The record in the data of the ConfigMap.

    Raises: ConfigError naming the key.
    """
    source = f"ConfigMap {NAME}"
    if PLAN not in data:
        return UpgradeRecord()
    plan = parse_plan(str(data[PLAN]), f"{source}: data.{PLAN}")
    steps, held = {}, []
    for key, text in data.items():
        if key.startswith(_STEP):
            try:
                steps[key.removeprefix(_STEP)] = msgspec.json.decode(str(text), type=StepRecord)
            except msgspec.DecodeError as failure:
                raise ConfigError(source, f"data.{key}", str(failure)) from failure
        elif key.startswith(_HELD):
            step, _, node = key.removeprefix(_HELD).partition(".")
            held.append((step, node))
    return UpgradeRecord(plan=plan, steps=steps, held=tuple(sorted(held)))


def plan_entry(plan: UpgradePlan) -> dict[str, str]:
    """The key and the value of the plan."""
    return {PLAN: msgspec.json.encode(plan).decode()}


def step_entry(step: str, record: StepRecord | None) -> dict[str, str | None]:
    """The key and the value of a step; None removes it."""
    return {f"{_STEP}{step}": msgspec.json.encode(record).decode() if record is not None else None}


def held_entry(step: str, node: str, *, held: bool) -> dict[str, str | None]:
    """The key and the value of a node whose configuration is held."""
    return {f"{_HELD}{step}.{node}": "held" if held else None}
