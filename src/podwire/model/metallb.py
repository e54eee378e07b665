"""IPAddressPool, L2Advertisement, BGPAdvertisement, BGPPeer, Community, BFDProfile, and the status of Services
(``metallb.io``), with the field names of MetalLB.

Fields that podwire does not honour are read too, so that an object with one of them can be refused by its name. Source:
MetalLB's API reference, ``metallb.io/v1beta1`` and ``metallb.io/v1beta2``.
"""

import msgspec

from podwire.model.meta import Fact, ObjectMeta
from podwire.model.selector import LabelSelector

METALLB_NAMESPACE = "metallb-system"
"""The namespace of the objects that count; those elsewhere have no effect, as with MetalLB."""

API_VERSION = "metallb.io/v1beta1"
PEER_API_VERSION = "metallb.io/v1beta2"


class ServiceAllocation(Fact, frozen=True):
    """The Services that may have addresses of a pool; ``priority`` 0 is the last, else lower numbers come first."""

    priority: int = 0
    namespaces: tuple[str, ...] = ()
    namespace_selectors: tuple[LabelSelector, ...] = ()
    service_selectors: tuple[LabelSelector, ...] = ()


class IpAddressPoolSpec(Fact, frozen=True):
    """The addresses of a pool: ranges ``10.0.0.0/24`` or ``10.0.0.1-10.0.0.9``."""

    addresses: tuple[str, ...] = ()
    auto_assign: bool = True
    avoid_buggy_ips: bool = msgspec.field(default=False, name="avoidBuggyIPs")
    service_allocation: ServiceAllocation | None = None


class IpAddressPoolStatus(Fact, frozen=True):
    """How many addresses of a pool are in use and free."""

    assigned_ipv4: int = msgspec.field(default=0, name="assignedIPv4")
    assigned_ipv6: int = msgspec.field(default=0, name="assignedIPv6")
    available_ipv4: int = msgspec.field(default=0, name="availableIPv4")
    available_ipv6: int = msgspec.field(default=0, name="availableIPv6")


class IpAddressPool(Fact, frozen=True):
    """``metallb.io/v1beta1`` IPAddressPool."""

    api_version: str = API_VERSION
    kind: str = "IPAddressPool"
    metadata: ObjectMeta = ObjectMeta()
    spec: IpAddressPoolSpec = IpAddressPoolSpec()
    status: IpAddressPoolStatus = IpAddressPoolStatus()


class PreferredNodes(Fact, frozen=True):
    """Nodes that are preferred with a weight of 1 to 100."""

    weight: int = 0
    preference: LabelSelector = LabelSelector()


class L2AdvertisementSpec(Fact, frozen=True):
    """The pools, nodes and devices of announcements by ARP and NDP; without pools all pools."""

    ip_address_pools: tuple[str, ...] = ()
    ip_address_pool_selectors: tuple[LabelSelector, ...] = ()
    node_selectors: tuple[LabelSelector, ...] = ()
    preferred_node_selectors: tuple[PreferredNodes, ...] = ()
    interfaces: tuple[str, ...] = ()
    service_selectors: tuple[LabelSelector, ...] = ()


class L2Advertisement(Fact, frozen=True):
    """``metallb.io/v1beta1`` L2Advertisement."""

    api_version: str = API_VERSION
    kind: str = "L2Advertisement"
    metadata: ObjectMeta = ObjectMeta()
    spec: L2AdvertisementSpec = L2AdvertisementSpec()


class BgpAdvertisementSpec(Fact, frozen=True):
    """The pools, nodes, peers and attributes of announcements by BGP; without pools all pools."""

    aggregation_length: int = 32
    aggregation_length_v6: int = msgspec.field(default=128, name="aggregationLengthV6")
    local_pref: int = 0
    communities: tuple[str, ...] = ()
    ip_address_pools: tuple[str, ...] = ()
    ip_address_pool_selectors: tuple[LabelSelector, ...] = ()
    node_selectors: tuple[LabelSelector, ...] = ()
    service_selectors: tuple[LabelSelector, ...] = ()
    peers: tuple[str, ...] = ()


