"""The limits of the kernel's neighbour tables (pure).

A table holds at most ``gc_thresh3`` entries, and removes unused ones from ``gc_thresh2`` on (net/core/neighbour.c).
When all are in use, packets to further neighbours are dropped. Entries for pods and for the far ends of tunnels are
permanent, which do not count. Those of peers on the node's own subnet are resolved by ARP and NDP and count. With more
than :data:`FEW` peers the limits are raised, to four and two entries for each; limits that are higher already stay.
The limits hold for all network namespaces of the machine, and only the initial one shows them.
"""

from collections.abc import Iterable, Mapping

from podwire.routing.nodes import LocalNode
from podwire.state.network import NetworkState
from podwire.state.route import Sysctl

FEW = 64
"""The kernel's own limits, 512 and 1,024 entries, have room for these and much else."""
_BASE = {2: 128, 3: 256}
_PER_PEER = {2: 2, 3: 4}
_PATHS = {version: f"net/ipv{version}/neigh/default/gc_thresh" for version in (4, 6)}
LIMITS = tuple(f"{path}{number}" for path in _PATHS.values() for number in _BASE)
"""The sysctls of the limits."""


def limits_of(values: Iterable[Sysctl]) -> Mapping[int, tuple[int, int]]:
    """``gc_thresh2`` and ``gc_thresh3`` by family; without a family that is not shown."""
    numbers = {value.path: int(value.value) for value in values}
    return {
        version: (numbers[f"{path}2"], numbers[f"{path}3"])
        for version, path in _PATHS.items()
        if f"{path}2" in numbers and f"{path}3" in numbers
    }


def neighbour_limits(me: LocalNode, count: int) -> NetworkState:
    """The limits for ``count`` peers, as if all were on the node's own subnet; nothing where they are few."""
    sysctls = []
    for version, present in sorted(me.underlay.neighbour_limits.items()) if count > FEW else ():
        for number, limit in zip(_BASE, present, strict=True):
            value = max(limit, _BASE[number] + _PER_PEER[number] * count)
            sysctls.append(Sysctl(path=f"{_PATHS[version]}{number}", value=str(value)))
    return NetworkState(sysctls=tuple(sysctls))
