"""The Events of a resize: ResizeDeferred, ResizeInfeasible, ResizeStarted, ResizeError, ResizeCompleted.

Each is sent once for what it says: a retry that ends as the one before sends none. The message has the wanted resources
of all containers and the generation of the pod. A resize is completed when all containers have the resources, those
that had to restart when they run again. Source: kubernetes pkg/kubelet/events, pkg/kubelet/allocation.
"""

import msgspec

from podwire.embedded.kubelet.lifecycle import ContainerState, is_sidecar
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.status import PENDING_RESIZE, Json, ResizeState
from podwire.model.pod import Container, Pod, Resources


def resize_message(outcome: str, pod: Pod, problem: str = "") -> str:
    """The message of an Event: ``Pod resize OUTCOME: {...}``, with what the spec of the pod wants."""
    spec = pod.spec
    sidecars = [_summary(container) for container in spec.init_containers if is_sidecar(container)]
    summary: Json = {"initContainers": sidecars} if sidecars else {}
    summary |= {"containers": [_summary(container) for container in spec.containers]}
    summary |= {"generation": pod.metadata.generation, **({"error": problem} if problem else {})}
    return f"Pod resize {outcome}: {msgspec.json.encode(summary).decode()}"


def _summary(container: Container) -> Json:
    resources: Resources = container.resources
    amounts = (("limits", resources.limits), ("requests", resources.requests))
    shown = {field: {kind: str(amount) for kind, amount in found.items()} for field, found in amounts if found}
    return {"name": container.name, "resources": shown}


class ResizeEvents:
    """Sends the Events of one pod's resizes."""

    def __init__(self, state: PodState) -> None:
        self._state = state
        self._told: tuple[ResizeState | None, int] = (None, 0)
        self._started = 0
        """The generation that is being carried out; 0 for none."""
        self._restarting: dict[str, str] = {}
        """The runs that end so that the next runs have their resources, by container."""

    def start(self) -> None:
        """Tells that the node has taken what the pod wants."""
        pod = self._state.pod
        if self._started != pod.metadata.generation:
            self._started = pod.metadata.generation
            self._state.event("Normal", "ResizeStarted", resize_message("started", pod))

    def restart(self, container: ContainerState) -> None:
        """Notes that a container gets its resources with its next run."""
        if container.record is not None:
            self._restarting[container.spec.name] = container.record.id

    def settle(self, resize: ResizeState | None) -> None:
        """Tells what has become of the resize; None when all containers have what the pod wants."""
        pod = self._state.pod
        told, self._told = self._told, (resize, pod.metadata.generation)
        if resize is None:
            self._complete()
        elif self._told == told:
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
