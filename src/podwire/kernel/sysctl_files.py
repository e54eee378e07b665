"""Kernel parameters that are compared again and again, by files that stay open.

The kernel reports changes of few parameters (:func:`is_reported`); the others have to be read. A file below
/proc/sys/net belongs to the network namespace in which it was opened, and ``pread`` at offset 0 returns the value of
that moment. So a comparison needs neither ``setns`` nor the path. When the device of a parameter is deleted or renamed,
its file fails; it is opened again when there is a device of that name. Open files keep no namespace alive.

Cost: one open file and 1 us a comparison for each parameter, where opening, reading and closing take 15 us.
"""

import os
from collections.abc import Hashable, Iterable

from podwire.errors import KernelError
from podwire.kernel import sysctl
from podwire.kernel.netns import NetnsPath, inside
from podwire.state.route import Sysctl

_REPORTED = frozenset({"bc_forwarding", "forwarding", "ignore_routes_with_linkdown", "rp_filter"})
"""``devinet_conf_proc`` and ``devinet_sysctl_forward`` in net/ipv4/devinet.c, ``addrconf_sysctl_forward``."""
_LENGTH = 256


def is_reported(path: str) -> bool:
    """Whether :mod:`podwire.kernel.monitor` reports changes of a parameter of a device."""
    return "/conf/" in path and path.rpartition("/")[2] in _REPORTED


class _OpenFiles:
    """The open files of one group of parameters in one namespace."""

    def __init__(self, desired: Iterable[Sysctl], netns: NetnsPath) -> None:
        self.netns = netns
        self._desired = tuple(desired)
        self._files: list[tuple[int, bytes, Sysctl]] = []

    def close(self) -> None:
        for descriptor, _, _ in self._files:
            os.close(descriptor)
        self._files = []

    @property
    def is_complete(self) -> bool:
        """Whether all parameters existed at the last comparison."""
        return len(self._files) == len(self._desired)

    def differing(self) -> list[Sysctl]:
        """The parameters with another value; those that do not exist are left out."""
        try:
            if self.is_complete:
                return self._compare()
        except OSError:  # Their device is gone, or was renamed or made again.
            self.close()
        self._open()
        try:
            return self._compare()
        except OSError:
            self.close()
            return []

    def _compare(self) -> list[Sysctl]:
        return [
            entry
            for descriptor, expected, entry in self._files
            if (present := os.pread(descriptor, _LENGTH, 0)) != expected and present.split() != expected.split()
        ]

    def _open(self) -> None:
        self.close()
        try:
            with inside(self.netns):
                for entry in self._desired:
                    try:
                        descriptor = os.open(sysctl.root() / entry.path, os.O_RDONLY | os.O_CLOEXEC)
                    except OSError:
                        continue
                    self._files.append((descriptor, f"{entry.value}\n".encode(), entry))
        except KernelError:
            self.close()  # The namespace is gone.


class SysctlFiles:
    """The desired parameters of several groups, each in a network namespace (None: that of this thread)."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _OpenFiles] = {}

    def close(self) -> None:
        """Closes all files; the parameters stay."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    def keep(self, name: Hashable, desired: Iterable[Sysctl], netns: NetnsPath = None) -> None:
        """Adds a group, or replaces it."""
        self.drop(name)
        self._groups[name] = _OpenFiles(desired, netns)

    def drop(self, name: Hashable) -> None:
        """Removes a group; without effect when there is none."""
        group = self._groups.pop(name, None)
        if group is not None:
            group.close()

    def differing(self) -> list[tuple[NetnsPath, Sysctl]]:
        """The desired parameters that have another value now, with their namespace."""
        return [(group.netns, entry) for group in self._groups.values() for entry in group.differing()]

    def incomplete(self) -> list[Hashable]:
        """The groups of which a parameter did not exist at the last comparison, as when its device is gone."""
        return [name for name, group in self._groups.items() if not group.is_complete]
