"""The interface that data planes of Services and of policies share.

A data plane is opened for one network namespace, takes the whole desired state or a change of it, and makes the kernel
hold it. Every data plane guarantees: 1. a load without changes writes nothing, so a restart of the agent does not
affect traffic; 2. when the kernel refuses a change, the last good state stays in force and the error is raised; 3.
``close`` leaves everything in force, ``remove`` removes the objects with podwire's mark and nothing else.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from podwire.state.value import StateValue


class WrittenBatch(Protocol):
    """Operations that were sent to the kernel together; the text of the batch is what was written."""

    def __bool__(self) -> bool:
        """Whether anything was written."""
        ...

    def __str__(self) -> str: ...


Written = Sequence[WrittenBatch | str]
"""The writes of a data plane, in order; an entry without operations, or without text, is false."""


class DataPlane(Protocol):
    """Programs Services or policies into the kernel of one network namespace."""

    @property
    def name(self) -> str:
        """The name of the data plane in the registry."""
        ...

    def fileno(self) -> int:
        """Readable when :meth:`disturbed` should be called."""
        ...

    def disturbed(self) -> bool:
        """Whether another program may have changed what this data plane holds."""
        ...

    def desired(self) -> tuple[StateValue, ...]:
        """What the kernel should hold."""
        ...

    def remove(self) -> None:
        """Removes everything that the data plane owns from the kernel.

        Raises: KernelError.
        """
        ...

    def close(self) -> None:
        """Closes the sockets to the kernel; the kernel keeps its state."""
        ...


@runtime_checkable
class Restoring(Protocol):
    """A data plane that can restore parts of its state without reading the kernel."""

    def restore(self) -> Written:
        """Writes what the kernel's notifications named, where that takes little time; returns what was committed.

        The event loop calls it, so it takes some milliseconds, 40 at most. It raises nothing: what it could not
        restore, ``heal`` restores.
        """
        ...


@runtime_checkable
class Repairing(Protocol):
    """A data plane that can write what notifications named before it reads everything, but not in the event loop."""

    def repair(self) -> Written:
        """Writes what other programs are known to have changed; returns what was written.

        A thread calls it. It raises nothing: what it could not write, ``heal`` writes.
        """
        ...
