"""Configuration of a local cluster: the file behind ``podwire up --config`` and its defaults.

Example::

    nodes: 3
    segments: 1
    podCIDRs: [10.244.0.0/16]
    serviceCIDRs: [10.96.0.0/16]
    routing: {backend: vxlan}
    proxy: {mode: nftables, nodePortAddresses: [10.89.0.0/16]}
    images:
      - {name: registry.example/team/api, command: [./bin/api, --listen, ":8080"]}
      - {prefix: registry.example/jobs/, command: [python3, job.py]}
    capacity: {cpu: "8", memory: 32Gi, pods: "500"}
    links: {node-2: {lossPercent: 1, mtu: 1400}}

A field that is unknown, missing or of the wrong type is a ConfigError with its path.
"""

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from podwire.cluster.blocks import BLOCK_SIZES, DEFAULT_BLOCK_SIZES
from podwire.controllers.nodeipam.allocate import MAX_BITS, default_mask
from podwire.embedded.apiserver.auditrules import AuditSettings
from podwire.embedded.workloads.autoscaling.plan import AutoscalerSettings
from podwire.errors import ConfigError
from podwire.local.fabric.router import Daemon
from podwire.local.lab.conditions import LinkConditions, check_links, port_of
from podwire.local.shape import CONFIG_FILE
from podwire.local.topology import FABRIC, NODES_PER_SEGMENT, SEGMENTS, Topology
from podwire.model.document import convert, not_yaml
from podwire.model.quantity import parse_milli
from podwire.model.wording import count
from podwire.observe.log import Level
from podwire.policy.settings import PolicySettings
from podwire.policy.settings import check_settings as check_policy
from podwire.proxy.settings import ProxySettings, check_settings, normalized
from podwire.routing.registry import BACKENDS, DEFAULT

Network = IPv4Network | IPv6Network

_LEAST_SERVICES = 32
"""Cluster DNS is the tenth address."""
_LEAST_PODS = 8
_LEAST_RESOLUTION_S = 1.0
_MOST_RESOLUTION_S = 300.0
_FIXED = {
    "pod_cidrs": ("podCIDRs", "every pod has an address of them"),
    "service_cidrs": ("serviceCIDRs", "every Service has an address of them"),
    "ipam": ("ipam", "every pod has an address of its node's ranges or blocks"),
    "segments": ("segments", "every node has its place on them"),
    "api_port": ("apiPort", "the kubeconfig files name it"),
    "network": ("network", "every node's network comes from there"),
    "images": ("images", "kubelets read them when they start"),
    "capacity": ("capacity", "kubelets read it when they start"),
    "metrics": ("metrics", "kubelets read it when they start"),
    "autoscaler": ("autoscaler", "the controllers read it when they start"),
    "audit": ("audit", "the API server reads it when it starts"),
    "dns": ("dns", "agents read it when they start"),
    "pod_link": ("podLink", "agents read it when they start"),
    "log_level": ("logLevel", "components read it when they start"),
}
"""Settings that cannot change while the cluster exists: fields, their names in the file, and the reason."""
_SHAPE = {"nodes": "nodes", **{field: name for field, (name, _) in _FIXED.items()}}
"""Settings that a running cluster keeps when a file omits them; other omitted settings get their defaults again."""


