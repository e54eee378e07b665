"""The steps of a local cluster's upgrade, their order, and the order in which they are undone. Pure.

| step | what it replaces |
|---|---|
| ``supervisor`` | keeper and supervisor; every other process runs on and is adopted |
| ``apiserver`` | the API server; agents, DNS and controllers go on with what they know meanwhile |
| ``kinds`` | definitions of podwire's kinds and its roles; the only step that is not undone, since these only grow |
| ``controller`` | controllers and scheduler |
| ``kubelet-<node>``, ``agent-<node>`` | node by node, the canary first |
| ``dns``, ``gateway`` | pods, by the rolling update of their workload: kubelets run them in their own build |

API server before controllers, controllers before nodes: that is the order in which Kubernetes allows versions to
differ. Undoing goes through the nodes in reverse, then renews the pods, then the rest in reverse: pods run the build of
their kubelet, so they are renewed after kubelets in both directions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from podwire.errors import ConfigError

Kind = Literal["supervisor", "process", "kinds", "pods"]
Direction = Literal["apply", "rollback"]
State = Literal["pending", "running", "done", "undone"]
FORMAT = 1


class LocalBuild(msgspec.Struct, frozen=True):
    """A build by its folder and label, as :class:`podwire.local.builds.Build` has them."""

    root: str
    label: str


class LocalStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step; times are seconds since 1970, 0 where the step has not begun or ended."""

    id: str
    kind: Kind
    node: str = ""
    state: State = "pending"
    at: float = 0.0
    until: float = 0.0
    undone_at: float = 0.0
    undone_until: float = 0.0


class LocalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an upgrade, as it is stored in the cluster's folder; ``reason`` says why it goes back."""

    format: int = FORMAT
    before: LocalBuild
    after: LocalBuild
    direction: Direction = "apply"
    reason: str = ""
    began: float = 0.0
    ended: float = 0.0
    steps: tuple[LocalStep, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do in its direction."""
        return self.ended > 0


def steps_of(
    nodes: Sequence[str], canary: str, workloads: Iterable[str], *, agents: bool = True
) -> tuple[LocalStep, ...]:
    """The steps for these nodes and workloads of the cluster.

    Raises: ConfigError when the canary is no node.
    """
    if canary and canary not in nodes:
        raise ConfigError("--canary", "", f"{canary!r} is not a node of this cluster; the nodes are {', '.join(nodes)}")
    ordered = [canary, *(node for node in nodes if node != canary)] if canary else list(nodes)
    steps = [
        LocalStep(id="supervisor", kind="supervisor"),
        LocalStep(id="apiserver", kind="process"),
        LocalStep(id="kinds", kind="kinds"),
        LocalStep(id="controller", kind="process"),
    ]
    for node in ordered:
        steps.append(LocalStep(id=f"kubelet-{node}", kind="process", node=node))
        if agents:
            steps.append(LocalStep(id=f"agent-{node}", kind="process", node=node))
    steps += [LocalStep(id=name, kind="pods") for name in workloads]
    return tuple(steps)


def next_step(record: LocalRecord) -> LocalStep | None:
    """The step to do or to undo next; one that was interrupted is repeated. None: all is done."""
    if record.direction == "apply":
        return next((step for step in record.steps if step.state in ("pending", "running")), None)
    begun = [step for step in undo_order(record.steps) if step.state in ("running", "done")]
    return begun[0] if begun else None


def undo_order(steps: Sequence[LocalStep]) -> list[LocalStep]:
    """The steps in the order in which they are undone; ``kinds`` stays."""
    on_nodes = [step for step in reversed(steps) if step.node]
    pods = [step for step in steps if step.kind == "pods"]
    remaining = [step for step in reversed(steps) if not step.node and step.kind not in ("pods", "kinds")]
    if any(step.state != "pending" and step.id.startswith("kubelet-") for step in on_nodes):
        # Pods that started meanwhile on a node with the new kubelet run the new build, whatever their own step says.
        pods = [msgspec.structs.replace(step, state="done") if step.state == "pending" else step for step in pods]
    return [*on_nodes, *pods, *remaining]


def changed(record: LocalRecord, step: LocalStep) -> LocalRecord:
    """The record with a step in its new state."""
    steps = tuple(step if known.id == step.id else known for known in record.steps)
    return msgspec.structs.replace(record, steps=steps)


def begun(step: LocalStep, direction: Direction, now: float) -> LocalStep:
    """The step at its beginning; a repeated one keeps the time of its first try."""
    if direction == "apply":
        return msgspec.structs.replace(step, state="running", at=step.at or now)
    return msgspec.structs.replace(step, undone_at=step.undone_at or now)


def ended(step: LocalStep, direction: Direction, now: float) -> LocalStep:
    """The step at its end."""
    if direction == "apply":
        return msgspec.structs.replace(step, state="done", until=now)
    return msgspec.structs.replace(step, state="undone", undone_until=now)


def parse_record(data: bytes, source: str) -> LocalRecord:
    """The record in a file.

    Raises: ConfigError when it is damaged.
    """
    try:
        record = msgspec.json.decode(data, type=LocalRecord)
    except msgspec.DecodeError as failure:
        raise ConfigError(source, "", f"expected the record of an upgrade: {failure}") from failure
    return record


def lines(record: LocalRecord) -> list[str]:
    """The state of an upgrade in words."""
    meaning: Mapping[State, str] = {
        "pending": "not begun",
        "running": "interrupted",
        "done": "done",
        "undone": "undone",
    }
    head = f"{record.before.label} -> {record.after.label}: " + (
        "finished" if record.finished and record.direction == "apply"
        else "rolled back" if record.finished
        else "rolling back" if record.direction == "rollback"
        else "under way"
    )  # fmt: skip
    reason = [f"rolled back because: {record.reason}"] if record.reason else []
    return [head, *reason, *(f"{step.id}: {meaning[step.state]}" for step in record.steps)]
