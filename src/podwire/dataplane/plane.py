"""The interface that data planes of Services and of policies share.

A data plane is opened for one network namespace, takes the whole desired state or a change of it, and makes the kernel
hold that. Every data plane guarantees: 1. a load with nothing changed writes nothing, so a restart of the agent is
harmless to traffic; 2. a change that the kernel refuses leaves the last good state in force and is raised; 3. ``close``
leaves everything in force, ``remove`` removes what is marked as ours and nothing else.
"""

from collections.abc import Sequence
from typing import Protocol

from podwire.state.value import StateValue


class Batch(Protocol):
    """Operations that were given to the kernel together; its text is what was written."""

    def __bool__(self) -> bool:
        """Whether there was anything to write."""
        ...

    def __str__(self) -> str: ...


Written = Sequence[Batch | str]
"""What a data plane wrote, in this order; an entry without operations, or without text, is false."""


class DataPlane(Protocol):
    """What programs one kernel, whatever it programs."""

    @property
    def name(self) -> str:
        """Its name in the registry."""
        ...

    def heal(self) -> Written:
        """Restores what another program changed; returns what had to be written.

        Raises: KernelError.
        """
        ...

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be asked."""
        ...

    def disturbed(self) -> bool:
        """Whether another program may have changed what this data plane holds."""
        ...

    def desired(self) -> tuple[StateValue, ...]:
        """What the kernel should hold."""
        ...

    def remove(self) -> None:
        """Takes all of it out of the kernel.

        Raises: KernelError.
        """
        ...

    def close(self) -> None:
        """Closes what is open to the kernel; what is in force stays."""
        ...
