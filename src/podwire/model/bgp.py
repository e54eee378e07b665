"""BGPConfiguration, BGPPeer, BGPFilter and IPPool (``projectcalico.org/v3``), with the field names of Calico.

Fields that podwire does not honour are read too, so that an object with one of them can be refused by its name. Source:
Calico's API reference, "BGP configuration", "BGP peer", "BGP filter", "IP pool".
"""

from typing import Any, Literal

import msgspec

from podwire.model.meta import Fact, ObjectMeta

API_VERSION = "projectcalico.org/v3"


class CidrBlock(Fact, frozen=True):
    """A range of addresses."""

    cidr: str = ""


class Community(Fact, frozen=True):
    """A name for a community, ``64512:100`` or large ``64512:1:100``."""

    name: str = ""
    value: str = ""


class PrefixAdvertisement(Fact, frozen=True):
    """Communities, by name or value, of the announced routes inside a range."""

    cidr: str = ""
    communities: tuple[str, ...] = ()


class SecretKeyRef(Fact, frozen=True):
    """A key of a Secret in the namespace of the agents."""

    name: str = ""
    key: str = ""
    optional: bool = False


class BgpPassword(Fact, frozen=True):
    """Where the TCP MD5 password of a session is (RFC 2385)."""

    secret_key_ref: SecretKeyRef | None = None


class BgpConfigurationSpec(Fact, frozen=True):
    """Settings of all nodes (the object ``default``), or of one (``node.NAME``)."""

    log_severity_screen: str = ""
    node_to_node_mesh_enabled: bool | None = None
    as_number: int | None = None
    listen_port: int | None = None
    bind_mode: Literal["", "None", "NodeIP"] = ""
    node_mesh_password: BgpPassword | None = None
    node_mesh_max_restart_time: str = ""
    service_cluster_ips: tuple[CidrBlock, ...] = msgspec.field(default=(), name="serviceClusterIPs")
    service_external_ips: tuple[CidrBlock, ...] = msgspec.field(default=(), name="serviceExternalIPs")
    service_load_balancer_ips: tuple[CidrBlock, ...] = msgspec.field(default=(), name="serviceLoadBalancerIPs")
    service_load_balancer_aggregation: str = ""
    communities: tuple[Community, ...] = ()
    prefix_advertisements: tuple[PrefixAdvertisement, ...] = ()
    ignored_interfaces: tuple[str, ...] = ()
    local_workload_peering_ipv4: str = msgspec.field(default="", name="localWorkloadPeeringIPV4")
    local_workload_peering_ipv6: str = msgspec.field(default="", name="localWorkloadPeeringIPV6")
    program_cluster_routes: str = ""
    ipv4_normal_route_priority: int | None = None
    ipv6_normal_route_priority: int | None = None


class BgpConfigurationObject(Fact, frozen=True):
    """``projectcalico.org/v3`` BGPConfiguration."""

    api_version: str = API_VERSION
    kind: str = "BGPConfiguration"
    metadata: ObjectMeta = ObjectMeta()
    spec: BgpConfigurationSpec = BgpConfigurationSpec()


class BgpPeerSpec(Fact, frozen=True):
    """Sessions of the selected nodes with an address, or with other nodes."""

    node: str = ""
    node_selector: str = ""
    peer_ip: str = msgspec.field(default="", name="peerIP")
    """An address, or an address and a port: ``192.0.2.1:1179``, ``[fd00::1]:1179``."""
    as_number: int | None = None
    local_as_number: int | None = msgspec.field(default=None, name="localASNumber")
    peer_selector: str = ""
    keep_original_next_hop: bool = False
    next_hop_mode: Literal["", "Auto", "Self", "Keep"] = ""
    password: BgpPassword | None = None
    source_address: Literal["", "UseNodeIP", "None"] = ""
    max_restart_time: str = ""
    keepalive_time: str = ""
    num_allowed_local_as_numbers: int | None = msgspec.field(default=None, name="numAllowedLocalASNumbers")
    ttl_security: int | None = None
    """The number of hops to the peer."""
    reachable_by: str = ""
    filters: tuple[str, ...] = ()
    local_workload_selector: str = ""
    reverse_peering: Literal["", "Auto", "Manual"] = ""


class BgpPeerObject(Fact, frozen=True):
    """``projectcalico.org/v3`` BGPPeer."""

    api_version: str = API_VERSION
    kind: str = "BGPPeer"
    metadata: ObjectMeta = ObjectMeta()
    spec: BgpPeerSpec = BgpPeerSpec()


class PrefixLength(Fact, frozen=True):
    """Bounds of the length of a prefix, both included."""

    min: int | None = None
    max: int | None = None


class CommunityMatch(Fact, frozen=True):
    """The community that a route must have."""

    values: tuple[str, ...] = ()


class AddCommunity(Fact, frozen=True):
    """A community that is added to a route."""

    value: str = ""


class PrependAsPath(Fact, frozen=True):
    """Numbers that are put before the path of a route."""

    prefix: tuple[int, ...] = ()


class FilterOperation(Fact, frozen=True):
    """One change of a route; exactly one field is set."""

    add_community: AddCommunity | None = None
    prepend_as_path: PrependAsPath | None = msgspec.field(default=None, name="prependASPath")
    set_priority: dict[str, Any] | None = None


class FilterRule(Fact, frozen=True):
    """What a route must match, all of it, and what happens to such a route."""

    action: Literal["Accept", "Reject"]
    cidr: str = ""
    match_operator: Literal["", "Equal", "NotEqual", "In", "NotIn"] = ""
    prefix_length: PrefixLength | None = None
    interface: str = ""
    source: Literal["", "RemotePeers"] = ""
    peer_type: Literal["", "eBGP", "iBGP"] = ""
    communities: CommunityMatch | None = None
    as_path_prefix: tuple[int, ...] = ()
    priority: int | None = None
    operations: tuple[FilterOperation, ...] = ()


class BgpFilterSpec(Fact, frozen=True):
    """Rules for received and sent routes of each family; the first rule that matches decides."""

    import_v4: tuple[FilterRule, ...] = ()
    import_v6: tuple[FilterRule, ...] = ()
    export_v4: tuple[FilterRule, ...] = ()
    export_v6: tuple[FilterRule, ...] = ()


class BgpFilterObject(Fact, frozen=True):
    """``projectcalico.org/v3`` BGPFilter."""

    api_version: str = API_VERSION
    kind: str = "BGPFilter"
    metadata: ObjectMeta = ObjectMeta()
    spec: BgpFilterSpec = BgpFilterSpec()


class IpPoolSpec(Fact, frozen=True):
    """A range of pod addresses; None: the object does not say it."""

    cidr: str = ""
    block_size: int | None = None
    disable_bgp_export: bool = msgspec.field(default=False, name="disableBGPExport")
    nat_outgoing: bool | None = None
    disabled: bool = False
    ipip_mode: str = ""
    vxlan_mode: str = ""
    node_selector: str = ""
    namespace_selector: str = ""
    allowed_uses: tuple[str, ...] = ()
    assignment_mode: str = ""


class IpPoolObject(Fact, frozen=True):
    """``projectcalico.org/v3`` IPPool."""

    api_version: str = API_VERSION
    kind: str = "IPPool"
    metadata: ObjectMeta = ObjectMeta()
    spec: IpPoolSpec = IpPoolSpec()
