"""How ``podwire why`` traces a packet through the rules of a policy data plane.

Each data plane has a module that is registered in ``policy.registry.TRACERS``. Its ``planned`` makes a
:class:`~podwire.trace.packet.Tracer` from a compiler's profiles; its ``OWNER_MARKS`` and ``held`` make one from what a
kernel holds (:func:`podwire.dataplane.tracing.trace_held`).
"""

from collections.abc import Mapping
from typing import Protocol

from podwire.dataplane.tracing import HeldTracing
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.registry import TRACERS
from podwire.trace.packet import LocalAddresses, Tracer


class Tracing(HeldTracing, Protocol):
    """The interface of a module of :data:`podwire.policy.registry.TRACERS`."""

    def planned(
        self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts, machine: LocalAddresses
    ) -> Tracer:
        """A tracer over the rules that the data plane would program; ``devices`` has each pod's device. Pure."""
        ...


def open_tracing(mode: str) -> Tracing | None:
    """The tracing functions of a data plane; None when it has none."""
    if mode not in TRACERS:
        return None
    tracing: Tracing = TRACERS.load(mode)
    return tracing
