"""The Service data plane ``nftables`` under a second name; loading this module as a pytest plugin registers it."""

from podwire.proxy import registry
from podwire.proxy.dataplanes.nftables import dataplane

clear = dataplane.clear


class RenamedDataPlane(dataplane.NftablesDataPlane):
    """The data plane ``nftables`` under a new name."""

    name = "renamed"


registry.DATAPLANES["renamed"] = f"{__name__}:RenamedDataPlane"
registry.TRACERS["renamed"] = registry.TRACERS["nftables"]
