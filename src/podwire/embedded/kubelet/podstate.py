"""The kubelet's state of one pod: its object, its containers, its sandbox and its final phase.

The classes that act on a pod share this state and do not know the worker that calls them. References go in one
direction:

    PodWorker -> Containers -> Probes -> Stopper -> PodState -> NodeContext
              -> InputProvider, StatusReporter, SandboxStarter, Remover -> PodState
"""

import asyncio

import msgspec

from podwire.embedded.images.table import find_rule
from podwire.embedded.kubelet.context import NodeContext
from podwire.embedded.kubelet.environment import PodFields
from podwire.embedded.kubelet.execution import CommandContext, ExitCodes, PodTarget
from podwire.embedded.kubelet.lifecycle import ContainerState, is_listed, is_sidecar
from podwire.embedded.kubelet.privileges import compile_privileges, compile_user
from podwire.embedded.kubelet.sandbox import Sandbox
from podwire.embedded.kubelet.status import PENDING_RESIZE, RUNNING_RESIZE, Json, PodVerdict, ResizeState, render_status
from podwire.embedded.kubelet.wakeup import Wakeup
from podwire.kube.events import Severity, reference
from podwire.model.meta import Condition
from podwire.model.pod import Container, Pod, Resources
from podwire.runtime.clock import rfc3339

_OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled",
                   PENDING_RESIZE, RUNNING_RESIZE)  # fmt: skip


class PodState:
    """The state of one pod on this node."""

    def __init__(self, pod: Pod, node: NodeContext, sandbox: Sandbox) -> None:
        self.pod = pod
        self.node = node
        self.sandbox = sandbox
        self.wakeup = Wakeup(node.clock)
        self.exit_codes = ExitCodes()
        self.target = PodTarget(sandbox, self.exit_codes)
        self.gone = False
        """Whether the pod's object was deleted from the API."""
        self.leaving = False
        """Whether the pod has ended or is being deleted: no container starts again."""
        self.verdict = PodVerdict()
        """The final phase and its reason; empty while the pod has not ended."""
        self.resize: ResizeState | None = None
        """Why containers do not have the resources of the spec; None when they do."""
        self.conditions: tuple[Condition, ...] = pod.status.conditions
        """The conditions in the API: those of the kubelet and those of other writers."""
        self.containers: dict[str, ContainerState] = {}
        self.exits: dict[str, asyncio.Event] = {}
        """An event for each container, set while the container does not run."""
        self._add_containers(pod)

    def _add_containers(self, pod: Pod) -> None:
        """Adds new containers (later ephemeral ones), with the resources that an earlier kubelet gave them."""
        spec, status = pod.spec, pod.status
        allocated = {s.name: s.resources for s in status.container_statuses + status.init_container_statuses}
        for container in spec.init_containers + spec.containers + spec.ephemeral_containers:
            if container.name not in self.containers:
                ephemeral = container in spec.ephemeral_containers
                sidecar = container in spec.init_containers and is_sidecar(container)
                known = container.name in allocated
                resources = allocated[container.name] or Resources() if known else container.resources
                spec_in_force = msgspec.structs.replace(container, resources=resources)
                self.containers[container.name] = ContainerState(spec_in_force, sidecar=sidecar, ephemeral=ephemeral)
                self.exits[container.name] = asyncio.Event()

    def update(self, pod: Pod) -> None:
        """Takes a new version of the object; the kubelet's own conditions stay as the kubelet wrote them last."""
        self.pod = pod
        self._add_containers(pod)
        own = tuple(c for c in self.conditions if c.type in _OWN_CONDITIONS)
        foreign = tuple(c for c in pod.status.conditions if c.type not in _OWN_CONDITIONS)
        self.conditions = (own or pod.status.conditions) + (foreign if own else ())

    @property
    def deleting(self) -> bool:
        """Whether the pod must be removed from the node."""
        return self.gone or self.pod.metadata.deletion_timestamp is not None

    def now(self) -> float:
        """Monotonic seconds."""
        return self.node.clock.monotonic()

    def command_context(self, container: str) -> CommandContext:
        """The context of commands in a container."""
        spec = self.containers[container].spec
        user, privileges = compile_user(spec, self.pod), compile_privileges(spec, self.pod)
        return CommandContext(container, user, privileges, self._answers(container))

    def _answers(self, container: str) -> bool:
        """Whether a container is a stand-in that answers for the commands of its probes and hooks."""
        state = self.containers[container]
        rule = find_rule(state.spec.image, self.node.config.images)
        stand_in = state.record is not None and state.record.entry == "standin"
        return stand_in and not (rule is not None and rule.run_probes)

    def fields(self) -> PodFields:
        """The fields for the downward API."""
        node = self.node
        return PodFields(self.pod, node.host.node, self.sandbox.record.ips, node.host.addresses, node.allocatable)

    def event(self, severity: Severity, reason: str, message: str, container: Container | None = None) -> None:
        """Records an Event of the pod or of one container."""
        subject = reference("v1", "Pod", self.pod.metadata)
        if container is not None:
            spec = self.pod.spec
            kind = "initContainers" if is_listed(container, spec.init_containers) else "containers"
            kind = "ephemeralContainers" if is_listed(container, spec.ephemeral_containers) else kind
            subject = msgspec.structs.replace(subject, field_path=f"spec.{kind}{{{container.name}}}")
        self.node.record_event(subject, severity, reason, message)

    def render(self) -> Json:
        """The pod's status now."""
        record, node = self.sandbox.record, self.node
        verdict = msgspec.structs.replace(
            self.verdict, host_ips=node.host.addresses, ips=record.ips, up=self.sandbox.up,
            start_time=record.started_at, resize=self.resize,
        )  # fmt: skip
        status = msgspec.structs.replace(self.pod.status, conditions=self.conditions)
        pod = msgspec.structs.replace(self.pod, status=status)
        return render_status(pod, self.containers, verdict, rfc3339(node.clock.now()))
