"""Changes the resources of running containers (``pods/resize``).

A pod's spec has the wanted resources, the states of its containers the allocated ones. When they differ:

1. A request larger than the node is refused (PodResizePending, Infeasible). A request that does not fit now waits until
   other pods end, and is tried again every 5 s (PodResizePending, Deferred).
2. Otherwise the new limits are written to the cgroup of the running container. A container with the ``resizePolicy``
   RestartContainer is stopped, and starts again with the new limits.
3. While a limit cannot be set, PodResizeInProgress has the reason Error, and the limit is tried again every 5 s.

Every step sends an Event of the pod.

Source: kubernetes pkg/kubelet/allocation, pkg/kubelet/kuberuntime (doPodResizeAction); KEP-1287.
"""

import msgspec

from podwire.embedded.kubelet.containergroups import ContainerGroups
from podwire.embedded.kubelet.lifecycle import ContainerState
from podwire.embedded.kubelet.limits import memory_limit_bytes
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.resizeevents import ResizeEvents
from podwire.embedded.kubelet.status import PENDING_RESIZE, RUNNING_RESIZE, ResizeState
from podwire.embedded.kubelet.stopping import Stopper
from podwire.errors import KernelError
from podwire.model.pod import Container, Resources
from podwire.model.requests import pod_requests

_AGAIN_S = 5.0
_RESIZABLE = ("cpu", "memory")


class Resizer:
    """Gives the containers of one pod the resources of the pod's spec."""

    def __init__(self, state: PodState, groups: ContainerGroups, stopper: Stopper) -> None:
        self._state = state
        self._groups = groups
        self._stopper = stopper
        self._events = ResizeEvents(state)

    def settle(self) -> None:
        """Makes the next step; sets the pod's ``resize``."""
        state = self._state
        spec = state.pod.spec
        desired = {c.name: c.resources for c in spec.init_containers + spec.containers}
        changed = {
            name: resources for name, resources in desired.items() if state.containers[name].spec.resources != resources
        }
        state.resize = self._changed(changed) if changed else None
        self._events.settle(state.resize)
        if state.resize is not None and state.resize.reason != "Infeasible":
            state.wakeup.wake_in(_AGAIN_S)

    def _changed(self, desired: dict[str, Resources]) -> ResizeState | None:
        state, ledger = self._state, self._state.node.ledger
        uid, requests = state.pod.metadata.uid, pod_requests(state.pod)
        if excess := ledger.excess(requests):
            return ResizeState(PENDING_RESIZE, "Infeasible", excess.whole)
        if shortage := ledger.shortage(uid, requests):
            return ResizeState(PENDING_RESIZE, "Deferred", str(shortage))
        ledger.count(uid, requests)
        self._events.start()
        problems = [self._apply(state.containers[name], resources) for name, resources in desired.items()]
        problem = "; ".join(filter(None, problems))
        return ResizeState(RUNNING_RESIZE, "Error", problem) if problem else None

    def _apply(self, container: ContainerState, desired: Resources) -> str:
        """Gives a container new resources; returns why it cannot."""
        new = msgspec.structs.replace(container.spec, resources=desired)
        if container.running and container.record is not None:
            if _must_restart(container.spec, desired):
                self._events.restart(container)
                self._stopper.stop_unhealthy(container, "resize requires restart")
            elif problem := self._limit(container.record.id, new):
                return problem
        container.spec = new
        return ""

    def _limit(self, run: str, container: Container) -> str:
        limit, used = memory_limit_bytes(container), self._groups.memory_bytes(run)
        if limit is not None and limit < used:
            return f"attempting to set container {container.name} memory limit ({limit}) below current usage ({used})"
        try:
            self._groups.limit(run, container)
        except KernelError as failure:
            return str(failure)
        return ""


def _must_restart(container: Container, desired: Resources) -> bool:
    policies = {policy.resource_name: policy.restart_policy for policy in container.resize_policy}
    old = container.resources
    changed = [
        kind
        for kind in _RESIZABLE
        if (old.requests.get(kind), old.limits.get(kind)) != (desired.requests.get(kind), desired.limits.get(kind))
    ]
    return any(policies.get(kind) == "RestartContainer" for kind in changed)
