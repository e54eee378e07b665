"""The policy data plane ``nftables`` under a second name; loading this module as a pytest plugin registers it."""

from podwire.policy import registry
from podwire.policy.dataplanes.nftables import dataplane

clear = dataplane.clear


class RenamedPolicy(dataplane.NftablesPolicy):
    """The data plane ``nftables`` under a new name."""

    name = "renamed"


registry.DATAPLANES["renamed"] = f"{__name__}:RenamedPolicy"
registry.TRACERS["renamed"] = registry.TRACERS["nftables"]
