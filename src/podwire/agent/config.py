"""The agent's configuration: a YAML file, read once, and the cluster's settings, which may change at any time.

The file identifies the process and has its paths. Settings of the whole cluster (the routing backend, the pods' MTU)
are in a ConfigMap, one key per setting, named as in the file: ``routing.backend: hostgw``. A key there takes precedence
over the file; a wrong value is reported and the last good settings stay in force.
"""

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import yaml

from podwire.cni.spec import POD_ANNOTATIONS
from podwire.errors import ConfigError
from podwire.model.document import convert, not_yaml
from podwire.observe.log import Level
from podwire.policy.settings import PolicySettings
from podwire.policy.settings import parse_settings as parse_policy
from podwire.proxy.settings import ProxySettings, parse_settings
from podwire.routing.flannel.netconf import parse_conf
from podwire.routing.settings import RoutingSettings
from podwire.routing.settings import parse_settings as parse_routing
from podwire.runtime.unixsockets import too_long

Network = IPv4Network | IPv6Network

DEFAULT_PARTS = ("cni", "routing", "policy", "proxy")
PARTS = (*DEFAULT_PARTS, "loadbalancer")


class Section(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The common settings of all sections."""


class CniSection(Section, frozen=True):
    """``socket`` and ``database`` empty mean ``cni.sock`` in the run directory, ``ipam.db`` in the state directory.

    ``conf_dir`` and ``bin_dir`` are the container runtime's directories; empty: nothing is installed there.
    ``network`` is the network's name in that configuration. ``cooldown_s``: seconds before an address is used
    again. ``also_as``: further names under which the program is installed, such as ``flannel``. ``host_local``: the
    directory of the plugin ``host-local`` whose addresses are taken over. ``ipam``: addresses come from the pod CIDRs
    of the Node, or from blocks of IPPools that the node claims. ``strict_affinity``: nodes neither lend nor borrow
    addresses of blocks. ``max_blocks`` is the number of blocks of a family that a node may have. ``link``: pods are
    connected by a device each, or by a bridge.
    """

    socket: str = ""
    database: str = ""
    conf_dir: str = ""
    bin_dir: str = ""
    network: str = "podwire"
    cooldown_s: float = 30.0
    also_as: tuple[str, ...] = ()
    host_local: str = ""
    ipam: Literal["nodes", "blocks"] = "nodes"
    strict_affinity: bool = False
    max_blocks: int = 20
    link: Literal["routed", "bridge"] = "routed"

    @property
    def conf_path(self) -> Path:
        """``conf_dir`` as a path."""
        return Path(self.conf_dir)

    @property
    def bin_path(self) -> Path:
        """``bin_dir`` as a path."""
        return Path(self.bin_dir)

    @property
    def conflist(self) -> bytes:
        """The network configuration for the container runtime."""
        plugin = {
            "type": "podwire-cni",
            "capabilities": dict.fromkeys(("portMappings", "ips", "mac", "dns", POD_ANNOTATIONS), True),
        }
        document = {
            "cniVersion": "1.0.0",
            "cniVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"],
            "name": self.network,
            "plugins": [plugin],
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


class HealthSection(Section, frozen=True):
    """The address of ``/healthz``, ``/readyz``, ``/metrics`` and ``/policy/counters``; port 0: none.

    ``policy_log``: also ``/policy/log``, which lists dropped packets with source and destination.
    """

    address: str = "127.0.0.1"
    port: int = 0
    policy_log: bool = False


class EtcdSection(Section, frozen=True):
    """The etcd in which nodes of flanneld without Kubernetes keep their subnets; without ``endpoints`` none is read.

    ``prefix`` is that of the keys (flanneld's ``--etcd-prefix``). The files are in PEM: the authority of the servers,
    empty for those of the system, and a client certificate with its key, empty for none.
    """

    endpoints: tuple[str, ...] = ()
    prefix: str = "/coreos.com/network"
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class FlannelSection(Section, frozen=True):
    """What is shared with Flannel.

    ``net_conf`` is the path of Flannel's ``net-conf.json``, read in place of ``clusterCIDRs`` and keys of ``routing``;
    empty: not read. ``announce``: this node writes Flannel's annotations, so that flanneld on other nodes reaches it,
    and with ``etcd`` its lease.
    ``subnet_file`` is the path of the file for the CNI plugin ``flannel`` (``/run/flannel/subnet.env``); empty: none.
    """

    net_conf: str = ""
    announce: bool = False
    subnet_file: str = ""
    etcd: EtcdSection = EtcdSection()


class LinkFilesSection(Section, frozen=True):
    """Files that tell NetworkManager, systemd-networkd and udev to leave podwire's devices alone.

    ``etc`` is the node's ``/etc`` as the agent sees it; empty: nothing is written. With ``enabled`` false the files of
    an earlier agent are deleted.
    """

    etc: str = ""
    enabled: bool = True


class DnsSection(Section, frozen=True):
    """Answers to DNS queries on this node, before they reach a server of the cluster.

    ``kernel``: the kernel answers. ``node_local``: a server that runs on the node answers at the address of the DNS
    Service, while it takes queries. ``service`` is the DNS Service as ``namespace/name``. The other fields are for the
    kernel, and must have the values of the servers' configuration. ``folder`` is that of the pins in the BPF file
    system.
    """

    kernel: bool = False
    node_local: bool = False
    service: str = "kube-system/kube-dns"
    domain: str = "cluster.local"
    ttl_seconds: int = 5
    udp_size: int = 1232
    pods: str = "insecure"
    namespaces: tuple[str, ...] = ()
    endpoint_pod_names: bool = False
    ignore_empty_service: bool = False
    fallthrough: tuple[str, ...] = ()
    folder: str = "dns"


class AgentConfig(Section, frozen=True):
    """One node's agent.

    ``node_name`` empty means ``$NODE_NAME`` (a DaemonSet sets it from ``spec.nodeName``), or the name of the machine;
    ``--hostname-override`` comes before all. ``parts`` are those to run. ``kubeconfig`` empty means ``$KUBECONFIG`` or
    the pod's own service account.
    ``cluster_cidrs`` are the pod networks of the whole cluster, ``settings`` the ConfigMap as
    ``namespace/name``, empty for none. ``routing`` is read by :mod:`podwire.routing.settings`, ``proxy`` by
    :mod:`podwire.proxy.settings`.
    """

    node_name: str = ""
    parts: tuple[str, ...] = DEFAULT_PARTS
    kubeconfig: str = ""
    run_dir: str = "/run/podwire"
    state_dir: str = "/var/lib/podwire"
    cluster_cidrs: tuple[str, ...] = msgspec.field(default=(), name="clusterCIDRs")
    service_cidrs: tuple[str, ...] = msgspec.field(default=(), name="serviceCIDRs")
    settings: str = "kube-system/podwire-config"
    cni: CniSection = CniSection()
    routing: dict[str, Any] = {}
    policy: PolicySettings = PolicySettings()
    proxy: dict[str, Any] = {}
    flannel: FlannelSection = FlannelSection()
    link_files: LinkFilesSection = LinkFilesSection()
    health: HealthSection = HealthSection()
    dns: DnsSection = DnsSection()
    log_level: Level = "info"

    @property
    def socket(self) -> Path:
        """The socket for CNI requests."""
        return Path(self.cni.socket or f"{self.run_dir}/cni.sock")

    @property
    def agent_socket(self) -> Path:
        """The socket with the page of the desired state."""
        return Path(self.run_dir, "agent.sock")

    @property
    def sysctl_record(self) -> Path:
        """The file with the values of sysctls before podwire."""
        return Path(self.state_dir, "sysctls.json")

    @property
    def database(self) -> Path:
        """The ledger of addresses."""
        return Path(self.cni.database or f"{self.state_dir}/ipam.db")

    @property
    def routing_settings(self) -> RoutingSettings:
        """The section ``routing`` as a value.

        Raises: ConfigError.
        """
        return parse_routing(self.routing, "configuration")

    @property
    def networks(self) -> tuple[Network, ...]:
        """``cluster_cidrs`` as values."""
        return tuple(ip_network(text) for text in self.cluster_cidrs)

    @property
    def reserved(self) -> dict[str, tuple[Network, ...]]:
        """The ranges with which no further pod network may overlap, by their fields."""
        services = tuple(ip_network(text) for text in self.service_cidrs)
        return {"clusterCIDRs": self.networks, "serviceCIDRs": services}


def load(path: Path) -> AgentConfig:
    """The configuration in a file.

    Raises: ConfigError naming the file and the field.
    """
    try:
        text = path.read_text()
    except OSError as problem:
        raise ConfigError(str(path), "", problem.strerror or str(problem)) from problem
    return parse(text, str(path))


def parse(text: str, source: str) -> AgentConfig:
    """The configuration in a YAML text.

    Raises: ConfigError naming the source and the field.
    """
    try:
        document = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as problem:
        raise not_yaml(problem, source) from problem
    config = convert(document if document is not None else {}, AgentConfig, source)
    config = _with_flannel(config, source)
    _check_etcd(config.flannel.etcd, source)
    for index, part in enumerate(config.parts):
        if part not in PARTS:
            raise ConfigError(source, f"parts[{index}]", f"{part!r} is not a part; the parts are {', '.join(PARTS)}")
    for field, texts in (("clusterCIDRs", config.cluster_cidrs), ("serviceCIDRs", config.service_cidrs)):
        for index, cidr in enumerate(texts):
            _check_network(source, f"{field}[{index}]", cidr)
    _check_dns(config.dns, source)
    if config.settings and config.settings.count("/") != 1:
        raise ConfigError(source, "settings", f"{config.settings!r} is not namespace/name")
    sockets = (("runDir", config.agent_socket), ("cni.socket" if config.cni.socket else "runDir", config.socket))
    for field, path in sockets:
        if reason := too_long(path):
            raise ConfigError(source, field, reason)
    if config.cni.max_blocks < 1:
        raise ConfigError(source, "cni.maxBlocks", f"{config.cni.max_blocks}: expected at least 1")
    parse_routing(config.routing, source).check_overlap(source, config.reserved)
    parse_settings(config.proxy, source)
    return config


class ClusterSettings(msgspec.Struct, frozen=True):
    """The agent's configuration with the cluster's settings laid over it."""

    routing: RoutingSettings
    proxy: ProxySettings
    policy: PolicySettings


def overlay(
    routing: Mapping[str, Any],
    data: Mapping[str, str],
    source: str,
    proxy: Mapping[str, Any] | None = None,
    policy: PolicySettings | None = None,
    reserved: Mapping[str, Iterable[Network]] = {},
) -> ClusterSettings:
    """The sections ``routing``, ``proxy`` and ``policy`` with the cluster's settings laid over them.

    With the ranges ``reserved`` no further pod network may overlap.

    Raises: ConfigError naming the key.
    """
    documents = {
        "routing": dict(routing),
        "proxy": dict(proxy or {}),
        "policy": msgspec.to_builtins(policy or PolicySettings()),
    }
    for key, text in data.items():
        section, _, field = key.partition(".")
        if section not in documents:
            raise ConfigError(
                source, key, "is not a setting; the names of settings begin with routing., proxy. or policy."
            )
        try:
            documents[section][field] = yaml.load(text, Loader=yaml.CSafeLoader) if text.strip() else text
        except yaml.YAMLError as problem:
            raise not_yaml(problem, source, key) from problem
    routing_settings = parse_routing(documents["routing"], source)
    routing_settings.check_overlap(source, reserved)
    return ClusterSettings(
        routing_settings,
        parse_settings(documents["proxy"], source),
        parse_policy(documents["policy"], source),
    )


def _with_flannel(config: AgentConfig, source: str) -> AgentConfig:
    """The configuration with what Flannel's file says.

    Raises: ConfigError for a wrong file, and for a setting that both files have with different values.
    """
    file = config.flannel.net_conf
    if not file:
        return config
    try:
        conf = parse_conf(Path(file).read_bytes(), file)
    except OSError as problem:
        raise ConfigError(source, "flannel.netConf", f"{file}: {problem.strerror or problem}") from problem
    if config.cluster_cidrs and config.cluster_cidrs != conf.networks:
        raise ConfigError(source, "clusterCIDRs", f"differs from {file}, which has {', '.join(conf.networks)}")
    for key, value in conf.routing.items():
        if config.routing.get(key, value) != value:
            raise ConfigError(source, f"routing.{key}", f"differs from {file}, which has {value}")
    return msgspec.structs.replace(config, cluster_cidrs=conf.networks, routing={**config.routing, **conf.routing})


def _check_etcd(etcd: EtcdSection, source: str) -> None:
    for index, endpoint in enumerate(etcd.endpoints):
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
            expected = "expected an address such as https://192.0.2.5:2379"
            raise ConfigError(source, f"flannel.etcd.endpoints[{index}]", f"{endpoint!r}: {expected}")
        if url.scheme != urlsplit(etcd.endpoints[0]).scheme:
            raise ConfigError(source, f"flannel.etcd.endpoints[{index}]", "expected the scheme of the first endpoint")
    if not etcd.prefix.startswith("/"):
        raise ConfigError(
            source, "flannel.etcd.prefix", f"{etcd.prefix!r}: expected a path such as /coreos.com/network"
        )
    if bool(etcd.cert_file) != bool(etcd.key_file):
        missing = "certFile" if etcd.key_file else "keyFile"
        raise ConfigError(source, f"flannel.etcd.{missing}", "is missing: a client needs a certificate and its key")


def _check_dns(dns: DnsSection, source: str) -> None:
    if dns.service.count("/") != 1:
        raise ConfigError(source, "dns.service", f"{dns.service!r} is not namespace/name")
    if not 0 <= dns.ttl_seconds <= 3600:
        raise ConfigError(source, "dns.ttlSeconds", f"expected 0 to 3600, got {dns.ttl_seconds}")
    if not 512 <= dns.udp_size <= 65535:
        raise ConfigError(source, "dns.udpSize", f"expected 512 to 65535, got {dns.udp_size}")
    if not dns.folder or "/" in dns.folder or "." in dns.folder:
        raise ConfigError(source, "dns.folder", f"{dns.folder!r}: expected a name without dots and slashes")


def _check_network(source: str, path: str, text: str) -> None:
    try:
        ip_network(text)
    except ValueError as problem:
        raise ConfigError(source, path, str(problem)) from problem
