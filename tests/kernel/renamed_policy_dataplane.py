"""A policy data plane under another name, put into the registry where this module is loaded as a plugin of pytest."""

from podwire.policy import modes
from podwire.policy.dataplanes.nftables import dataplane

clear = dataplane.clear


class BorrowedPolicy(dataplane.NftablesPolicy):
    """The data plane ``nftables`` under a new name."""

    name = "borrowed"


modes.DATAPLANES["borrowed"] = f"{__name__}:BorrowedPolicy"
modes.TRACERS["borrowed"] = modes.TRACERS["nftables"]
