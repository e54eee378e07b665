"""The proxy data planes by name; the module is imported when one is chosen.

Each has a class that programs, and a function that takes away what an earlier run left. The order is that in which
one stands in for another that cannot be had.
"""

from typing import Any

from podwire.dataplane.registry import Place, Registered
from podwire.proxy.dataplane import ServiceDataPlane
from podwire.proxy.servicemap import NodeFacts
from podwire.runtime import registry

DATAPLANES: registry.Registry[Any] = registry.Registry(
    "data plane",
    "proxy.mode",
    {
        "nftables": "podwire.proxy.dataplanes.nftables.dataplane:NftablesDataPlane",
        "iptables": "podwire.proxy.dataplanes.iptables.dataplane:IptablesDataPlane",
        "ipvs": "podwire.proxy.dataplanes.ipvs.dataplane:IpvsDataPlane",
        "userspace": "podwire.proxy.dataplanes.userspace.dataplane:UserspaceDataPlane",
    },
)

TRACERS: registry.Registry[Any] = registry.Registry(
    "data plane that can be traced",
    "mode",
    {
        "nftables": "podwire.proxy.dataplanes.nftables.tracing",
        "iptables": "podwire.proxy.dataplanes.iptables.tracing",
        "ipvs": "podwire.proxy.dataplanes.ipvs.tracing",
        "userspace": "podwire.proxy.dataplanes.userspace.tracing",
    },
)
"""What follows a packet through the state of a data plane, by the name of the data plane (``proxy.tracing``)."""

FEATURES = {"nftables": "nftables", "ipvs": "ip_vs", "userspace": "nftables"}
"""The kernel feature that one needs, as in ``kernel.features``; what is not here says itself what is missing."""


class Registry(Registered[NodeFacts, ServiceDataPlane]):
    """The data planes of one network namespace (None: that of this process)."""

    def __init__(self, netns: Place = None) -> None:
        super().__init__(DATAPLANES, netns)


def open_dataplane(name: str, facts: NodeFacts, netns: Place = None) -> ServiceDataPlane:
    """The data plane of that name in a network namespace (None: that of this thread).

    Raises: ConfigError for a name that is not in the registry; KernelError.
    """
    return Registry(netns).open(name, facts)
