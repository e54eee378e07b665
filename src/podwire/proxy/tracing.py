"""How ``podwire why`` traces a packet through the rules of a data plane for Services.

Each data plane has a module that is registered in ``proxy.registry.TRACERS``. Its ``planned`` makes a
:class:`~podwire.trace.packet.Tracer` from resolved Services; its ``OWNER_MARKS`` and ``held`` make one from what a
kernel holds (:func:`podwire.dataplane.tracing.trace_held`). A data plane without such a module is explained by
Kubernetes' rules alone (``why.services.decision``): its own rules are neither shown nor compared.
"""

from typing import Protocol

from podwire.dataplane.tracing import HeldTracing
from podwire.proxy.registry import TRACERS
from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.trace.packet import LocalAddresses, Tracer


class Tracing(HeldTracing, Protocol):
    """The interface of a module of :data:`podwire.proxy.registry.TRACERS`."""

    def planned(self, services: ServiceMap, facts: NodeFacts, machine: LocalAddresses) -> Tracer:
        """The state that the data plane would program for these Services; pure."""
        ...


def open_tracing(mode: str) -> Tracing | None:
    """The functions of a data plane; None for one that cannot be traced."""
    if mode not in TRACERS:
        return None
    tracing: Tracing = TRACERS.load(mode)
    return tracing
