"""The probes of one pod: a prober for each running container, and the actions that follow from their results."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from podwire.embedded.kubelet.hooks import Hooks
from podwire.embedded.kubelet.lifecycle import ContainerState
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.prober import Prober
from podwire.embedded.kubelet.probing import ProbeKind, ProbeState
from podwire.embedded.kubelet.stopping import Stopper
from podwire.embedded.kubelet.traffic import RequestOutcome
from podwire.model.pod import Container, Lifecycle, LifecycleHandler, Probe

_FIRST_PROBE_S = 0.05
_POST_START_S = 3600.0


class Probes:
    """Starts and ends the probes of containers, and stops a container whose startup or liveness probe fails."""

    def __init__(self, state: PodState, stopper: Stopper) -> None:
        self._state = state
        self._stopper = stopper
        self._probers: dict[str, Prober] = {}
        self.report: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Reports the status of a pod that is being deleted, when a container is not ready any more."""

    def begin(self, container: ContainerState, *, ready: bool = False) -> None:
        """Runs the postStart hook of a new container, then probes it.

        ``ready``: the container was ready under an earlier kubelet; it stays ready until a probe fails.
        """
        spec, state = container.spec, self._state

        def changed(kind: ProbeKind, verdict: ProbeState, outcome: RequestOutcome) -> None:
            self._on_result(container, prober, kind, outcome)

        context = state.command_context(spec.name)
        prober = Prober(spec, context, state.target, state.node.clock, changed)
        self._probers[spec.name] = prober
        if context.answered and not ready and (commands := _commands(spec)):
            text = f"The stand-in passes {', '.join(commands)} of container {spec.name} without running the command"
            state.event("Normal", "StandInAnswered", text, spec)
        hook = spec.lifecycle.post_start if spec.lifecycle is not None else None
        if hook is not None and not ready:
            container.starting = True
            state.node.start_task("postStart", self._post_start, container, prober, hook)
            return
        prober.begin(ready=ready)
        self._take_verdicts(container, prober)

    def end(self, name: str) -> None:
        """Ends the probes of a container that has ended."""
        prober = self._probers.pop(name, None)
        if prober is not None:
            self._state.node.start_task("end probes", prober.end)

    async def settle(self) -> None:
        """Waits up to 50 ms for the first results of readiness probes, so that the next report includes them."""
        waits = [p.first_readiness.wait() for p in self._probers.values() if not p.first_readiness.is_set()]
        if waits:
            try:
                async with asyncio.timeout(_FIRST_PROBE_S):
                    await asyncio.gather(*waits)
            except TimeoutError:
                pass

    async def _post_start(self, container: ContainerState, prober: Prober, hook: LifecycleHandler) -> None:
        state, spec = self._state, container.spec
        outcome = await Hooks(spec, state.command_context(spec.name), state.target, state.node.clock).run(
            hook, _POST_START_S
        )
        container.starting = False
        if self._probers.get(spec.name) is not prober:
            return
        if outcome.success:
            prober.begin()
            self._take_verdicts(container, prober)
        else:
            state.event("Warning", "FailedPostStartHook", f"PostStartHook failed: {outcome.message}", spec)
            self._stopper.stop_unhealthy(container, "FailedPostStartHook")
        state.wakeup.wake()

    def _on_result(self, container: ContainerState, prober: Prober, kind: ProbeKind, outcome: RequestOutcome) -> None:
        state, spec = self._state, container.spec
        if not outcome.success:
            state.event("Warning", "Unhealthy", f"{kind.value} probe failed: {outcome.message}", spec)
        if prober is self._probers.get(spec.name):
            before = container.ready
            self._take_verdicts(container, prober)
            if state.leaving and before and not container.ready and self.report is not None:
                state.node.start_task("report", self.report)
            if prober.verdicts.kill:
                self._stopper.stop_unhealthy(container, f"{prober.verdicts.kill}, will be restarted")
        state.wakeup.wake()

    def _take_verdicts(self, container: ContainerState, prober: Prober) -> None:
        container.started = prober.verdicts.started and not container.starting
        container.ready = container.started and prober.verdicts.ready and container.running


def _commands(container: Container) -> list[str]:
    """The names of the probes and hooks of a container that run a command."""
    lifecycle = container.lifecycle or Lifecycle()
    handlers: dict[str, Probe | LifecycleHandler | None] = {
        "startupProbe": container.startup_probe, "livenessProbe": container.liveness_probe,
        "readinessProbe": container.readiness_probe, "postStart": lifecycle.post_start, "preStop": lifecycle.pre_stop,
    }  # fmt: skip
    return [name for name, handler in handlers.items() if handler is not None and handler.exec is not None]
