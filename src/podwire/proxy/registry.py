"""The proxy data planes by name; the module is imported when one is chosen.

Each has a class that programs, and a function that takes away what an earlier run left. The order is that in which
one stands in for another that cannot be had.
"""

import importlib
from pathlib import Path

from podwire.proxy.dataplane import DataPlane
from podwire.proxy.servicemap import NodeFacts

DATAPLANES = {
    "nftables": "podwire.proxy.dataplanes.nftables.dataplane:NftablesDataPlane",
    "iptables": "podwire.proxy.dataplanes.iptables.dataplane:IptablesDataPlane",
    "ipvs": "podwire.proxy.dataplanes.ipvs.dataplane:IpvsDataPlane",
    "userspace": "podwire.proxy.dataplanes.userspace.dataplane:UserspaceDataPlane",
}

FEATURES = {"nftables": "nftables", "ipvs": "ip_vs", "userspace": "nftables"}
"""The kernel feature that one needs, as in ``kernel.features``; what is not here says itself what is missing."""


def open_dataplane(name: str, facts: NodeFacts, netns: Path | str | None = None) -> DataPlane:
    """The data plane of that name in a network namespace (None: that of this thread).

    Raises: KeyError for a name that is not in the registry; KernelError.
    """
    module, _, attribute = DATAPLANES[name].partition(":")
    made: DataPlane = getattr(importlib.import_module(module), attribute)(facts, netns)
    return made


class Registry:
    """The data planes of one network namespace (None: that of this process)."""

    def __init__(self, netns: Path | str | None = None) -> None:
        self._netns = netns

    def names(self) -> tuple[str, ...]:
        """All there are."""
        return tuple(DATAPLANES)

    def open(self, name: str, facts: NodeFacts) -> DataPlane:
        """One by its name.

        Raises: KeyError for a name that is not in the registry; KernelError.
        """
        return open_dataplane(name, facts, self._netns)

    def clear(self, name: str) -> bool:
        """Takes away what an earlier run left of one; whether there was anything.

        Raises: KeyError for a name that is not in the registry; KernelError.
        """
        found: bool = importlib.import_module(DATAPLANES[name].partition(":")[0]).clear(self._netns)
        return found
