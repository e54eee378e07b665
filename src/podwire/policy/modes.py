"""The policy data planes by name, in the order in which one stands in for another that cannot be had (pure).

Each is a class that programs, in a module that is imported when it is chosen.
"""

AUTO = "auto"
"""Asks for the first that this machine has."""

DATAPLANES = {
    "nftables": "podwire.policy.dataplanes.nftables.dataplane:NftablesPolicy",
    "iptables": "podwire.policy.dataplanes.iptables.dataplane:IptablesPolicy",
}

FEATURES = {"nftables": "nftables"}
"""The kernel feature that one needs, as in ``kernel.features``; what is not here says itself what is missing."""
