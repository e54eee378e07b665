"""The proxy data planes by name, and what belongs to each: a new one is a line in each of these literals (pure).

Each data plane is a class that programs, in a module with a function ``clear`` that removes what an earlier run left.
The order is that in which one stands in for another that cannot be had.
"""

from typing import Any

from podwire.runtime.registry import Registry

DATAPLANES: Registry[Any] = Registry(
    "data plane",
    "proxy.mode",
    {
        "nftables": "podwire.proxy.dataplanes.nftables.dataplane:NftablesDataPlane",
        "iptables": "podwire.proxy.dataplanes.iptables.dataplane:IptablesDataPlane",
        "ipvs": "podwire.proxy.dataplanes.ipvs.dataplane:IpvsDataPlane",
        "userspace": "podwire.proxy.dataplanes.userspace.dataplane:UserspaceDataPlane",
    },
)

TRACERS: Registry[Any] = Registry(
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
