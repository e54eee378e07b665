"""Decides which containers of a pod start next, and whether the pod has ended. Pure.

Init containers run one after another; each must succeed before the next starts. An init container with ``restartPolicy:
Always`` is a sidecar: the next container starts when the sidecar has *started*, and the sidecar keeps running. The main
containers start together. The pod's ``restartPolicy`` decides whether a container that ends is started again: the first
time at once, then after 10 s, doubling up to 300 s. After a run of ten minutes the delays start from the beginning.
When no main container will run again, the pod has succeeded or failed, and its sidecars are stopped.

Ephemeral containers wait for no other container and run once. Their state changes neither the readiness nor the end of
the pod.

Source: kubernetes pkg/kubelet/kuberuntime (computePodActions), KEP-753 (sidecars).
"""

from collections.abc import Iterable

import msgspec

from podwire.embedded.kubelet.orders import ContainerRecord
from podwire.model.pod import Container, Pod

FIRST_BACKOFF_S = 10.0
MAX_BACKOFF_S = 300.0
FORGET_S = 600.0


class ContainerState(msgspec.Struct):
    """The state of one container; ``retry_at`` is the earliest next start on the monotonic clock, 0 for at once."""

    spec: Container
    sidecar: bool = False
    ephemeral: bool = False
    record: ContainerRecord | None = None
    previous: ContainerRecord | None = None
    attempts: int = 0
    """Number of runs so far in all sandboxes, which is also the number of the next run."""
    backoff_s: float = 0.0
    retry_at: float = 0.0
    started: bool = False
    """Whether the startup probe has passed, if there is one, and the postStart hook has ended."""
    ready: bool = False
    waiting: tuple[str, str] = ("", "")
    """Reason and message why the container does not run; empty when it only waits for its turn."""
    starting: bool = False

    @property
    def running(self) -> bool:
        """Whether the container's process runs."""
        return self.record is not None and not self.record.finished

    @property
    def code(self) -> int | None:
        """The exit status of the last run; None before the first run ends and while the container runs."""
        return self.record.code if self.record is not None and self.record.finished else None


class Actions(msgspec.Struct, frozen=True):
    """Containers to start now, the monotonic time of the next plan (None: on change), the phase of a pod that ended."""

    start: tuple[str, ...] = ()
    wake_at: float | None = None
    phase: str = ""


def back_off(last_s: float, ran_s: float) -> tuple[float, float]:
    """The delay before the next start of a container that ran for ``ran_s``, and the delay before the start after that.

    ``last_s`` is the second value of the previous call for the container, 0 when the container ended for the first
    time.
    """
    wait_s = 0.0 if ran_s >= FORGET_S else last_s
    return wait_s, FIRST_BACKOFF_S if wait_s == 0.0 else min(MAX_BACKOFF_S, wait_s * 2)


def should_restart(policy: str, code: int) -> bool:
    """Whether a container that ended with ``code`` is started again under a restart policy."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def is_sidecar(container: Container) -> bool:
    """Whether an init container is a sidecar, which runs beside the main containers."""
    return container.restart_policy == "Always"


def is_listed(container: Container, listed: Iterable[Container]) -> bool:
    """Whether a container is one of a list; its resources may differ while a resize is not over."""
    return any(other.name == container.name for other in listed)


class _Planner:
    """Collects the containers to start and the earliest time of the next plan."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.start: list[str] = []
        self.wake_at: float | None = None

    def launch(self, state: ContainerState) -> None:
        """Starts a container now, or asks for a plan at the container's next start."""
        if state.starting:
            return
        if state.retry_at <= self._now:
            self.start.append(state.spec.name)
        elif self.wake_at is None or state.retry_at < self.wake_at:
            self.wake_at = state.retry_at

    def actions(self, phase: str = "") -> Actions:
        """The collected actions."""
        return Actions(tuple(self.start), self.wake_at, phase)


def plan(pod: Pod, states: dict[str, ContainerState], now: float) -> Actions:
    """The next actions of a pod that is not being deleted and whose sandbox runs."""
    planner = _Planner(now)
    spec = pod.spec
    for container in spec.ephemeral_containers:
        if states[container.name].record is None:
            planner.launch(states[container.name])
    underway = any(states[container.name].record for container in spec.containers)
    for container in spec.init_containers:
        verdict = _plan_init(states[container.name], spec.restart_policy, planner, underway=underway)
        if verdict != "next":
            return planner.actions("Failed" if verdict == "failed" else "")
    codes: list[int] = []
    for container in spec.containers:
        state = states[container.name]
        if state.running or state.code is None or should_restart(spec.restart_policy, state.code):
            if not state.running:
                planner.launch(state)
        else:
            codes.append(state.code)
    if len(codes) < len(spec.containers):
        return planner.actions()
    return Actions(phase="Failed" if any(codes) else "Succeeded")


def _plan_init(state: ContainerState, policy: str, planner: _Planner, *, underway: bool) -> str:
    if state.sidecar:
        if not state.running:
            planner.launch(state)
        return "next" if underway or (state.running and state.started) else "wait"
    if underway or state.code == 0:
        return "next"
    if state.running:
        return "wait"
    if state.code is not None and policy == "Never":
        return "failed"
    planner.launch(state)
    return "wait"


def initialized(pod: Pod, states: dict[str, ContainerState]) -> bool:
    """Whether every init container has succeeded and every sidecar has started."""
    if any(states[container.name].record for container in pod.spec.containers):
        return True
    for container in pod.spec.init_containers:
        state = states[container.name]
        if not (state.started if state.sidecar else state.code == 0):
            return False
    return True
