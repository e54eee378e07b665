"""The policy data planes by name, in the order in which one stands in for another that cannot be had (pure).

Each is a class that programs, in a module that is imported when it is chosen.
"""

from typing import Any

from podwire.runtime.registry import Registry

AUTO = "auto"
"""Asks for the first that this machine has."""

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
"""What follows a packet through the state of a data plane, by the name of the data plane (``policy.tracing``)."""

FEATURES = {"nftables": "nftables"}
"""The kernel feature that one needs, as in ``kernel.features``; what is not here says itself what is missing."""
