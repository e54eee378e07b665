"""Reads the state that a data plane put into a kernel, for following packets through it.

A data plane names the kinds of its kernel state, each with its owner mark; the rows of ``kernel.kinds`` read them. So a
tracer is made from values, and a new kind of state needs no reader in a data plane.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from podwire.kernel.kinds import read_values
from podwire.kernel.netns import NetnsPath
from podwire.state.value import StateValue
from podwire.trace.packet import LocalAddresses, Tracer


class HeldTracing(Protocol):
    """The part of a tracing module that is common to Services and policies."""

    OWNER_MARKS: Mapping[str, Any]
    """The owner mark of each kind of state that the data plane puts into a kernel, by the name of the kind in
    ``state.kinds.KINDS``."""

    def held(self, values: Sequence[StateValue], netns_path: NetnsPath, machine: LocalAddresses) -> Tracer | None:
        """A tracer over the kernel's values under the marks; None when the data plane is not in the kernel.

        From the namespace itself come only data without a kind of state: counters, clients that rules remember, relays.

        Raises: KernelError.
        """
        ...


def trace_held(tracing: HeldTracing, netns_path: NetnsPath, machine: LocalAddresses) -> Tracer | None:
    """A tracer over what the kernel of a namespace holds of a data plane; None when the data plane is not there.

    Raises: KernelError, and ProtocolError for a rule that cannot be read.
    """
    return tracing.held(read_values(netns_path, tracing.OWNER_MARKS), netns_path, machine)
