"""Runs one pod, from its assignment to the node until its object and its directory are gone.

One task per pod takes steps: look at the object and the containers, plan, act, report. A change (of the object, of a
container, of a probe's result) only wakes the task, so two steps of a pod never run at the same time.

The worker decides the next step. The classes that carry the step out share the pod's state
(:mod:`podwire.embedded.kubelet.podstate`) and do not know the worker.
"""

import msgspec

from podwire.embedded.kubelet.containergroups import ContainerGroups
from podwire.embedded.kubelet.containers import Containers
from podwire.embedded.kubelet.context import NodeContext
from podwire.embedded.kubelet.eviction import CHECK_EVERY_S, find_excess, is_limited, measure
from podwire.embedded.kubelet.inputs import InputProvider
from podwire.embedded.kubelet.lifecycle import plan
from podwire.embedded.kubelet.orders import PodRecord, ShimAnswer
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.probes import Probes
from podwire.embedded.kubelet.removal import Remover
from podwire.embedded.kubelet.reporter import StatusReporter
from podwire.embedded.kubelet.resizing import Resizer
from podwire.embedded.kubelet.sandbox import Sandbox
from podwire.embedded.kubelet.sandboxstart import SandboxStarter
from podwire.embedded.kubelet.status import EVICTED
from podwire.embedded.kubelet.stopping import Stopper
from podwire.embedded.kubelet.sysctls import forbidden_sysctl
from podwire.kube.events import Severity
from podwire.model.hostports import CONFLICT, host_ports
from podwire.model.pod import Pod
from podwire.model.requests import pod_requests
from podwire.runtime.clock import parse_rfc3339


