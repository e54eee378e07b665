"""What a pod needs next: a pure function from its containers' states to starts and an end.

Init containers run one after another, each until it succeeds; one with ``restartPolicy: Always`` is a sidecar,
which has to be *started* before the next begins and then runs beside the others. The main containers start
together. A container that ends is started again as the pod's ``restartPolicy`` says: the first time at once, then
after 10 s, doubling to 300 s; one that ran for ten minutes begins anew. When no main container is to run again,
the pod has succeeded or failed, and its sidecars are stopped.

Ephemeral containers wait for nothing, run once, and have no say in whether the pod is ready or has ended.

Source: kubernetes pkg/kubelet/kuberuntime (computePodActions), KEP-753 (sidecars).
"""

import msgspec

from podwire.embedded.kubelet.orders import ContainerRecord
from podwire.model.pod import Container, Pod

FIRST_BACKOFF_S = 10.0
MAX_BACKOFF_S = 300.0
FORGET_S = 600.0


class ContainerState(msgspec.Struct):
    """One container as the kubelet sees it; ``retry_at`` on the monotonic clock, 0 for at once."""

    spec: Container
    sidecar: bool = False
    ephemeral: bool = False
    record: ContainerRecord | None = None
    previous: ContainerRecord | None = None
    attempts: int = 0
    """Runs so far, over all sandboxes; the next run's number."""
    backoff_s: float = 0.0
    retry_at: float = 0.0
    started: bool = False
    """Startup probe passed (or none) and postStart hook done."""
    ready: bool = False
    waiting: tuple[str, str] = ("", "")
    """Why it does not run: reason and message, when something else than order or back-off holds it."""
    starting: bool = False

    @property
    def running(self) -> bool:
        """Whether a process is there."""
        return self.record is not None and not self.record.finished

    @property
    def code(self) -> int | None:
        """The exit status of the last run, None while there is none."""
        return self.record.code if self.record is not None and self.record.finished else None


class Actions(msgspec.Struct, frozen=True):
    """What to do: containers to start now, when to look again, and the pod's final phase if it has ended."""

    start: tuple[str, ...] = ()
    wake_at: float | None = None
    phase: str = ""


def back_off(last_s: float, ran_s: float) -> tuple[float, float]:
    """The wait before the next start of a container that ran for ``ran_s``, and the wait after that one.

    ``last_s`` is what this function said for this time when the container ended before, 0 for a first end.
    """
    wait_s = 0.0 if ran_s >= FORGET_S else last_s
    return wait_s, FIRST_BACKOFF_S if wait_s == 0.0 else min(MAX_BACKOFF_S, wait_s * 2)


def should_restart(policy: str, code: int) -> bool:
    """Whether a container that ended with ``code`` runs again."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def is_sidecar(container: Container) -> bool:
    """Whether an init container runs beside the main ones."""
    return container.restart_policy == "Always"


class _Planner:
    """Collects starts and the earliest time to look again."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.start: list[str] = []
        self.wake_at: float | None = None

    def launch(self, state: ContainerState) -> None:
        """Starts a container now, or at its time."""
        if state.starting:
            return
        if state.retry_at <= self._now:
            self.start.append(state.spec.name)
        elif self.wake_at is None or state.retry_at < self.wake_at:
            self.wake_at = state.retry_at

    def actions(self, phase: str = "") -> Actions:
        """What was collected."""
        return Actions(tuple(self.start), self.wake_at, phase)


def plan(pod: Pod, states: dict[str, ContainerState], now: float) -> Actions:
    """The next actions of a pod that is not being deleted and whose sandbox is up."""
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
    """Whether every init container is done (sidecars: started)."""
    if any(states[container.name].record for container in pod.spec.containers):
        return True
    for container in pod.spec.init_containers:
        state = states[container.name]
        if not (state.started if state.sidecar else state.code == 0):
            return False
    return True
