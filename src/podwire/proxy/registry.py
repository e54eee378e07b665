"""The proxy data planes by name; a new data plane is one line in each of these literals (pure).

Each data plane is a class in a module with a function ``clear``, which removes the rules of an earlier run. When a data
plane cannot be used, the others are tried in this order.
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
"""The modules that trace a packet through the state of a data plane (see ``proxy.tracing``)."""

FEATURES = {"nftables": "nftables", "ipvs": "ip_vs", "userspace": "nftables"}
"""The kernel feature that a data plane needs, as in ``kernel.features``; other data planes check when they open."""