class BgpAdvertisement(Fact, frozen=True):
    """``metallb.io/v1beta1`` BGPAdvertisement."""

    api_version: str = API_VERSION
    kind: str = "BGPAdvertisement"
    metadata: ObjectMeta = ObjectMeta()
    spec: BgpAdvertisementSpec = BgpAdvertisementSpec()


class SecretReference(Fact, frozen=True):
    """A Secret of type ``kubernetes.io/basic-auth``, whose key ``password`` is read."""

    name: str = ""
    namespace: str = ""


class MetalLbPeerSpec(Fact, frozen=True):
    """A BGP session of the selected nodes with a router."""

    my_asn: int = msgspec.field(default=0, name="myASN")
    peer_asn: int = msgspec.field(default=0, name="peerASN")
    dynamic_asn: str = msgspec.field(default="", name="dynamicASN")
    peer_address: str = ""
    interface: str = ""
    source_address: str = ""
    peer_port: int = 179
    hold_time: str = ""
    keepalive_time: str = ""
    connect_time: str = ""
    router_id: str = msgspec.field(default="", name="routerID")
    node_selectors: tuple[LabelSelector, ...] = ()
    password: str = ""
    password_secret: SecretReference = SecretReference()
    bfd_profile: str = ""
    enable_graceful_restart: bool = False
    ebgp_multi_hop: bool = False
    vrf: str = ""
    disable_mp: bool = msgspec.field(default=False, name="disableMP")
    dual_stack_address_family: bool = False


class MetalLbPeer(Fact, frozen=True):
    """``metallb.io/v1beta2`` BGPPeer."""

    api_version: str = PEER_API_VERSION
    kind: str = "BGPPeer"
    metadata: ObjectMeta = ObjectMeta()
    spec: MetalLbPeerSpec = MetalLbPeerSpec()


class CommunityAlias(Fact, frozen=True):
    """A name for a community: ``64512:100``, or ``large:64512:1:100``."""

    name: str = ""
    value: str = ""


class CommunitySpec(Fact, frozen=True):
    """The names that an object defines."""

    communities: tuple[CommunityAlias, ...] = ()


class MetalLbCommunity(Fact, frozen=True):
    """``metallb.io/v1beta1`` Community."""

    api_version: str = API_VERSION
    kind: str = "Community"
    metadata: ObjectMeta = ObjectMeta()
    spec: CommunitySpec = CommunitySpec()


class BfdProfileSpec(Fact, frozen=True):
    """The times of BFD sessions in milliseconds; None is the default of the engine."""

    receive_interval: int | None = None
    transmit_interval: int | None = None
    detect_multiplier: int | None = None
    echo_interval: int | None = None
    echo_mode: bool = False
    passive_mode: bool = False
    minimum_ttl: int | None = None


class BfdProfile(Fact, frozen=True):
    """``metallb.io/v1beta1`` BFDProfile."""

    api_version: str = API_VERSION
    kind: str = "BFDProfile"
    metadata: ObjectMeta = ObjectMeta()
    spec: BfdProfileSpec = BfdProfileSpec()


class InterfaceInfo(Fact, frozen=True):
    """A device of a node."""

    name: str = ""


class ServiceAnnouncement(Fact, frozen=True):
    """Where a node announces the addresses of a Service: on devices (L2), or to BGPPeers."""

    node: str = ""
    service_name: str = ""
    service_namespace: str = ""
    interfaces: tuple[InterfaceInfo, ...] = ()
    peers: tuple[str, ...] = ()


class ServiceStatusObject(Fact, frozen=True):
    """``metallb.io/v1beta1`` ServiceL2Status or ServiceBGPStatus."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    status: ServiceAnnouncement = ServiceAnnouncement()
