"""How a packet is followed through what a data plane puts into a kernel: the seam of ``podwire why``.

Each data plane has a module with two functions, registered in ``proxy.registry.TRACERS``: ``planned`` makes the state
that resolved Services mean, ``held`` reads what a kernel holds; both give a :class:`~podwire.trace.packet.Tracer`. A
data plane without such a module is explained by Kubernetes' rules alone (``why.services.decision``): its own rules are
neither shown nor compared.
"""

from typing import Protocol

from podwire.kernel.netns import NetnsPath
from podwire.proxy.registry import TRACERS
from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.trace.packet import Machine, Tracer


class Tracing(Protocol):
    """What a module of :data:`podwire.proxy.registry.TRACERS` has."""

    def planned(self, services: ServiceMap, facts: NodeFacts, machine: Machine) -> Tracer:
        """What the data plane would program for these Services; pure."""
        ...

    def held(self, netns: NetnsPath, machine: Machine) -> Tracer:
        """What the kernel of a network namespace holds of the data plane (None: that of this thread).

        Raises: KernelError, and ProtocolError for a rule that cannot be read.
        """
        ...


def open_tracing(mode: str) -> Tracing | None:
    """The functions of a data plane; None for one that cannot be traced."""
    if mode not in TRACERS:
        return None
    tracing: Tracing = TRACERS.load(mode)
    return tracing
