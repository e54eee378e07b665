"""The objects of ``projectcalico.org/v3`` as checked values: settings, peers, filters, pools.

An object that says something wrong, or something that podwire does not honour, is refused as a whole, and the error
names its field: half of a peer or of a filter would be another configuration than the one that its author wrote.
``docs/adr/0015`` has the reasons, ``docs/backends/bgp.md`` the fields.
"""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from podwire.bgp.birdconf import METRIC
from podwire.bgp.configuration import Address, Community, LogLevel, Network, RouteRule, ServiceRoutes
from podwire.bgp.fields import AS_MAX, check_password, parse_seconds
from podwire.errors import ConfigError
from podwire.model.bgp import (
    BgpConfigurationObject,
    BgpPassword,
    BgpPeerObject,
    CidrBlock,
    IpPoolObject,
)
from podwire.model.expression import Expression, parse_expression
from podwire.routing.backend import check_range
from podwire.routing.backends.bgp.fields import (
    DEVICE_PATTERN,
    parse_address,
    parse_address_and_port,
    parse_community,
    parse_network,
    refuse_unhonoured,
    yaml_word,
)
from podwire.routing.backends.bgp.filters import FilterValues
from podwire.routing.backends.bgp.options import RESTART_MAX_S
from podwire.routing.backends.bgp.serviceaddresses import AnnouncedRanges
from podwire.routing.nodes import LocalNode, Peer

REFLECTOR = "projectcalico.org/RouteReflectorClusterID"
"""Annotation or label of a Node: the node is a route reflector with this identifier of its cluster."""
NODE_AS = "projectcalico.org/ASNumber"
"""Annotation of a Node: its own autonomous system number."""
NO_SERVICES = "node.kubernetes.io/exclude-from-external-load-balancers"
"""Label of a Node that announces no ranges of Services."""
DEFAULT = "default"
"""The name of the BGPConfiguration of all nodes; that of one node is ``node.NAME``."""

_ONE_NODE = "node."
_LOG_LEVELS: Mapping[str, LogLevel] = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
}
Secrets = Callable[[str, str], str | None]
"""The value of a key of a Secret; None when Secret or key is missing. Raises: ConfigError while it is not readable."""


