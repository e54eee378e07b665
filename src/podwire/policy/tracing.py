"""How ``podwire why`` traces a packet through the rules of a policy data plane.

Each data plane has a module with two functions, registered in ``policy.registry.TRACERS``: ``planned`` makes the rules
for a compiler's profiles, ``held`` reads the rules of a kernel; both return a :class:`~podwire.trace.packet.Tracer`.
"""

from collections.abc import Mapping
from typing import Protocol

from podwire.kernel.netns import NetnsPath
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.registry import TRACERS
from podwire.trace.packet import Machine, Tracer


class Tracing(Protocol):
    """The functions of a module of :data:`podwire.policy.registry.TRACERS`."""

    def planned(self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts, machine: Machine) -> Tracer:
        """A tracer over the rules that the data plane would program; ``devices`` has each pod's device. Pure."""
        ...

    def held(self, netns: NetnsPath, machine: Machine) -> Tracer | None:
        """A tracer over the rules that the kernel holds in a network namespace (None: that of this thread).

        Returns None when the kernel holds no rules of the data plane.

        Raises: KernelError, and ProtocolError for a rule that cannot be read.
        """
        ...


def open_tracing(mode: str) -> Tracing | None:
    """The tracing functions of a data plane; None when it has none."""
    if mode not in TRACERS:
        return None
    tracing: Tracing = TRACERS.load(mode)
    return tracing
