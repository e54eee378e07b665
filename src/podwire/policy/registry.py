"""The policy data planes by name, in the order in which ``auto`` and a fallback try them (pure).

Each entry names the class of a data plane; its module is imported when the data plane is chosen.
"""

from typing import Any

from podwire.runtime.registry import Registry

AUTO = "auto"
"""The mode that selects the first data plane that the machine supports."""

DATAPLANES: Registry[Any] = Registry(
    "data plane of policies",
    "policy.mode",
    {
        "nftables": "podwire.policy.dataplanes.nftables.dataplane:NftablesPolicy",
        "iptables": "podwire.policy.dataplanes.iptables.dataplane:IptablesPolicy",
    },
)

TRACERS: Registry[Any] = Registry(
    "data plane of policies that can be traced",
    "mode",
    {
        "nftables": "podwire.policy.dataplanes.nftables.tracing",
        "iptables": "podwire.policy.dataplanes.iptables.tracing",
    },
)
"""The modules that trace a packet through the state of a data plane (``policy.tracing``), by data plane."""

FEATURES = {"nftables": "nftables"}
"""The kernel feature (``kernel.features``) that a data plane needs; a data plane that is not listed checks
its needs when it is opened.
"""