class ConfigurationValues(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all nodes or of one node; None: the object does not say it."""

    as_number: int | None = None
    listen_port: int | None = None
    mesh: bool | None = None
    password: str | None = None
    restart_time_s: int | None = None
    log_level: LogLevel | None = None
    strict_bind: bool | None = None
    service_ranges: AnnouncedRanges | None = None
    ignored_devices: tuple[str, ...] | None = None
    writes_pod_routes: bool | None = None
    tags: tuple[tuple[Network, tuple[Community, ...]], ...] | None = None


class PeerValues(msgspec.Struct, frozen=True, kw_only=True):
    """A BGPPeer: sessions of the selected nodes with ``address``, or with the nodes that ``remotes`` selects."""

    name: str
    node: str = ""
    nodes: Expression | None = None
    address: Address | None = None
    port: int | None = None
    as_number: int | None = None
    """None where the peer is a node: that node's number."""
    remotes: Expression | None = None
    local_as: int | None = None
    next_hop: Literal["", "self", "keep", "keep external"] = ""
    """Like ``BgpSession.next_hop``; ``keep external``: ``keep`` in sessions with other autonomous systems."""
    password: str = ""
    has_source: bool = True
    restart_time_s: int = 0
    keepalive_s: int = 0
    own_as_limit: int | None = None
    hops: int = 0
    gateway: Address | None = None
    imports: tuple[RouteRule, ...] = ()
    exports: tuple[RouteRule, ...] = ()
    has_reverse: bool = True
    """Whether the node at ``address``, or the nodes that ``remotes`` selects, have a session back."""

    @property
    def is_of_all(self) -> bool:
        """Whether all nodes have the session."""
        return self.nodes is None and not self.node

    def is_of(self, node: LocalNode | Peer) -> bool:
        """Whether a node is among those that have the session."""
        if self.nodes is not None:
            return self.nodes.matches(node.labels)
        return not self.node or self.node == node.name

    def is_to(self, node: LocalNode | Peer) -> bool:
        """Whether a node is among those to which the session goes."""
        return self.remotes is not None and self.remotes.matches(node.labels)


class PoolValues(msgspec.Struct, frozen=True, kw_only=True):
    """An IPPool whose routes are announced or not."""

    network: Network
    is_sent: bool = True


class BgpObjects(msgspec.Struct, frozen=True, kw_only=True):
    """All objects; ``nodes`` has the settings of single nodes by the node's name."""

    default: ConfigurationValues = ConfigurationValues()
    nodes: Mapping[str, ConfigurationValues] = {}
    peers: tuple[PeerValues, ...] = ()
    pools: tuple[PoolValues, ...] = ()
    service_addresses: tuple[Network, ...] = ()
    """The addresses of single Services that this node announces beside the ranges."""
    services: ServiceRoutes = ServiceRoutes()
    """Routes of load balancers; they come from the part ``loadbalancer``."""

    def of_node(self, name: str) -> ConfigurationValues:
        """The settings of a node: its own, and those of all nodes where it has none."""
        own = self.nodes.get(name)
        if own is None:
            return self.default
        chosen = {f: getattr(own, f) for f in own.__struct_fields__ if getattr(own, f) is not None}
        return msgspec.structs.replace(self.default, **chosen)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs for the check of one object, besides the object."""

    secrets: Secrets
    filters: Mapping[str, FilterValues] = {}
    node_addresses: frozenset[Address] = frozenset()
    pod_cidrs: tuple[Network, ...] = ()
    masquerade: bool = True
    blocks: bool = False
    device: str = ""
    """The device with the node's addresses; empty: not known."""


def node_of_configuration(name: str) -> str:
    """The node of a BGPConfiguration by the object's name; empty for all nodes.

    Raises: ConfigError when the name is of neither.
    """
    if name == DEFAULT:
        return ""
    node = name.removeprefix(_ONE_NODE)
    if not name.startswith(_ONE_NODE) or not node:
        raise ConfigError(f"BGPConfiguration {name}", "metadata.name", "expected default, or node.NAME of one node")
    return node


def read_configuration(obj: BgpConfigurationObject, around: Surroundings) -> ConfigurationValues:
    """The values of a BGPConfiguration.

    Raises: ConfigError naming the field.
    """
    name, spec = obj.metadata.name, obj.spec
    source = f"BGPConfiguration {name}"
    if node_of_configuration(name):
        for field, value in {
            "nodeToNodeMeshEnabled": spec.node_to_node_mesh_enabled,
            "nodeMeshPassword": spec.node_mesh_password,
            "nodeMeshMaxRestartTime": spec.node_mesh_max_restart_time or None,
        }.items():
            if value is not None:
                raise ConfigError(source, f"spec.{field}", "can only be set in the object default, for all nodes")
    refuse_unhonoured(
        source,
        {
            "spec.localWorkloadPeeringIPV4": (spec.local_workload_peering_ipv4, ""),
            "spec.localWorkloadPeeringIPV6": (spec.local_workload_peering_ipv6, ""),
        },
    )
    for field, priority in (
        ("ipv4NormalRoutePriority", spec.ipv4_normal_route_priority),
        ("ipv6NormalRoutePriority", spec.ipv6_normal_route_priority),
    ):
        if priority is not None:
            raise ConfigError(source, f"spec.{field}", f"podwire gives all routes of BGP the metric {METRIC}")
    if spec.as_number is not None:
        check_range(source, "spec.asNumber", spec.as_number, 1, AS_MAX)
    if spec.listen_port is not None:
        check_range(source, "spec.listenPort", spec.listen_port, 1, 65535)
    severity = spec.log_severity_screen.lower()
    if severity not in ("", *_LOG_LEVELS):
        names = ", ".join(name.capitalize() for name in _LOG_LEVELS)
        raise ConfigError(source, "spec.logSeverityScreen", f"{spec.log_severity_screen!r}: expected one of {names}")
    restart = spec.node_mesh_max_restart_time
    return ConfigurationValues(
        as_number=spec.as_number,
        listen_port=spec.listen_port,
        mesh=spec.node_to_node_mesh_enabled,
        password=_password(source, "spec.nodeMeshPassword", spec.node_mesh_password, around.secrets),
        restart_time_s=_restart_time(source, "spec.nodeMeshMaxRestartTime", restart) if restart else None,
        log_level=_LOG_LEVELS.get(severity),
        strict_bind=spec.bind_mode == "NodeIP" if spec.bind_mode else None,
        service_ranges=_service_ranges(source, obj),
        ignored_devices=_ignored_devices(source, obj, around.device),
        writes_pod_routes=_writes_pod_routes(source, obj),
        tags=_tags(source, obj),
    )


def _ignored_devices(source: str, obj: BgpConfigurationObject, own: str) -> tuple[str, ...] | None:
    """None when the object names no devices."""
    patterns = obj.spec.ignored_interfaces
    for index, pattern in enumerate(patterns):
        path = f"spec.ignoredInterfaces[{index}]"
        if not DEVICE_PATTERN.fullmatch(pattern):
            raise ConfigError(source, path, f"{pattern!r}: expected the name of a device, * is any")
        if own and fnmatchcase(own, pattern):
            problem = f"{pattern} matches {own}, the device with the node's addresses, which BIRD needs for next hops"
            raise ConfigError(source, path, problem)
    return patterns or None


_POD_ROUTES = {"Enabled": True, "EnabledNoEncapOnly": True, "EnabledIPIPOnly": False, "Disabled": False}
"""Whether BIRD writes routes to pods that are not encapsulated."""


def _writes_pod_routes(source: str, obj: BgpConfigurationObject) -> bool | None:
    """None when the object does not say it."""
    text = obj.spec.program_cluster_routes
    if text and text not in _POD_ROUTES:
        problem = f"{text!r}: expected one of {', '.join(_POD_ROUTES)}"
        raise ConfigError(source, "spec.programClusterRoutes", problem)
    return _POD_ROUTES.get(text)


def _service_ranges(source: str, obj: BgpConfigurationObject) -> AnnouncedRanges | None:
    """None when the object has no ranges."""

    def networks(field: str, blocks: Iterable[CidrBlock]) -> tuple[Network, ...]:
        return tuple(
            parse_network(source, f"spec.{field}[{index}].cidr", block.cidr)
            for index, block in enumerate(blocks)
            if block.cidr
        )

    spec = obj.spec
    if spec.service_load_balancer_aggregation not in ("", "Enabled", "Disabled"):
        problem = f"{spec.service_load_balancer_aggregation!r}: expected Enabled or Disabled"
        raise ConfigError(source, "spec.serviceLoadBalancerAggregation", problem)
    ranges = AnnouncedRanges(
        cluster=networks("serviceClusterIPs", spec.service_cluster_ips),
        external=networks("serviceExternalIPs", spec.service_external_ips),
        balancers=networks("serviceLoadBalancerIPs", spec.service_load_balancer_ips),
        aggregates=spec.service_load_balancer_aggregation != "Disabled",
    )
    return None if ranges.is_empty else ranges


def _tags(source: str, obj: BgpConfigurationObject) -> tuple[tuple[Network, tuple[Community, ...]], ...] | None:
    names: dict[str, Community] = {}
    for index, community in enumerate(obj.spec.communities):
        if not community.name:
            raise ConfigError(source, f"spec.communities[{index}].name", "is missing")
        names[community.name] = parse_community(source, f"spec.communities[{index}].value", community.value)
    tags = []
    for index, advertisement in enumerate(obj.spec.prefix_advertisements):
        path = f"spec.prefixAdvertisements[{index}]"
        network = parse_network(source, f"{path}.cidr", advertisement.cidr)
        if not advertisement.communities:
            raise ConfigError(source, f"{path}.communities", "is empty")
        communities = tuple(
            names[text] if text in names else parse_community(source, f"{path}.communities[{number}]", text)
            for number, text in enumerate(advertisement.communities)
        )
        tags.append((network, communities))
    return tuple(tags) or None


def read_pool(obj: IpPoolObject, around: Surroundings) -> PoolValues:
    """The values of an IPPool.

    Raises: ConfigError naming the field. Where pods have addresses of the ranges of Nodes, no pool changes these.
    """
    source, spec = f"IPPool {obj.metadata.name}", obj.spec
    network = parse_network(source, "spec.cidr", spec.cidr)
    never = ("", "Never")
    for field, mode in (("ipipMode", spec.ipip_mode), ("vxlanMode", spec.vxlan_mode)):
        if mode not in never:
            backend = "ipip" if field == "ipipMode" else "vxlan"
            problem = f"{mode}: the backend bgp does not encapsulate; expected Never, or routing.backend {backend}"
            raise ConfigError(source, f"spec.{field}", problem)
    refuse_unhonoured(
        source,
        {}
        if around.blocks
        else {
            "spec.disabled": (spec.disabled, False),
            "spec.nodeSelector": ("".join(spec.node_selector.split()), "all()"),
            "spec.namespaceSelector": ("".join(spec.namespace_selector.split()), "all()"),
            "spec.assignmentMode": (spec.assignment_mode, "Automatic"),
        },
    )
    if spec.allowed_uses and "Workload" not in spec.allowed_uses:
        raise ConfigError(source, "spec.allowedUses", "expected Workload among the uses")
    if spec.nat_outgoing is not None and spec.nat_outgoing != around.masquerade:
        problem = (
            f"{yaml_word(spec.nat_outgoing)}, but routing.masquerade is {yaml_word(around.masquerade)} for all pods"
        )
        raise ConfigError(source, "spec.natOutgoing", problem)
    if spec.block_size is not None and not around.blocks:
        other = [cidr for cidr in around.pod_cidrs if _inside(cidr, network) and cidr.prefixlen != spec.block_size]
        if other:
            problem = f"{spec.block_size}, but nodes have ranges such as {other[0]}; set the size of the nodes' ranges"
            raise ConfigError(source, "spec.blockSize", problem)
    return PoolValues(network=network, is_sent=not spec.disable_bgp_export)


def read_peer(obj: BgpPeerObject, around: Surroundings) -> PeerValues:
    """The values of a BGPPeer, with its filters and its password.

    Raises: ConfigError naming the field.
    """
    source, spec = f"BGPPeer {obj.metadata.name}", obj.spec
    refuse_unhonoured(source, {"spec.localWorkloadSelector": (spec.local_workload_selector, "")})
    if spec.node and spec.node_selector:
        raise ConfigError(source, "spec.nodeSelector", "expected either node or nodeSelector")
    if bool(spec.peer_ip) == bool(spec.peer_selector):
        raise ConfigError(source, "spec.peerIP", "expected either peerIP or peerSelector")
    address, port = parse_address_and_port(source, spec.peer_ip) if spec.peer_ip else (None, None)
    _check_numbers(source, obj, address, around)
    rules = [_filter(source, index, name, around.filters) for index, name in enumerate(spec.filters)]
    selector, remotes = spec.node_selector, spec.peer_selector
    return PeerValues(
        name=obj.metadata.name,
        node=spec.node,
        nodes=parse_expression(selector, source, "spec.nodeSelector") if selector else None,
        address=address,
        port=port,
        as_number=spec.as_number,
        remotes=parse_expression(remotes, source, "spec.peerSelector") if remotes else None,
        local_as=spec.local_as_number,
        next_hop=_next_hop(source, obj),
        password=_password(source, "spec.password", spec.password, around.secrets) or "",
        has_source=spec.source_address != "None",
        restart_time_s=_restart_time(source, "spec.maxRestartTime", spec.max_restart_time),
        keepalive_s=_keepalive(source, spec.keepalive_time),
        own_as_limit=spec.num_allowed_local_as_numbers,
        hops=spec.ttl_security or 0,
        gateway=_gateway(source, spec.reachable_by, address),
        imports=tuple(rule for entry in rules for rule in entry.imports),
        exports=tuple(rule for entry in rules for rule in entry.exports),
        has_reverse=spec.reverse_peering != "Manual",
    )


def _check_numbers(source: str, obj: BgpPeerObject, address: Address | None, around: Surroundings) -> None:
    spec = obj.spec
    if spec.as_number is not None and address is None:
        raise ConfigError(
            source, "spec.asNumber", "cannot be set: the nodes that peerSelector selects have their own numbers"
        )
    if spec.local_as_number is not None and address is None:
        problem = "cannot be set: the nodes that peerSelector selects expect the number of this node"
        raise ConfigError(source, "spec.localASNumber", problem)
    if spec.as_number is None and address is not None and address not in around.node_addresses:
        raise ConfigError(source, "spec.asNumber", f"is missing, and {address} is not the address of a node")
    for field, value, low, high in (
        ("asNumber", spec.as_number, 1, AS_MAX),
        ("localASNumber", spec.local_as_number, 1, AS_MAX),
        ("numAllowedLocalASNumbers", spec.num_allowed_local_as_numbers, 0, 255),
        ("ttlSecurity", spec.ttl_security, 0, 255),
    ):
        if value is not None:
            check_range(source, f"spec.{field}", value, low, high)


def _filter(source: str, index: int, name: str, filters: Mapping[str, FilterValues]) -> FilterValues:
    if name not in filters:
        raise ConfigError(source, f"spec.filters[{index}]", f"there is no valid BGPFilter {name}")
    return filters[name]


def _next_hop(source: str, obj: BgpPeerObject) -> Literal["", "self", "keep", "keep external"]:
    mode, keeps = obj.spec.next_hop_mode, obj.spec.keep_original_next_hop
    if keeps and mode:
        raise ConfigError(source, "spec.nextHopMode", "expected either keepOriginalNextHop or nextHopMode")
    if keeps:
        return "keep external"
    if mode == "Keep":
        return "keep"
    return "self" if mode == "Self" else ""


def _gateway(source: str, text: str, address: Address | None) -> Address | None:
    if not text:
        return None
    gateway = parse_address(source, "spec.reachableBy", text)
    if address is None or gateway.version != address.version:
        raise ConfigError(source, "spec.reachableBy", f"{text}: expected a peerIP of the same family beside it")
    return gateway


def _password(source: str, path: str, password: BgpPassword | None, secrets: Secrets) -> str | None:
    """None when the object has no password."""
    if password is None:
        return None
    reference = password.secret_key_ref
    if reference is None or not reference.name or not reference.key:
        raise ConfigError(source, f"{path}.secretKeyRef", "expected the name of a Secret and one of its keys")
    try:
        value = secrets(reference.name, reference.key)
    except ConfigError as problem:
        raise ConfigError(source, f"{path}.secretKeyRef", str(problem)) from problem
    if value is None and not reference.optional:
        problem_text = f"there is no Secret {reference.name} with the key {reference.key}"
        raise ConfigError(source, f"{path}.secretKeyRef", problem_text)
    check_password(source, path, value or "")
    return value or ""


def _restart_time(source: str, path: str, text: str) -> int:
    seconds = round(parse_seconds(source, path, text)) if text else 0
    if text:
        check_range(source, path, seconds, 1, RESTART_MAX_S)
    return seconds


def _keepalive(source: str, text: str) -> int:
    seconds = round(parse_seconds(source, "spec.keepaliveTime", text)) if text else 0
    if text:
        check_range(source, "spec.keepaliveTime", seconds, 1, 21845)  # a third of the hold time, 16 bits
    return seconds


def _inside(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.network_address in outer
