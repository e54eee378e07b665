"""A policy data plane under another name, put into the registry where this module is loaded as a plugin of pytest."""

from podwire.policy import registry
from podwire.policy.dataplanes.nftables import dataplane

clear = dataplane.clear


class BorrowedPolicy(dataplane.NftablesPolicy):
    """The data plane ``nftables`` under a new name."""

    name = "borrowed"


registry.DATAPLANES["borrowed"] = f"{__name__}:BorrowedPolicy"
registry.TRACERS["borrowed"] = registry.TRACERS["nftables"]