class _Section(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The base of every section: keys in camelCase, unknown keys are errors."""


class RoutingSection(_Section, frozen=True):
    """Pod to pod between nodes."""

    backend: str = DEFAULT


class RouterSection(_Section, frozen=True):
    """The router between segments."""

    daemon: Daemon = "bird"
    """The program that speaks BGP."""


class IpamSection(_Section, frozen=True):
    """Addresses of pods: from the ranges that every node has, or from blocks of ``podCIDRs`` that nodes claim.

    ``block_sizes`` are the prefix lengths of blocks, in the order of ``podCIDRs``; empty: 26 and 122.
    """

    mode: Literal["nodes", "blocks"] = "nodes"
    block_sizes: tuple[int, ...] = ()
    strict_affinity: bool = False
    max_blocks: int = 20


class ImageMapping(_Section, frozen=True):
    """One entry of the image table: exactly one of ``name`` and ``prefix``, and the local command.

    Without a command the stand-in runs; ``run_probes``: it runs the commands of exec probes and hooks.
    """

    name: str = ""
    prefix: str = ""
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    working_dir: str = ""
    run_probes: bool = False


class LocalDnsSection(_Section, frozen=True):
    """Cluster DNS."""

    kernel: bool = False
    """Whether the kernel of a node answers the queries of its pods that it can answer."""
    node_local: bool = False
    """Whether a DNS server runs on every node, at the address of the Service, in front of those of the cluster."""


class MetricsSection(_Section, frozen=True):
    """The metrics of nodes and pods."""

    resolution_s: float = 15.0
    """The interval of samples, as ``--metric-resolution`` of metrics-server."""


class ClusterConfig(_Section, frozen=True):
    """The configuration of a local cluster."""

    nodes: int = 3
    segments: int = 1
    pod_cidrs: tuple[str, ...] = msgspec.field(default=("10.244.0.0/16",), name="podCIDRs")
    service_cidrs: tuple[str, ...] = msgspec.field(default=("10.96.0.0/16",), name="serviceCIDRs")
    api_port: int = 0
    """TCP port of the API on loopback; 0 takes a free one."""
    network: Literal["podwire", "none"] = "podwire"
    """``none``: nodes run no agent and the cluster has no DNS, as on a new cluster whose network is still missing."""
    ipam: IpamSection = IpamSection()
    pod_link: Literal["routed", "bridge"] = "routed"
    """How pods are connected to their node: by a device each, or by a bridge."""
    router: RouterSection = RouterSection()
    routing: RoutingSection = RoutingSection()
    proxy: ProxySettings = ProxySettings()
    policy: PolicySettings = PolicySettings()
    dns: LocalDnsSection = LocalDnsSection()
    gateway: bool = False
    """Whether the cluster has the gateway for Ingresses and Gateway API; its objects stay when this is taken back."""
    images: tuple[ImageMapping, ...] = ()
    capacity: dict[str, str] = {}
    """Capacity of every node by resource name, in place of the machine's."""
    links: dict[str, LinkConditions] = {}
    """The conditions of the fabric's links by station: ``node-2``, ``segment-1``, ``host``."""
    metrics: MetricsSection = MetricsSection()
    autoscaler: AutoscalerSettings = AutoscalerSettings()
    audit: AuditSettings | None = None
    """The audit log of the API server."""
    log_level: Level = "info"


def read_config(path: str, running: ClusterConfig | None = None) -> ClusterConfig:
    """The configuration in a YAML file; an empty file is all defaults, and the shape of the cluster that runs.

    Raises: ConfigError when the file cannot be read, is not YAML, or does not fit.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(path, "", f"cannot be read: {failure}") from failure
    return parse_config(text, path, running)


def parse_config(text: str, source: str, running: ClusterConfig | None = None) -> ClusterConfig:
    """The configuration in a YAML text.

    Raises: ConfigError with the field path.
    """
    try:
        document: Any = yaml.safe_load(text)
    except yaml.YAMLError as failure:
        raise not_yaml(failure, source) from failure
    if document is None:
        document = {}
    if isinstance(document, dict) and isinstance(document.get("proxy"), dict):
        document["proxy"] = normalized(document["proxy"], source)
    config = convert(document, ClusterConfig, source)
    if running is not None:
        fixed = {field: getattr(running, field) for field, name in _SHAPE.items() if name not in document}
        config = msgspec.structs.replace(config, **fixed)
    check_config(config, source)
    return config


def remember_config(topology: Topology, config: ClusterConfig) -> None:
    """Stores the configuration of a cluster; the next ``podwire up`` uses it for settings that it omits."""
    (Path(topology.run) / CONFIG_FILE).write_bytes(msgspec.yaml.encode(config))


def recall_config(topology: Topology) -> ClusterConfig | None:
    """The last stored configuration of a cluster; None when the cluster was not completely created."""
    try:
        return msgspec.yaml.decode((Path(topology.run) / CONFIG_FILE).read_bytes(), type=ClusterConfig)
    except (OSError, msgspec.MsgspecError):
        return None


def check_change(known: ClusterConfig, desired: ClusterConfig, source: str) -> None:
    """Checks that an existing cluster can change to the wanted configuration.

    Raises: ConfigError with the field path, the reason, and what to do.
    """
    for field, (path, why) in _FIXED.items():
        have, want = getattr(known, field), getattr(desired, field)
        if have != want:
            todo = "leave the setting out, or run `podwire down` first, which deletes the cluster"
            shown = (
                ""
                if field in ("images", "capacity", "metrics", "autoscaler", "audit", "dns")
                else f" ({_shown(have)} now, not {_shown(want)})"
            )
            raise ConfigError(source, path, f"cannot change while the cluster exists{shown}, because {why}; {todo}")


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def check_config(config: ClusterConfig, source: str) -> None:
    """Checks the values of a configuration beyond their types.

    Raises: ConfigError with the field path.
    """
    if not 1 <= config.segments <= SEGMENTS:
        raise ConfigError(source, "segments", f"{config.segments}: expected 1 to {SEGMENTS}")
    most = NODES_PER_SEGMENT * config.segments
    if not 1 <= config.nodes <= most:
        raise ConfigError(
            source, "nodes", f"{config.nodes}: expected 1 to {most} with {count(config.segments, 'segment')}"
        )
    if not 0 <= config.api_port <= 65535:
        raise ConfigError(source, "apiPort", f"{config.api_port}: expected 0 to 65535")
    _check_backend(config, source)
    check_settings(config.proxy, source)
    check_policy(config.policy, source)
    _check_networks(config, source)
    _check_times(config, source)
    _check_audit(config, source)
    check_links(config.links, source)
    for station in config.links:
        port_of(_shape(config), config.nodes, station, source, f"links.{station}")
    for number, rule in enumerate(config.images):
        if bool(rule.name) == bool(rule.prefix):
            raise ConfigError(source, f"images[{number}]", "expected exactly one of name and prefix")
        if not rule.command and not rule.run_probes:
            raise ConfigError(source, f"images[{number}].command", "expected a command")
    for resource, amount in config.capacity.items():
        try:
            parse_milli(amount)
        except ConfigError as failure:
            raise ConfigError(source, f"capacity.{resource}", failure.problem) from failure


def _shape(config: ClusterConfig) -> Topology:
    return Topology(name="", index=0, segment_count=config.segments, run="", state="")


def _check_times(config: ClusterConfig, source: str) -> None:
    if not _LEAST_RESOLUTION_S <= config.metrics.resolution_s <= _MOST_RESOLUTION_S:
        expected = f"expected {_LEAST_RESOLUTION_S:g} to {_MOST_RESOLUTION_S:g} seconds"
        raise ConfigError(source, "metrics.resolutionS", f"{config.metrics.resolution_s:g}: {expected}")
    if config.autoscaler.sync_period_s < _LEAST_RESOLUTION_S:
        problem = f"{config.autoscaler.sync_period_s:g}: expected at least {_LEAST_RESOLUTION_S:g} seconds"
        raise ConfigError(source, "autoscaler.syncPeriodS", problem)


def _check_audit(config: ClusterConfig, source: str) -> None:
    if config.audit is not None and not config.audit.file.startswith("/"):
        raise ConfigError(source, "audit.file", f"{config.audit.file}: expected an absolute path")


def _check_backend(config: ClusterConfig, source: str) -> None:
    name = config.routing.backend
    BACKENDS.check(name, source)
    if config.segments > 1 and not BACKENDS.load(name).crosses_routers:
        fit = ", ".join(other for other in BACKENDS if BACKENDS.load(other).crosses_routers)
        problem = f"{name} reaches no node behind a router, and there are {config.segments} segments; use {fit}"
        raise ConfigError(source, "routing.backend", problem)
    if config.segments == 1 and config.router != RouterSection():
        raise ConfigError(source, "router.daemon", "1 segment has no router; expected 2 segments or more")


def _check_networks(config: ClusterConfig, source: str) -> None:
    pods = _networks(config.pod_cidrs, source, "podCIDRs")
    services = _networks(config.service_cidrs, source, "serviceCIDRs")
    for number, network in enumerate(services):
        path = f"serviceCIDRs[{number}]"
        if network.num_addresses < _LEAST_SERVICES:
            raise ConfigError(source, path, f"{network}: expected at least {_LEAST_SERVICES} addresses")
        if not any(pod.version == network.version for pod in pods):
            raise ConfigError(source, path, f"{network}: there are no pods of that family in podCIDRs")
    _check_ipam(config, pods, source)
    occupied: list[tuple[str, Network]] = [("the fabric", ip_network(fabric)) for fabric in FABRIC]
    for path, networks in (("podCIDRs", pods), ("serviceCIDRs", services)):
        for number, network in enumerate(networks):
            for field, other in occupied:
                if network.version == other.version and network.overlaps(other):
                    raise ConfigError(source, f"{path}[{number}]", f"{network} overlaps {field} ({other})")
            occupied.append((f"{path}[{number}]", network))


def block_sizes(config: ClusterConfig) -> tuple[int, ...]:
    """The prefix lengths of blocks, in the order of ``podCIDRs``."""
    return config.ipam.block_sizes or tuple(DEFAULT_BLOCK_SIZES[ip_network(cidr).version] for cidr in config.pod_cidrs)


def _check_ipam(config: ClusterConfig, pods: list[Network], source: str) -> None:
    sizes = block_sizes(config)
    if len(sizes) != len(pods):
        raise ConfigError(source, "ipam.blockSizes", "expected one size for each of podCIDRs")
    if config.ipam.max_blocks < 1:
        raise ConfigError(source, "ipam.maxBlocks", f"{config.ipam.max_blocks}: expected at least 1")
    for number, network in enumerate(pods):
        if config.ipam.mode == "nodes":
            _check_room(config, network, source, f"podCIDRs[{number}]")
        else:
            _check_blocks(network, sizes[number], source, f"ipam.blockSizes[{number}]")


def _check_blocks(network: Network, size: int, source: str, path: str) -> None:
    least, most = BLOCK_SIZES[network.version]
    if not max(least, network.prefixlen) <= size <= most:
        raise ConfigError(source, path, f"{size}: expected {max(least, network.prefixlen)} to {most} for {network}")


def _check_room(config: ClusterConfig, network: Network, source: str, path: str) -> None:
    mask = default_mask(network)
    if 1 << (network.max_prefixlen - mask) < _LEAST_PODS:
        raise ConfigError(source, path, f"{network}: expected a /24 for each node, of IPv6 a /64, or a /120 at least")
    if not config.nodes <= 1 << (mask - network.prefixlen) <= 1 << MAX_BITS:
        raise ConfigError(
            source, path, f"{network}: expected room for {count(config.nodes, 'node')} with a /{mask} each"
        )


def _networks(cidrs: tuple[str, ...], source: str, path: str) -> list[Network]:
    networks = [_network(cidr, source, f"{path}[{number}]") for number, cidr in enumerate(cidrs)]
    families = [network.version for network in networks]
    if not families or len(set(families)) != len(families):
        raise ConfigError(source, path, "expected one network, or one of each family")
    return networks


def _network(cidr: str, source: str, path: str) -> Network:
    try:
        return ip_network(cidr)
    except ValueError as failure:
        raise ConfigError(source, path, f"{failure}; expected a network such as 10.244.0.0/16") from failure
