"""Runs one pod, from its assignment to the node until its object and its directory are gone.

One task per pod takes steps: look at the object and the containers, plan, act, report. What happens outside (the
object changes, a container ends, a probe turns) only wakes it, so nothing of a pod runs twice at once.

What is to be told of it goes through :mod:`podwire.embedded.kubelet.reporter`.
"""

import asyncio
from pathlib import Path

import msgspec

from podwire.embedded.kubelet.containers import compile_order
from podwire.embedded.kubelet.context import Surroundings
from podwire.embedded.kubelet.environment import PodFacts
from podwire.embedded.kubelet.execution import Ends, Setting, run_command
from podwire.embedded.kubelet.lifecycle import State, back_off, is_sidecar, plan, should_restart
from podwire.embedded.kubelet.orders import Answer, PodRecord, Record
from podwire.embedded.kubelet.prober import Prober
from podwire.embedded.kubelet.probing import Kind, ProbeState
from podwire.embedded.kubelet.provisions import Provisions
from podwire.embedded.kubelet.reporter import Reporter
from podwire.embedded.kubelet.sandbox import Sandbox, explain
from podwire.embedded.kubelet.status import Json, render_status
from podwire.embedded.kubelet.status import Sandbox as SandboxStatus
from podwire.embedded.kubelet.stopping import Stopper
from podwire.embedded.kubelet.traffic import Outcome
from podwire.errors import (
    ApiError,
    ApiUnreachable,
    ClusterError,
    CniError,
    ConfigError,
    KernelError,
    ProtocolError,
)
from podwire.kube.events import Severity, reference
from podwire.model.meta import Condition
from podwire.model.pod import Container, Pod
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import parse_rfc3339, rfc3339
from podwire.runtime.files import write_atomically

_SLOW_START_S = 1.0
_FIRST_PROBE_S = 0.05
_RETRY_S = 2.0
_NETWORK_S = 0.1
_OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


