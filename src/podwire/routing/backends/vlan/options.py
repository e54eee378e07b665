"""The options of the backend ``vlan``: the VLAN of the default network, further pod networks, and contracts (pure)."""

import msgspec

from podwire.routing.backend import BackendOptions, check_range
from podwire.routing.podnetworks import VLANS, Contract, PodNetworks, PodNetworkSection
from podwire.routing.segment import check_uplink


class VlanSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The number of the VLAN, and the device that leads to the other nodes.

    An empty ``uplink`` is the device with the node's addresses. ``networks`` are further pod networks with VLANs of
    their own on the same uplink, ``contracts`` are between two networks each.
    """

    id: int = 1000
    uplink: str = ""
    networks: tuple[PodNetworkSection, ...] = ()
    contracts: tuple[Contract, ...] = ()


class VlanOptions(BackendOptions, frozen=True):
    """The section ``routing.vlan``."""

    routes_outside = True

    vlan: VlanSection = VlanSection()

    def check(self, source: str) -> None:
        """Checks the range of IEEE 802.1Q, which reserves 0 and 4095, the name of the uplink, networks and contracts.

        Raises: ConfigError naming the field.
        """
        check_range(source, "routing.vlan.id", self.vlan.id, *VLANS)
        check_uplink(source, "routing.vlan.uplink", self.vlan.uplink)
        self.pod_networks.check(source, "routing.vlan")

    @property
    def pod_networks(self) -> PodNetworks:
        """The networks and contracts."""
        return PodNetworks(self.vlan.id, self.vlan.networks, self.vlan.contracts)
