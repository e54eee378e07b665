"""Events of resizes: one for each step, with the wanted resources and the generation of the pod."""

from typing import Any

import msgspec
import pytest

from podwire.embedded.kubelet.lifecycle import ContainerState
from podwire.embedded.kubelet.resizing import Resizer
from podwire.errors import KernelError
from podwire.model.pod import Pod, Resources

MEMORY = 64 << 20


class Record:
    """The run of a container."""

    def __init__(self, run: str) -> None:
        self.id = run
        self.finished = False


class Ledger:
    """The room of a node: what it lacks for ever, and now."""

    def __init__(self) -> None:
        self.never = self.now = ""

    def excess(self, _: Any) -> Any:
        return type("Excess", (), {"whole": self.never}) if self.never else None

    def shortage(self, *_: Any) -> str:
        return self.now

    def count(self, *_: Any) -> None:
        """Every amount is counted."""


class FakePod:
    """What the resizer sees of a pod, its node, its cgroups and its containers' end."""

    def __init__(self, *policies: dict[str, str]) -> None:
        self.node = self.wakeup = self
        self.ledger = Ledger()
        self.resize: Any = None
        self.events: list[tuple[str, str, str]] = []
        self.refusal = ""
        self.policies = policies
        self.want(1, "100m")
        first = self.pod.spec.containers[0]
        self.containers = {"c": ContainerState(first, record=Record("run-1"))}  # type: ignore[arg-type]

    def want(self, generation: int, cpu: str) -> None:
        resources = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu, "memory": "64Mi"}}
        container = {"name": "c", "resources": resources, "resizePolicy": list(self.policies)}
        meta = {"name": "p", "namespace": "n", "uid": "u", "generation": generation}
        self.pod = msgspec.convert({"metadata": meta, "spec": {"containers": [container]}}, Pod)

    def wake_in(self, seconds: float) -> None:
        """Tests make the steps themselves."""

    def event(self, severity: str, reason: str, message: str, *_: Any) -> None:
        self.events.append((severity, reason, message))

    def memory_bytes(self, _: str) -> int:
        return MEMORY // 2

    def limit(self, *_: Any) -> None:
        if self.refusal:
            raise KernelError("write cpu.max", self.refusal, 22)

    def stop_unhealthy(self, *_: Any) -> None:
        """The container ends later."""

    @property
    def told(self) -> list[tuple[str, str]]:
        """Severity and reason of the Events so far, which are forgotten."""
        events, self.events = self.events, []
        return [(severity, reason) for severity, reason, _ in events]


def settle(pod: FakePod, resizer: Resizer) -> list[tuple[str, str]]:
    resizer.settle()
    return pod.told


def resizer_of(pod: FakePod) -> Resizer:
    return Resizer(pod, pod, pod)  # type: ignore[arg-type]


def test_accepted_resize_starts_and_completes() -> None:
    pod = FakePod()
    resizer = resizer_of(pod)
    assert settle(pod, resizer) == []
    pod.want(2, "200m")
    resizer.settle()
    summary = (
        '{"containers":[{"name":"c","resources":{"limits":{"cpu":"200m","memory":"64Mi"},"requests":{"cpu":"200m"}}}'
    )
    assert pod.events == [
        ("Normal", "ResizeStarted", f'Pod resize started: {summary}],"generation":2}}'),
        ("Normal", "ResizeCompleted", f'Pod resize completed: {summary}],"generation":2}}'),
    ]
    pod.events.clear()
    assert settle(pod, resizer) == []


@pytest.mark.parametrize(("reason", "field"), [("Infeasible", "never"), ("Deferred", "now")])
def test_pending_resize_is_reported_once(reason: str, field: str) -> None:
    pod = FakePod()
    resizer = resizer_of(pod)
    pod.want(2, "4")
    setattr(pod.ledger, field, "not enough cpu")
    resizer.settle()
    ((severity, reported, message),) = pod.events
    assert (severity, reported) == ("Warning", f"Resize{reason}")
    assert message.startswith(f"Pod resize {reason}: ") and message.endswith('"generation":2,"error":"not enough cpu"}')
    pod.events.clear()
    assert settle(pod, resizer) == []
    pod.want(3, "5")
    assert settle(pod, resizer) == [("Warning", f"Resize{reason}")]
    setattr(pod.ledger, field, "")
    assert settle(pod, resizer) == [("Normal", "ResizeStarted"), ("Normal", "ResizeCompleted")]


def test_failed_resize_is_reported_until_it_succeeds() -> None:
    pod = FakePod()
    resizer = resizer_of(pod)
    pod.want(2, "200m")
    pod.refusal = "Invalid argument"
    assert settle(pod, resizer) == [("Normal", "ResizeStarted"), ("Warning", "ResizeError")]
    assert settle(pod, resizer) == []
    pod.refusal = ""
    assert settle(pod, resizer) == [("Normal", "ResizeCompleted")]


def test_restarting_container_completes_with_its_next_run() -> None:
    pod = FakePod({"resourceName": "cpu", "restartPolicy": "RestartContainer"})
    resizer = resizer_of(pod)
    pod.want(2, "200m")
    assert settle(pod, resizer) == [("Normal", "ResizeStarted")]
    assert settle(pod, resizer) == []
    pod.containers["c"].record = Record("run-2")  # type: ignore[assignment]
    assert settle(pod, resizer) == [("Normal", "ResizeCompleted")]


def test_resize_that_is_taken_back_sends_no_more_events() -> None:
    pod = FakePod()
    resizer = resizer_of(pod)
    pod.want(2, "4")
    pod.ledger.now = "not enough cpu"
    assert settle(pod, resizer) == [("Warning", "ResizeDeferred")]
    pod.want(3, "100m")
    assert settle(pod, resizer) == []
    assert pod.resize is None
    assert pod.containers["c"].spec.resources == Resources({"cpu": "100m"}, {"cpu": "100m", "memory": "64Mi"})
