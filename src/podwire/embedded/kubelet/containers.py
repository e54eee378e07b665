"""Starts the containers of a pod and follows them to their end: records, back-off, adoption, loss of the sandbox.

:func:`podwire.embedded.kubelet.lifecycle.plan` decides which containers start, and in which order.
"""

from pathlib import Path

import msgspec

from podwire.embedded.kubelet.containergroups import ContainerGroups
from podwire.embedded.kubelet.containerorder import compile_order
from podwire.embedded.kubelet.containerrecords import ContainerRecords
from podwire.embedded.kubelet.inputs import InputProvider
from podwire.embedded.kubelet.lifecycle import ContainerState, back_off, should_restart
from podwire.embedded.kubelet.logs import log_tail
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.probes import Probes
from podwire.errors import ApiError, ApiUnreachable, ClusterError, ConfigError, KernelError, ProtocolError
from podwire.runtime.clock import parse_rfc3339, rfc3339

_RETRY_S = 2.0


class Containers:
    """The container runs of one pod."""

    def __init__(self, state: PodState, probes: Probes, inputs: InputProvider, groups: ContainerGroups) -> None:
        self._state = state
        self._probes = probes
        self._inputs = inputs
        self._records = ContainerRecords(state.sandbox.containers)
        self._groups = groups

    async def start(self, name: str) -> None:
        """Starts a container; after a failure the container's state has the reason and the time of the next try."""
        state, container = self._state, self._state.containers[name]
        spec, client = container.spec, state.sandbox.client
        if client is None:
            return
        try:
            inputs = await self._inputs.current()
            order = self._groups.open(compile_order(container, container.attempts, inputs), spec)
        except ConfigError as failure:
            self._hold(container, "CreateContainerConfigError", failure.problem, "Failed")
            return
        except KernelError as failure:
            self._hold(container, "CreateContainerError", str(failure), "Failed")
            return
        except (ApiError, ApiUnreachable, ProtocolError, OSError, TimeoutError) as failure:
            self._hold(container, "ContainerCreating", f"MountVolume.SetUp failed: {failure}", "FailedMount")
            return
        attempt, container.attempts = container.attempts, container.attempts + 1
        state.event("Normal", "Pulled", f'Container image "{spec.image}" already present on machine', spec)
        state.exits[name].clear()
        try:
            answer = await client.start(order)
        except ClusterError:
            return
        state.event("Normal", "Created", f"Container created: {name}", spec)
        container.previous, container.waiting = container.record or container.previous, ("", "")
        self.read_record(name, attempt)
        if answer.problem:
            state.event("Warning", "Failed", f"Error: {answer.problem}", spec)
            return
        state.event("Normal", "Started", f"Container started: {name}", spec)
        if attempt == 0 and (kinds := self._groups.unenforced(spec)):
            text = (
                f"This machine's cgroups have no controller for the limit of {' and '.join(kinds)} of container {name}"
            )
            state.event("Warning", "LimitNotEnforced", text, spec)
        self._records.delete(name, attempt - 2)
        if container.running and not container.ephemeral:
            self._probes.begin(container)

    def _hold(self, container: ContainerState, reason: str, message: str, event: str) -> None:
        """Records why a container cannot be started yet."""
        shown = "" if reason == "ContainerCreating" else message
        if container.waiting != (reason, shown):
            text = f"Error: {message}" if event == "Failed" else message
            self._state.event("Warning", event, text, container.spec)
        container.waiting = (reason, shown)
        container.retry_at = self._state.now() + _RETRY_S
        self._inputs.dirty = True

    def retry(self) -> None:
        """Lets containers that wait for an API object start at once, since an object has changed."""
        for container in self._state.containers.values():
            if container.waiting[0] in ("CreateContainerConfigError", "ContainerCreating"):
                container.retry_at = 0.0

    def adopt(self) -> bool:
        """Takes over the containers that an earlier kubelet started; False when their sandbox is gone."""
        state = self._state
        status = state.pod.status
        ready = {s.name for s in status.container_statuses + status.init_container_statuses if s.ready}
        alive = state.sandbox.adopt()
        for name, container in state.containers.items():
            attempts = self._records.attempts(name)
            if not attempts:
                continue
            container.attempts = attempts[-1] + 1
            container.backoff_s = back_off(0.0, 0.0)[1] if container.attempts > 1 else 0.0
            if len(attempts) > 1:
                container.previous = self._records.load(name, attempts[-2])
            container.record = self._records.load(name, attempts[-1])
            if container.running and alive and not container.ephemeral:
                self._probes.begin(container, ready=name in ready)
        return alive

    def lose(self) -> None:
        """Records the end of every container, because the sandbox is gone; they start again in the next sandbox."""
        state = self._state
        for container in state.containers.values():
            if container.running and container.record is not None:
                record = msgspec.structs.replace(
                    container.record, finished_at=rfc3339(state.node.clock.now()), code=137,
                    reason="ContainerStatusUnknown",
                )  # fmt: skip
                self._records.save(record)
                container.record = record
                self._ended(container)
            if state.pod.spec.restart_policy != "Never" and not container.ephemeral:
                container.previous = container.record or container.previous
                container.record, container.waiting, container.retry_at = None, ("", ""), 0.0

    def read_record(self, name: str, attempt: int) -> None:
        """Reads the record that the shim wrote when a run started or ended."""
        container = self._state.containers[name]
        record = self._records.load(name, attempt)
        before = container.record
        if record is None or (before is not None and before.attempt == attempt and before.finished):
            return
        container.record = record
        if record.finished:
            self._ended(container)

    def _ended(self, container: ContainerState) -> None:
        state, record, name = self._state, container.record, container.spec.name
        assert record is not None
        container.ready = container.started = container.starting = False
        self._probes.end(name)
        self._groups.close(record)
        if record.reason == "OOMKilled":
            limit = container.spec.resources.limits.get("memory")
            text = f"The kernel killed a process of container {name}: the memory limit of {limit} was reached"
            state.event("Warning", "OOMKilling", text, container.spec)
        if not record.message:
            message = self._records.message(name, record.attempt)
            if not message and record.code and container.spec.termination_message_policy == "FallbackToLogsOnError":
                message = log_tail(Path(record.log))
            container.record = record = msgspec.structs.replace(record, message=message)
        state.exits[name].set()
        if container.ephemeral:
            return
        ran_s = (parse_rfc3339(record.finished_at) - parse_rfc3339(record.started_at)).total_seconds()
        wait_s, container.backoff_s = back_off(container.backoff_s, ran_s)
        container.retry_at = state.now() + wait_s
        policy = "Always" if container.sidecar else state.pod.spec.restart_policy
        if should_restart(policy, record.code) and wait_s and not state.leaving:
            self._back_off(container, wait_s)

    def _back_off(self, container: ContainerState, wait_s: float) -> None:
        meta, name = self._state.pod.metadata, container.spec.name
        where = f"container={name} pod={meta.name}_{meta.namespace}({meta.uid})"
        container.waiting = ("CrashLoopBackOff", f"back-off {wait_s:g}s restarting failed {where}")
        text = f"Back-off restarting failed container {name} in pod {meta.name}_{meta.namespace}({meta.uid})"
        self._state.event("Warning", "BackOff", text, container.spec)
