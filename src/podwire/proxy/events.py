"""The Events of the Service proxy: on the Node about all Services, on a Service about its own ports.

A Service or EndpointSlice with invalid fields, which are left out (``proxy.validity``), gets the Event
``InvalidObject``.
"""

from podwire.dataplane.follower import Source
from podwire.kube.events import EventRecorder, Severity, reference
from podwire.model.meta import ObjectReference
from podwire.model.node import Node
from podwire.model.service import PROXY_NAME_LABEL, SERVICE_NAME_LABEL, EndpointSlice, Service
from podwire.proxy.validity import service_problems, slice_problems

_SHOWN = 5


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

    def service_changed(self, _key: str, _old: Service | None, new: Service | None) -> None:
        """Records what is left out of a new or changed Service."""
        if new is None or PROXY_NAME_LABEL in new.metadata.labels:
            return
        if problems := tuple(service_problems(new)):
            self._left_out(reference("v1", "Service", new.metadata), problems)

    def slice_changed(self, _key: str, _old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Records what is left out of a new or changed EndpointSlice."""
        if new is None or not new.metadata.labels.get(SERVICE_NAME_LABEL):
            return
        if problems := tuple(slice_problems(new)):
            self._left_out(reference(new.api_version, "EndpointSlice", new.metadata), problems)

    def _left_out(self, subject: ObjectReference, problems: tuple[str, ...]) -> None:
        shown = "; ".join((*problems[:_SHOWN], *(["..."] if len(problems) > _SHOWN else [])))
        self._recorder.event(subject, "Warning", "InvalidObject", f"The Service proxy leaves out: {shown}")

    def _on_node(self, severity: Severity, reason: str, text: str) -> None:
        node = self._nodes.objects.get(self._node)
        if node is not None:
            self._recorder.event(reference("v1", "Node", node.metadata), severity, reason, text)
