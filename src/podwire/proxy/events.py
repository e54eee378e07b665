"""The Events of the Service proxy: on the Node for what concerns all Services, on a Service for its own ports."""

from podwire.dataplane.follower import Source
from podwire.kube.events import EventRecorder, Severity, reference
from podwire.model.node import Node
from podwire.model.service import Service


class ProxyEvents:
    """Records Events of node ``node``; an object that is not known gets none."""

    def __init__(self, recorder: EventRecorder, node: str, nodes: Source[Node], services: Source[Service]) -> None:
        self._recorder = recorder
        self._node = node
        self._nodes = nodes
        self._services = services

    def started(self, mode: str) -> None:
        """Services are programmed for the first time."""
        self._on_node("Normal", "Starting", f"Services are programmed, mode {mode}")

    def not_programmed(self, problem: str) -> None:
        """The kernel refused a change."""
        self._on_node("Warning", "ServicesNotProgrammed", problem)

    def health_check_refused(self, service: str, problem: str) -> None:
        """The health check port of a Service cannot be opened."""
        known = self._services.objects.get(service)
        if known is not None:
            subject = reference("v1", "Service", known.metadata)
            self._recorder.event(subject, "Warning", "FailedToStartServiceHealthcheck", problem)

    def _on_node(self, severity: Severity, reason: str, text: str) -> None:
        node = self._nodes.objects.get(self._node)
        if node is not None:
            self._recorder.event(reference("v1", "Node", node.metadata), severity, reason, text)
