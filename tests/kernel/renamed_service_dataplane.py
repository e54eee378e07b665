"""A data plane under another name, put into the registry where this module is loaded as a plugin of pytest."""

from podwire.proxy import registry
from podwire.proxy.dataplanes.nftables import dataplane

clear = dataplane.clear


class BorrowedDataPlane(dataplane.NftablesDataPlane):
    """The data plane ``nftables`` under a new name."""

    name = "borrowed"


registry.DATAPLANES["borrowed"] = f"{__name__}:BorrowedDataPlane"
registry.TRACERS["borrowed"] = registry.TRACERS["nftables"]
