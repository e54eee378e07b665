"""Opening and clearing the data planes of a registry in one network namespace.

A registry entry names a class; it is called with the facts of a node and the network namespace. The module of the class
also has a function ``clear``, which removes what an earlier run left.
"""

import importlib
from typing import Any, Generic, Protocol, TypeVar

from podwire.kernel.netns import NetnsPath
from podwire.runtime.registry import Registry

Facts = TypeVar("Facts")
Facts_contra = TypeVar("Facts_contra", contravariant=True)
Plane = TypeVar("Plane")
Plane_co = TypeVar("Plane_co", covariant=True)


class Modes(Protocol[Facts_contra, Plane_co]):
    """Opens and clears data planes by name."""

    def names(self) -> tuple[str, ...]:
        """All names, the preferred one first."""
        ...

    def open(self, name: str, facts: Facts_contra) -> Plane_co:
        """Opens a data plane by its name; nothing is written yet.

        Raises: KernelError.
        """
        ...

    def clear(self, name: str) -> bool:
        """Removes what an earlier run left of a mode; returns whether there was anything.

        Raises: KernelError.
        """
        ...


class RegisteredModes(Generic[Facts, Plane]):
    """The data planes that a registry names, in one network namespace."""

    def __init__(self, entries: Registry[Any], netns_path: NetnsPath = None) -> None:
        self._entries = entries
        self._netns_path = netns_path

    def names(self) -> tuple[str, ...]:
        """All names, the preferred one first."""
        return tuple(self._entries)

    def open(self, name: str, facts: Facts) -> Plane:
        """Opens a data plane by its name; nothing is written yet.

        Raises: ConfigError for a name that is not in the registry; KernelError.
        """
        plane: Plane = self._entries.load(name)(facts, self._netns_path)
        return plane

    def clear(self, name: str) -> bool:
        """Removes what an earlier run left of a mode; returns whether there was anything.

        Raises: ConfigError for a name that is not in the registry; KernelError.
        """
        self._entries.check(name)
        removed: bool = importlib.import_module(self._entries[name].partition(":")[0]).clear(self._netns_path)
        return removed