class PodWorker:
    """The task of one pod; also the target of its probes."""

    def __init__(self, pod: Pod, around: Surroundings, record: PodRecord | None = None) -> None:
        self.pod = pod
        self.around = around
        self.gone = False
        """Whether the object is no longer in the API."""
        self.states: dict[str, State] = {}
        self.exits: dict[str, asyncio.Event] = {}
        self._take_containers(pod)
        meta = pod.metadata
        fresh = PodRecord(uid=meta.uid, namespace=meta.namespace, name=meta.name)
        self.sandbox = Sandbox(around.ground, record or fresh, self._on_event)
        self.sandbox.lost = self._on_lost
        self.ends = Ends()
        self.probers: dict[str, Prober] = {}
        self.settings: dict[str, Setting] = {}
        self._log = Log("kubelet.pod")
        self._wake = asyncio.Event()
        self._wake_at: float | None = None
        self._adopted = record is not None
        self._lost = False
        self._verdict = SandboxStatus()
        self.conditions: tuple[Condition, ...] = pod.status.conditions
        """As they are stored, own ones and others'."""
        self._provisions = Provisions(self)
        self._backoff = Backoff(0.5, 30.0)
        self._reporter = Reporter(self)
        self._stopper = Stopper(self)
        self._over = False

    def _take_containers(self, pod: Pod) -> None:
        """Begins with the containers that are new: all of them at first, later ephemeral ones."""
        spec = pod.spec
        for container in spec.init_containers + spec.containers + spec.ephemeral_containers:
            if container.name not in self.states:
                ephemeral = container in spec.ephemeral_containers
                sidecar = container in spec.init_containers and is_sidecar(container)
                self.states[container.name] = State(container, sidecar=sidecar, ephemeral=ephemeral)
                self.exits[container.name] = asyncio.Event()

    # -- what wakes the worker

    def update(self, pod: Pod | None) -> None:
        """The object changed, or (None) has gone from the API."""
        if pod is None:
            self.gone = True
        else:
            self._provisions.dirty |= _shown(pod) != _shown(self.pod)
            self.pod = pod
            self._take_containers(pod)
            own = tuple(c for c in self.conditions if c.type in _OWN_CONDITIONS)
            foreign = tuple(c for c in pod.status.conditions if c.type not in _OWN_CONDITIONS)
            self.conditions = (own or pod.status.conditions) + (foreign if own else ())
        self._stopper.hurry()
        self.wake()

    def refresh_volumes(self) -> None:
        """An object that the pod's volumes may show has changed."""
        self._provisions.dirty = True
        for state in self.states.values():
            if state.waiting[0] in ("CreateContainerConfigError", "ContainerCreating"):
                state.retry_at = 0.0
        self.wake()

    def wake(self) -> None:
        """Makes the worker take a step."""
        self._wake.set()

    def _on_event(self, answer: Answer) -> None:
        if not answer.container:
            self.ends.note(answer)
            return
        state = self.states.get(answer.container)
        if state is not None and state.record is not None and state.record.attempt == answer.attempt:
            self._read_record(state, answer.attempt)
        self.wake()

    def _on_lost(self) -> None:
        self._lost = True
        self.ends.lose()
        self.wake()

    def _on_probe(self, state: State, prober: Prober, kind: Kind, verdict: ProbeState, outcome: Outcome) -> None:
        if not outcome.success:
            self.event("Warning", "Unhealthy", f"{kind.value} probe failed: {outcome.message}", state.spec)
        if prober is self.probers.get(state.spec.name):
            self._take_verdicts(state, prober)
            if prober.verdicts.kill:
                self._stopper.stop_unwell(state, f"{prober.verdicts.kill}, will be restarted")
        self.wake()

    def _take_verdicts(self, state: State, prober: Prober) -> None:
        state.started = prober.verdicts.started and not state.starting
        state.ready = state.started and prober.verdicts.ready and state.running

    # -- the loop

    async def run(self) -> None:
        """Returns when the pod has left the node."""
        self.sandbox.containers.mkdir(parents=True, exist_ok=True)
        if self._adopted:
            self._adopt()
        while not self._over:
            self._wake.clear()
            self._wake_at = None
            await self._step()
            if not self._over:
                await self._sleep()

    async def _sleep(self) -> None:
        if self._wake_at is None:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, self._wake_at - self.now())):
                await self._wake.wait()
        except TimeoutError:
            pass

    def now(self) -> float:
        """Monotonic seconds."""
        return self.around.clock.monotonic()

    def wake_in(self, seconds: float) -> None:
        """Makes the worker look again after some time at the latest."""
        at = self.now() + seconds
        self._wake_at = at if self._wake_at is None else min(at, self._wake_at)

    async def _step(self) -> None:
        if self._lost:
            await self._clear_lost()
        if self.gone or self.pod.metadata.deletion_timestamp is not None:
            self._over = await self._stopper.terminate()
            return
        if self._verdict.phase:
            await self._stopper.rest()
            await self.report()
            return
        if self._overdue():
            message = "Pod was active on the node longer than the specified deadline"
            await self._end("Failed", "DeadlineExceeded", message)
            return
        if not self.sandbox.up and not await self._make_sandbox():
            return
        await self._advance()

    async def _advance(self) -> None:
        while self.sandbox.up:
            actions = plan(self.pod, self.states, self.now())
            if actions.phase:
                await self._end(actions.phase)
                return
            if actions.wake_at is not None:
                self.wake_in(actions.wake_at - self.now())
            if not actions.start:
                break
            for name in actions.start:
                await self._start(self.states[name])
        await self._settle_probes()
        await self._refresh()
        await self.report()

    def _overdue(self) -> bool:
        deadline = self.pod.spec.active_deadline_seconds
        if deadline is None or not self.sandbox.record.started_at:
            return False
        since = parse_rfc3339(self.sandbox.record.started_at)
        left = deadline - (self.around.clock.now() - since).total_seconds()
        if left > 0:
            self.wake_in(left)
        return left <= 0

    async def _end(self, phase: str, reason: str = "", message: str = "") -> None:
        self._verdict = msgspec.structs.replace(self._verdict, phase=phase, reason=reason, message=message)
        if reason:
            self.event("Normal", reason, message)
        await self._stopper.rest()
        await self.report(urgent=True)

    # -- sandbox

    async def _make_sandbox(self) -> bool:
        if self.around.ground.network.problem is not None and not self.pod.spec.host_network:
            self.wake_in(_NETWORK_S)
            await self.report()
            return False
        started = self.sandbox.record.started_at or rfc3339(self.around.clock.now())
        self.sandbox.record = msgspec.structs.replace(self.sandbox.record, started_at=started)
        slow = asyncio.get_running_loop().call_later(_SLOW_START_S, self.around.tasks_start, "slow", self.report)
        try:
            await self.sandbox.create(self.pod)
        except (CniError, KernelError, ClusterError, OSError) as failure:
            self.event("Warning", "FailedCreatePodSandBox", explain(failure))
            await self.sandbox.remove()
            self.wake_in(self._backoff.next_delay_s())
            await self.report()
            return False
        finally:
            slow.cancel()
        self._backoff.reset()
        return True

    async def _clear_lost(self) -> None:
        """The shim has gone, and with it every container: what is left is cleared away."""
        self._lost = False
        self.event("Normal", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
        for state in self.states.values():
            if state.running and state.record is not None:
                self._finish_record(state, 137, "ContainerStatusUnknown")
            if self.pod.spec.restart_policy != "Never" and not state.ephemeral:
                state.previous = state.record or state.previous
                state.record, state.waiting, state.retry_at = None, ("", ""), 0.0
        await self.sandbox.remove()

    def _finish_record(self, state: State, code: int, reason: str) -> None:
        assert state.record is not None
        now = rfc3339(self.around.clock.now())
        state.record = msgspec.structs.replace(state.record, finished_at=now, code=code, reason=reason)
        write_atomically(self._record_path(state, state.record.attempt), msgspec.json.encode(state.record))
        self._ended(state)

    def _adopt(self) -> None:
        """Takes over what a former kubelet started."""
        listed = {s.name: s for s in self.pod.status.container_statuses + self.pod.status.init_container_statuses}
        alive = self.sandbox.adopt()
        if self.pod.status.phase in ("Succeeded", "Failed"):
            self._verdict = msgspec.structs.replace(self._verdict, phase=self.pod.status.phase)
        for name, state in self.states.items():
            runs = sorted(int(p.stem.rpartition(".")[2]) for p in self.sandbox.containers.glob(f"{name}.*.json"))
            if not runs:
                continue
            state.attempts = runs[-1] + 1
            state.backoff_s = back_off(0.0, 0.0)[1] if state.attempts > 1 else 0.0
            if len(runs) > 1:
                state.previous = self._load(state, runs[-2])
            state.record = self._load(state, runs[-1])
            if state.running and alive and not state.ephemeral:
                self._begin_probes(state, ready=name in listed and listed[name].ready)
        if not alive and self.sandbox.record.sandbox and not self._verdict.phase:
            self._lost = True

    # -- containers

    def _record_path(self, state: State, attempt: int) -> Path:
        return self.sandbox.containers / f"{state.spec.name}.{attempt}.json"

    def _load(self, state: State, attempt: int) -> Record | None:
        try:
            return msgspec.json.decode(self._record_path(state, attempt).read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError):
            return None

    async def _start(self, state: State) -> None:
        client, name = self.sandbox.client, state.spec.name
        if client is None:
            return
        try:
            supplies = await self._provisions.supply()
            order = compile_order(state, state.attempts, supplies)
        except ConfigError as failure:
            self._hold(state, "CreateContainerConfigError", failure.problem, "Failed")
            return
        except (ApiError, ApiUnreachable, ProtocolError, OSError, TimeoutError) as failure:
            self._hold(state, "ContainerCreating", f"MountVolume.SetUp failed: {failure}", "FailedMount")
            return
        attempt, state.attempts = state.attempts, state.attempts + 1
        self.event("Normal", "Pulled", f'Container image "{state.spec.image}" already present on machine', state.spec)
        self.exits[name].clear()
        self.settings[name] = Setting(name, order.env, order.cwd)
        try:
            answer = await client.start(order)
        except ClusterError:
            return
        self.event("Normal", "Created", f"Container created: {name}", state.spec)
        state.previous, state.waiting = state.record or state.previous, ("", "")
        self._read_record(state, attempt)
        if answer.problem:
            self.event("Warning", "Failed", f"Error: {answer.problem}", state.spec)
            return
        self.event("Normal", "Started", f"Container started: {name}", state.spec)
        self._forget(state, attempt - 2)
        if state.running and not state.ephemeral:
            self._begin_probes(state)

    def _hold(self, state: State, reason: str, message: str, event: str) -> None:
        shown = message if reason == "CreateContainerConfigError" else ""
        if state.waiting != (reason, shown):
            self.event("Warning", event, f"Error: {message}" if event == "Failed" else message, state.spec)
        state.waiting = (reason, shown)
        state.retry_at = self.now() + _RETRY_S
        self._provisions.dirty = True

    def _forget(self, state: State, attempt: int) -> None:
        for path in self.sandbox.containers.glob(f"{state.spec.name}.{attempt}.*"):
            path.unlink(missing_ok=True)

    def _begin_probes(self, state: State, *, ready: bool = False) -> None:
        container = state.spec
        setting = self.settings.get(container.name) or Setting(container.name, {})

        def changed(kind: Kind, verdict: ProbeState, outcome: Outcome) -> None:
            self._on_probe(state, prober, kind, verdict, outcome)

        prober = self.probers[container.name] = Prober(container, setting, self, self.around.clock, changed)
        hook = container.lifecycle.post_start if container.lifecycle is not None else None
        if hook is not None and not ready:
            state.starting = True
            self.around.tasks_start("postStart", self._post_start, state, prober)
            return
        prober.begin(ready=ready)
        self._take_verdicts(state, prober)

    async def _post_start(self, state: State, prober: Prober) -> None:
        hook = state.spec.lifecycle.post_start if state.spec.lifecycle is not None else None
        outcome = await prober.run_hook(hook, 3600.0) if hook is not None else Outcome(True)
        state.starting = False
        if self.probers.get(state.spec.name) is not prober:
            return
        if outcome.success:
            prober.begin()
            self._take_verdicts(state, prober)
        else:
            self.event("Warning", "FailedPostStartHook", f"PostStartHook failed: {outcome.message}", state.spec)
            self._stopper.stop_unwell(state, "FailedPostStartHook")
        self.wake()

    async def _refresh(self) -> None:
        """Brings volumes up to date while containers run; a failure is tried again later."""
        try:
            renew_at = await self._provisions.refresh()
        except (ConfigError, ApiError, ApiUnreachable, ProtocolError, OSError, TimeoutError) as failure:
            self._log.warning("volumes not refreshed", pod=self.pod.metadata.name, problem=failure)
            self.wake_in(self._backoff.next_delay_s())
            return
        if renew_at:
            self.wake_in(renew_at - self.now())

    async def _settle_probes(self) -> None:
        waits = [p.first_readiness.wait() for p in self.probers.values() if not p.first_readiness.is_set()]
        if waits:
            try:
                async with asyncio.timeout(_FIRST_PROBE_S):
                    await asyncio.gather(*waits)
            except TimeoutError:
                pass

    def _read_record(self, state: State, attempt: int) -> None:
        record = self._load(state, attempt)
        was_over = state.record is not None and state.record.attempt == attempt and state.record.finished
        if record is None or was_over:
            return
        state.record = record
        if record.finished:
            self._ended(state)

    def _ended(self, state: State) -> None:
        record, name = state.record, state.spec.name
        assert record is not None
        state.ready = state.started = state.starting = False
        prober = self.probers.pop(name, None)
        if prober is not None:
            self.around.tasks_start("end probes", prober.end)
        if not record.message:
            message = self.sandbox.message(name, record.attempt)
            state.record = record = msgspec.structs.replace(record, message=message)
        self.exits[name].set()
        if state.ephemeral:
            return
        ran_s = (parse_rfc3339(record.finished_at) - parse_rfc3339(record.started_at)).total_seconds()
        wait_s, state.backoff_s = back_off(state.backoff_s, ran_s)
        state.retry_at = self.now() + wait_s
        policy = "Always" if state.sidecar else self.pod.spec.restart_policy
        if should_restart(policy, record.code) and wait_s and not self._stopper.busy:
            self._back_off(state, wait_s)

    def _back_off(self, state: State, wait_s: float) -> None:
        meta, name = self.pod.metadata, state.spec.name
        where = f"container={name} pod={meta.name}_{meta.namespace}({meta.uid})"
        state.waiting = ("CrashLoopBackOff", f"back-off {wait_s:g}s restarting failed {where}")
        text = f"Back-off restarting failed container {name} in pod {meta.name}_{meta.namespace}({meta.uid})"
        self.event("Warning", "BackOff", text, state.spec)

    def facts(self) -> PodFacts:
        """What the downward API tells."""
        around = self.around
        return PodFacts(
            self.pod, around.ground.node, self.sandbox.record.ips, around.ground.addresses, around.allocatable
        )

    # -- probes' target

    @property
    def address(self) -> str:
        """The pod's first address."""
        return next(iter(self.sandbox.record.ips), "127.0.0.1")

    async def execute(self, setting: Setting, command: tuple[str, ...], timeout_s: float) -> Outcome:
        """Runs a command in a container."""
        client = self.sandbox.client
        if client is None:
            return Outcome(False, "the container is not running")
        return await run_command(client, self.ends, setting, command, timeout_s)

    # -- telling

    def event(self, severity: Severity, reason: str, message: str, container: Container | None = None) -> None:
        """Notes an Event of the pod; ordinary ones are held back a little, so that starting comes first."""
        subject = reference("v1", "Pod", self.pod.metadata)
        if container is not None:
            spec = self.pod.spec
            kind = "initContainers" if container in spec.init_containers else "containers"
            kind = "ephemeralContainers" if container in spec.ephemeral_containers else kind
            subject = msgspec.structs.replace(subject, field_path=f"spec.{kind}{{{container.name}}}")
        self.around.note(subject, severity, reason, message)

    def render(self) -> Json:
        """The status as it is now."""
        around, record = self.around, self.sandbox.record
        verdict = msgspec.structs.replace(
            self._verdict, host_ips=around.ground.addresses, ips=record.ips, up=self.sandbox.up,
            start_time=record.started_at,
        )  # fmt: skip
        status = msgspec.structs.replace(self.pod.status, conditions=self.conditions)
        pod = msgspec.structs.replace(self.pod, status=status)
        return render_status(pod, self.states, verdict, rfc3339(around.clock.now()))

    async def report(self, *, urgent: bool = False) -> None:
        """Tells the API how the pod is, soon if not at once."""
        await self._reporter.report(urgent=urgent)


def _shown(pod: Pod) -> tuple[object, ...]:
    """What of a pod's object may change while it runs and is shown in its volumes."""
    return pod.metadata.labels, pod.metadata.annotations
