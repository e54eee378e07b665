"""The next actions of a pod, as tables: init containers, sidecars, restart policies, back-off."""

from typing import Any

import msgspec
import pytest

from podwire.embedded.kubelet.lifecycle import Actions, ContainerState, back_off, is_sidecar, plan
from podwire.embedded.kubelet.orders import ContainerRecord
from podwire.model.pod import Container, Pod


def pod(policy: str = "Always", *, init: tuple[str, ...] = (), sidecars: tuple[str, ...] = ()) -> Pod:
    inits: list[dict[str, Any]] = [{"name": name} for name in init]
    inits += [{"name": name, "restartPolicy": "Always"} for name in sidecars]
    spec = {"restartPolicy": policy, "initContainers": inits, "containers": [{"name": "a"}, {"name": "b"}]}
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)


def states(subject: Pod, **outlines: str) -> dict[str, ContainerState]:
    """``new``, ``runs`` (not started yet), ``started``, ``done`` (0), ``failed`` (1), ``waits`` (1, retry at 50)."""
    result = {}
    for container in subject.spec.init_containers + subject.spec.containers:
        word = outlines.get(container.name, "new")
        state = ContainerState(container, sidecar=is_sidecar(container))
        record = ContainerRecord(name=container.name, attempt=0, id="i", log="l", started_at="t")
        if word in ("runs", "started"):
            state.record, state.started = record, word == "started"
        elif word != "new":
            code = 0 if word == "done" else 1
            state.record = msgspec.structs.replace(record, finished_at="t", code=code)
            state.retry_at = 50.0 if word == "waits" else 0.0
        result[container.name] = state
    return result


PLAIN, NEVER, ON_FAILURE = pod(), pod("Never"), pod("OnFailure")
INIT = pod(init=("i", "j"))
SIDE = pod("Never", sidecars=("s",))


@pytest.mark.parametrize(
    ("subject", "outlines", "expected"),
    [
        (PLAIN, {}, Actions(("a", "b"))),
        (PLAIN, {"a": "started", "b": "started"}, Actions()),
        (PLAIN, {"a": "done", "b": "started"}, Actions(("a",))),
        (PLAIN, {"a": "waits", "b": "started"}, Actions(wake_at=50.0)),
        (NEVER, {"a": "done", "b": "started"}, Actions()),
        (NEVER, {"a": "done", "b": "done"}, Actions(phase="Succeeded")),
        (NEVER, {"a": "done", "b": "failed"}, Actions(phase="Failed")),
        (ON_FAILURE, {"a": "done", "b": "failed"}, Actions(("b",))),
        (ON_FAILURE, {"a": "done", "b": "done"}, Actions(phase="Succeeded")),
        (INIT, {}, Actions(("i",))),
        (INIT, {"i": "runs"}, Actions()),
        (INIT, {"i": "done"}, Actions(("j",))),
        (INIT, {"i": "failed"}, Actions(("i",))),
        (INIT, {"i": "waits"}, Actions(wake_at=50.0)),
        (INIT, {"i": "done", "j": "done"}, Actions(("a", "b"))),
        (INIT, {"i": "done", "j": "done", "a": "failed", "b": "started"}, Actions(("a",))),
        (pod("Never", init=("i",)), {"i": "failed"}, Actions(phase="Failed")),
        (SIDE, {}, Actions(("s",))),
        (SIDE, {"s": "runs"}, Actions()),
        (SIDE, {"s": "started"}, Actions(("a", "b"))),
        (SIDE, {"s": "failed", "a": "started", "b": "started"}, Actions(("s",))),
        (SIDE, {"s": "started", "a": "done", "b": "done"}, Actions(phase="Succeeded")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_next_actions(subject: Pod, outlines: dict[str, str], expected: Actions) -> None:
    assert plan(subject, states(subject, **outlines), now=10.0) == expected


def test_starting_container_is_not_started_again() -> None:
    containers = states(PLAIN)
    containers["a"].starting = True
    assert plan(PLAIN, containers, now=0.0) == Actions(("b",))


def test_back_off_doubles_and_resets_after_long_runs() -> None:
    waits, last = [], 0.0
    for _ in range(8):
        wait, last = back_off(last, 1.0)
        waits.append(wait)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    assert back_off(300.0, 700.0) == (0.0, 10.0)


def test_ephemeral_containers_start_at_once_and_run_once() -> None:
    subject = pod("Never", init=("i",))
    debug = msgspec.convert({"name": "d"}, Container)
    subject = msgspec.structs.replace(
        subject, spec=msgspec.structs.replace(subject.spec, ephemeral_containers=(debug,))
    )
    containers = states(subject, i="runs")
    containers["d"] = ContainerState(debug, ephemeral=True)
    assert plan(subject, containers, 0.0) == Actions(("d",))
    containers["d"].record = ContainerRecord(
        name="d", attempt=0, id="i", log="l", started_at="t", finished_at="t", code=1
    )
    assert plan(subject, containers, 0.0) == Actions()
    containers |= states(subject, i="done", a="done", b="done")
    assert plan(subject, containers, 0.0) == Actions(phase="Succeeded")
