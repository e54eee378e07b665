"""How ``podwire why`` traces a packet through the rules of a policy data plane.

Each data plane has a module with two functions, registered in ``policy.registry.TRACERS``: ``planned`` makes what a
compiler's profiles mean, ``held`` reads what a kernel holds; both give a :class:`~podwire.trace.packet.Tracer`.
"""

from collections.abc import Mapping
from typing import Protocol

from podwire.kernel.netns import NetnsPath
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.registry import TRACERS
from podwire.trace.packet import Machine, Tracer


class Tracing(Protocol):
    """What a module of :data:`podwire.policy.registry.TRACERS` has."""

    def planned(self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts, machine: Machine) -> Tracer:
        """What the data plane would program; ``devices`` has that of each pod of the node. Pure."""
        ...

    def held(self, netns: NetnsPath, machine: Machine) -> Tracer | None:
        """What the kernel of a network namespace holds of the data plane (None: that of this thread).

        None: nothing at all.

        Raises: KernelError, and ProtocolError for a rule that cannot be read.
        """
        ...


def open_tracing(mode: str) -> Tracing | None:
    """The functions of a data plane; None for one that cannot be traced."""
    if mode not in TRACERS:
        return None
    tracing: Tracing = TRACERS.load(mode)
    return tracing