class PodWorker:
    """The task of one pod."""

    def __init__(self, pod: Pod, node: NodeContext, record: PodRecord | None = None) -> None:
        """``record`` is the record of an earlier kubelet; the pod is adopted then."""
        meta = pod.metadata
        sandbox_record = record or PodRecord(uid=meta.uid, namespace=meta.namespace, name=meta.name)
        sandbox = Sandbox(node.host, sandbox_record, self._on_event, self._on_lost)
        self.state = PodState(pod, node, sandbox)
        self._stopper = Stopper(self.state)
        self._inputs = InputProvider(self.state)
        self._reporter = StatusReporter(self.state)
        self._probes = Probes(self.state, self._stopper)
        self._probes.report = self._reporter.report
        groups = ContainerGroups(self.state)
        self._containers = Containers(self.state, self._probes, self._inputs, groups)
        self._resizer = Resizer(self.state, groups, self._stopper)
        self._starter = SandboxStarter(self.state, self._reporter)
        self._remover = Remover(self.state, self._stopper, self._reporter)
        self._adopting = record is not None
        self._lost = False
        self._measured_at = 0.0

    # -- changes that wake the worker

    def update(self, pod: Pod | None) -> None:
        """Takes a new version of the object; None when the object was deleted from the API."""
        if pod is None:
            self.state.gone = True
        else:
            self._inputs.dirty |= _shown(pod) != _shown(self.state.pod)
            self.state.update(pod)
        self._stopper.hurry()
        self.state.wakeup.wake()

    def refresh_volumes(self) -> None:
        """Updates the pod's volumes, because a ConfigMap or Secret of its namespace has changed."""
        self._inputs.dirty = True
        self._containers.retry()
        self.state.wakeup.wake()

    def _on_event(self, answer: ShimAnswer) -> None:
        if not answer.container:
            self.state.exit_codes.record(answer)
            return
        container = self.state.containers.get(answer.container)
        if container is not None and container.record is not None and container.record.attempt == answer.attempt:
            self._containers.read_record(answer.container, answer.attempt)
        self.state.wakeup.wake()

    def _on_lost(self) -> None:
        self._lost = True
        self.state.exit_codes.lose()
        self.state.wakeup.wake()

    # -- the loop

    async def run(self) -> None:
        """Runs the pod; returns when the pod is removed from the node."""
        state = self.state
        state.sandbox.containers.mkdir(parents=True, exist_ok=True)
        if self._adopting:
            self._adopt()
        while True:
            state.wakeup.begin()
            if await self._step():
                return
            await state.wakeup.wait()

    def _adopt(self) -> None:
        state = self.state
        if state.pod.status.phase in ("Succeeded", "Failed"):
            state.verdict = msgspec.structs.replace(state.verdict, phase=state.pod.status.phase)
        if not state.verdict.phase:
            state.node.ledger.count(state.pod.metadata.uid, pod_requests(state.pod))
            state.node.ledger.take_ports(state.pod.metadata.uid, host_ports(state.pod))
        alive = self._containers.adopt()
        self._lost = not alive and bool(state.sandbox.record.sandbox) and not state.verdict.phase

    async def _step(self) -> bool:
        """Makes the next step; returns whether the pod is removed from the node."""
        state = self.state
        if self._lost:
            await self._clear_lost()
        if state.deleting:
            return await self._remover.remove()
        if state.verdict.phase:
            await self._remover.release()
            await self._reporter.report()
        elif not state.sandbox.record.started_at and (refusal := self._refusal()):
            await self._end("Failed", refusal[0], f"Pod was rejected: {refusal[1]}", "Warning")
        elif self._overdue():
            message = "Pod was active on the node longer than the specified deadline"
            await self._end("Failed", "DeadlineExceeded", message)
        elif state.sandbox.up or await self._starter.start():
            await self._advance()
        return False

    async def _clear_lost(self) -> None:
        """Removes the rest of the sandbox after the shim and all containers have died."""
        self._lost = False
        self.state.event("Normal", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
        self._containers.lose()
        await self.state.sandbox.remove()

    async def _advance(self) -> None:
        """Starts the containers that the plan names, updates volumes and reports."""
        state = self.state
        self._resizer.settle()
        while state.sandbox.up:
            actions = plan(state.pod, state.containers, state.now())
            if actions.phase:
                await self._end(actions.phase)
                return
            if actions.wake_at is not None:
                state.wakeup.wake_in(actions.wake_at - state.now())
            if not actions.start:
                break
            for name in actions.start:
                await self._containers.start(name)
        if excess := self._storage_excess():
            await self._end("Failed", EVICTED, excess, "Warning")
            return
        await self._probes.settle()
        await self._inputs.keep_current()
        await self._reporter.report()

    def _refusal(self) -> tuple[str, str] | None:
        """Reason and message when the node refuses a new pod; a pod that is not refused counts from now on."""
        pod, ledger = self.state.pod, self.state.node.ledger
        if problem := forbidden_sysctl(pod):
            return "SysctlForbidden", problem
        uid, requests = pod.metadata.uid, pod_requests(pod)
        if shortage := ledger.shortage(uid, requests):
            return shortage.reason, str(shortage)
        if not ledger.take_ports(uid, host_ports(pod)):
            return "NodePorts", f"Predicate NodePorts failed: {CONFLICT}"
        ledger.count(uid, requests)
        return None

    def _overdue(self) -> bool:
        """Whether ``activeDeadlineSeconds`` have passed since the pod started."""
        state = self.state
        deadline = state.pod.spec.active_deadline_seconds
        if deadline is None or not state.sandbox.record.started_at:
            return False
        since = parse_rfc3339(state.sandbox.record.started_at)
        remaining_s = deadline - (state.node.clock.now() - since).total_seconds()
        if remaining_s > 0:
            state.wakeup.wake_in(remaining_s)
        return remaining_s <= 0

    def _storage_excess(self) -> str:
        """Why the pod must be evicted; checked every 5 s while the pod has limits of local storage."""
        state = self.state
        if not is_limited(state.pod):
            return ""
        left_s = self._measured_at + CHECK_EVERY_S - state.now()
        if left_s > 0:
            state.wakeup.wake_in(left_s)
            return ""
        self._measured_at = state.now()
        state.wakeup.wake_in(CHECK_EVERY_S)
        records = {name: container.record for name, container in state.containers.items() if container.running}
        pids = {name: record.pid for name, record in records.items() if record is not None}
        return find_excess(state.pod, measure(state.pod, state.sandbox.directory, pids))

    async def _end(self, phase: str, reason: str = "", message: str = "", severity: Severity = "Normal") -> None:
        """Ends the pod with phase Succeeded or Failed."""
        state = self.state
        state.verdict = msgspec.structs.replace(state.verdict, phase=phase, reason=reason, message=message)
        if reason:
            state.event(severity, reason, message)
        await self._remover.release()
        await self._reporter.report(urgent=True)


def _shown(pod: Pod) -> tuple[object, ...]:
    """The fields of a pod that may change while the pod runs and that its volumes may show."""
    return pod.metadata.labels, pod.metadata.annotations
