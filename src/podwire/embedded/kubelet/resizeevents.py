"""The Events of a resize: ResizeDeferred, ResizeInfeasible, ResizeStarted, ResizeError, ResizeCompleted.

A retry with the same result as the last attempt sends no Event. The message has the wanted resources of all containers
and the generation of the pod. A resize is complete when all containers have the resources, and all containers that had
to restart run again. Source: kubernetes pkg/kubelet/events, pkg/kubelet/allocation.
"""

import msgspec

from podwire.embedded.kubelet.lifecycle import ContainerState, is_sidecar
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.status import PENDING_RESIZE, Json, ResizeState
from podwire.model.pod import Container, Pod, Resources


def resize_message(outcome: str, pod: Pod, problem: str = "") -> str:
    """The message of an Event: ``Pod resize OUTCOME: {...}``, with the resources in the pod's spec."""
    spec = pod.spec
    sidecars = [_summary(container) for container in spec.init_containers if is_sidecar(container)]
    summary: Json = {"initContainers": sidecars} if sidecars else {}
    summary |= {"containers": [_summary(container) for container in spec.containers]}
    summary |= {"generation": pod.metadata.generation, **({"error": problem} if problem else {})}
    return f"Pod resize {outcome}: {msgspec.json.encode(summary).decode()}"


def _summary(container: Container) -> Json:
    resources: Resources = container.resources
    amounts = (("limits", resources.limits), ("requests", resources.requests))
    shown = {
        field: {kind: str(amount) for kind, amount in amounts_by_kind.items()}
        for field, amounts_by_kind in amounts
        if amounts_by_kind
    }
    return {"name": container.name, "resources": shown}


class ResizeEvents:
    """Sends the Events of one pod's resizes."""

    def __init__(self, state: PodState) -> None:
        self._state = state
        self._last: tuple[ResizeState | None, int] = (None, 0)
        self._started = 0
        """The generation that is being carried out; 0 for none."""
        self._restarting: dict[str, str] = {}
        """The runs that were stopped so that the next run gets the new resources, by container."""

    def start(self) -> None:
        """Sends ResizeStarted: the node has accepted the wanted resources."""
        pod = self._state.pod
        if self._started != pod.metadata.generation:
            self._started = pod.metadata.generation
            self._state.event("Normal", "ResizeStarted", resize_message("started", pod))

    def restart(self, container: ContainerState) -> None:
        """Records that a container gets its resources with its next run."""
        if container.record is not None:
            self._restarting[container.spec.name] = container.record.id

    def settle(self, resize: ResizeState | None) -> None:
        """Sends the Event for the result of a step; None when all containers have the wanted resources."""
        pod = self._state.pod
        last, self._last = self._last, (resize, pod.metadata.generation)
        if resize is None:
            self._complete()
        elif self._last == last:
            return
        elif resize.condition == PENDING_RESIZE:
            self._started = 0
            message = resize_message(resize.reason, pod, resize.message)
            self._state.event("Warning", f"Resize{resize.reason}", message)
        else:
            self._state.event("Warning", "ResizeError", resize_message("error", pod, resize.message))

    def _complete(self) -> None:
        containers = self._state.containers
        for name, run in tuple(self._restarting.items()):
            container = containers[name]
            if container.running and container.record is not None and container.record.id != run:
                del self._restarting[name]
        if self._started and not self._restarting:
            self._started = 0
            self._state.event("Normal", "ResizeCompleted", resize_message("completed", self._state.pod))
