"""Runs the probes of one container's run.

Each probe has a task. The task waits, sends a request, records the result, and calls ``changed`` when the result
changes. Readiness and liveness probes start when the startup probe has passed. A container without a readiness probe is
ready while it runs.
"""

import asyncio
from collections.abc import Callable

import msgspec

from podwire.embedded.kubelet.execution import CommandContext, PodTarget
from podwire.embedded.kubelet.probing import ProbeKind, ProbeState
from podwire.embedded.kubelet.traffic import RequestOutcome, check_grpc, get_http, open_tcp, port_number
from podwire.model.pod import Container, Probe
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet


class ProbeResults(msgspec.Struct):
    """The results of a container's probes."""

    started: bool = False
    ready: bool = False
    kill: str = ""
    """Why the container must be stopped; empty while its probes pass."""


Changed = Callable[[ProbeKind, ProbeState, RequestOutcome], None]


class Prober:
    """The probes of one run."""

    def __init__(
        self, container: Container, context: CommandContext, target: PodTarget, clock: Clock, changed: Changed
    ) -> None:
        self._container = container
        self._context = context
        self._target = target
        self._clock = clock
        self._changed = changed
        self._tasks = TaskSet(lambda name, failure: None)
        self.verdicts = ProbeResults()
        self.first_readiness = asyncio.Event()
        """Set after the first result of the readiness probe, or at once when no result comes soon."""

    def begin(self, *, ready: bool = False) -> None:
        """Starts the probes; ``ready`` is the result of an earlier kubelet."""
        container = self._container
        probe = container.readiness_probe
        self.verdicts.started = ready or container.startup_probe is None
        self.verdicts.ready = ready or (self.verdicts.started and probe is None)
        if probe is None or probe.initial_delay_seconds or container.startup_probe is not None:
            self.first_readiness.set()
        if container.startup_probe is not None and not ready:
            self._start(ProbeKind.STARTUP, container.startup_probe)
        else:
            self._begin_rest(ready=ready)

    def _begin_rest(self, *, ready: bool = False) -> None:
        if self._container.liveness_probe is not None:
            self._start(ProbeKind.LIVENESS, self._container.liveness_probe)
        if self._container.readiness_probe is not None:
            self._start(ProbeKind.READINESS, self._container.readiness_probe, good=ready)
        else:
            self.verdicts.ready = True

    def _start(self, kind: ProbeKind, probe: Probe, *, good: bool = False) -> None:
        state = ProbeState.begin(kind, probe)
        state.good = state.good or good
        self._tasks.start(f"{kind.value} probe", self._run(state))

    async def _run(self, state: ProbeState) -> None:
        await self._clock.sleep(state.first_delay_s())
        while True:
            outcome = await self.ask(state.probe)
            before, counted = state.good, state.failures
            delay_s = state.record(outcome.success)
            if state.kind is ProbeKind.READINESS:
                self.first_readiness.set()
            if state.good != before or state.failures != counted or state.failed:
                self._apply(state, outcome)
            if state.failed or (state.kind is ProbeKind.STARTUP and state.good):
                return
            await self._clock.sleep(delay_s)

    def _apply(self, state: ProbeState, outcome: RequestOutcome) -> None:
        if state.kind is ProbeKind.READINESS:
            self.verdicts.ready = state.good
        elif state.failed:
            self.verdicts.kill = f"Container {self._container.name} failed {state.kind.value.lower()} probe"
        elif state.kind is ProbeKind.STARTUP and state.good:
            self.verdicts.started = True
            self._begin_rest()
        self._changed(state.kind, state, outcome)

    async def ask(self, probe: Probe) -> RequestOutcome:
        """Sends one probe and returns its outcome."""
        timeout_s = float(max(1, probe.timeout_seconds))
        ports = self._container.ports
        address = self._target.address
        if probe.http_get is not None:
            return await get_http(probe.http_get, address, port_number(probe.http_get.port, ports), timeout_s)
        if probe.tcp_socket is not None:
            return await open_tcp(probe.tcp_socket, address, port_number(probe.tcp_socket.port, ports), timeout_s)
        if probe.grpc is not None:
            return await check_grpc(probe.grpc, address, timeout_s)
        if probe.exec is not None:
            return await self._target.execute(self._context, probe.exec.command, timeout_s)
        return RequestOutcome(True)

    async def end(self) -> None:
        """Stops the probes."""
        await self._tasks.close()
