"""What a policy data plane is to the rest: the seam that every one implements."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from podwire.policy.compile import Compiler, Delta
from podwire.policy.settings import SILENT, LogSettings
from podwire.state.nft import Table


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a data plane needs to know of its node."""

    pod_ranges: tuple[str, ...] = ()
    """The ranges that this node gives addresses to pods from, both families."""
    addresses: tuple[str, ...] = ()
    """The node's addresses, both families."""
    log: LogSettings = SILENT
    """What is logged, and how much of it."""
    cluster_ranges: tuple[str, ...] = ()
    """The ranges that pods of the whole cluster have their addresses from, both families."""
    encapsulation_ports: tuple[int, ...] = ()
    """UDP ports to which a pod may send to pods alone, since a node may unpack what comes there; IP in IP and GRE too.
    Empty: pods may encapsulate as they like."""
    keep: bool = False
    """Whether connections that were allowed when they began live on; else every packet of theirs is judged."""
    bridges: tuple[str, ...] = ()
    """Bridges that pods are ports of: there a pod is known by its address, not by the device."""


class PolicyDataPlane(Protocol):
    """Enforces policies on one node."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    def load(self, compiler: Compiler, devices: Mapping[str, str], facts: Facts | None = None) -> Sequence[object]:
        """Makes the kernel hold exactly what the compiler says; ``devices`` has that of each pod of this node.

        What had to be written, all of it false when nothing had to.

        Raises: KernelError; what was in force stays.
        """
        ...

    def update(self, compiler: Compiler, devices: Mapping[str, str], delta: Delta) -> Sequence[object]:
        """Takes over a change of the compiler; a pod whose device came or went stands in ``delta.pods`` too.

        Raises: KernelError; the next call loads everything again.
        """
        ...

    def heal(self) -> Sequence[object]:
        """Puts right what somebody else changed; what had to be written.

        Raises: KernelError.
        """
        ...

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be asked."""
        ...

    def disturbed(self) -> bool:
        """Whether somebody else may have changed what this data plane holds."""
        ...

    def desired(self) -> tuple[Table, ...]:
        """What the kernel should hold."""
        ...

    def remove(self) -> None:
        """Takes all of it out of the kernel.

        Raises: KernelError.
        """
        ...

    def close(self) -> None:
        """Lets go of the kernel; what is in force stays."""
        ...
