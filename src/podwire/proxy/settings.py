"""The proxy's settings: the ``proxy`` section of an agent's configuration, or of that of a local cluster.

Fields have the names and meanings that they have in kube-proxy's ``KubeProxyConfiguration`` where it has them;
``agent.kubeproxy`` reads such a file. A field may also be named by its path alone, ``conntrack.min``, as in the
ConfigMap of a cluster's settings.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError
from podwire.model.document import convert
from podwire.proxy.nodeports import PRIMARY, parse_ranges
from podwire.proxy.registry import DATAPLANES
from podwire.proxy.servicemap import IptablesSettings, IpvsSettings, NodeFacts
from podwire.proxy.sysctls import ConntrackSettings

DetectLocal = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]

_INTERFACE = re.compile(r"[^\s/:*\"]{1,15}")
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SCHEDULER = re.compile(r"[a-z]{1,15}")
_DURATIONS = {
    "conntrack": ("tcpEstablishedTimeout", "tcpCloseWaitTimeout", "udpTimeout", "udpStreamTimeout"),
    "ipvs": ("tcpTimeout", "tcpFinTimeout", "udpTimeout"),
}
"""Fields that are times, by section."""


class _Section(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The settings that every section shares."""


class DetectLocalInterfaces(_Section, frozen=True):
    """The devices that pods come in by: a bridge, and the prefix of interface names."""

    bridge_interface: str = ""
    interface_name_prefix: str = ""


class ProxySettings(_Section, frozen=True):
    """How Services are programmed on this node.

    ``mode`` is a data plane of the registry, and ``fallback`` the one that an agent starts with where that cannot be
    had. ``masquerade_bit`` (0 to 29) is the bit of the packet mark that asks for masquerade; ``masquerade_all`` hides
    the source of everything that goes to a cluster address.
    ``healthz_bind_address`` is where ``/healthz`` and ``/livez`` of the proxy are answered, ``metrics_bind_address``
    where ``/metrics`` and ``/proxyMode`` are; empty: nowhere.
    ``node_port_addresses`` are the ranges in which node ports answer, or ``primary``; ``allow_external_ips`` false
    leaves ``spec.externalIPs`` out. ``detect_local_mode`` says by what a packet is known to come from a pod:
    ClusterCIDR (the agent's ``clusterCIDRs``), NodeCIDR (the node's own), or by the device it comes in by,
    BridgeInterface or InterfaceNamePrefix, named in ``detect_local``.
    ``reset_connections`` ends TCP connections to endpoints that are gone; ``conntrack`` is set when the proxy starts.
    ``iptables`` and ``ipvs`` are what those modes alone are told.
    ``oom_score_adj`` (-1000 to 1000) says how late the agent is ended when memory is short.
    """

    mode: str = "nftables"
    fallback: str = "nftables"
    masquerade_bit: int = 14
    masquerade_all: bool = False
    healthz_bind_address: str = "0.0.0.0:10256"
    metrics_bind_address: str = "127.0.0.1:10249"
    node_port_addresses: tuple[str, ...] = (PRIMARY,)
    allow_external_ips: bool = msgspec.field(default=True, name="allowExternalIPs")
    detect_local_mode: DetectLocal = "ClusterCIDR"
    detect_local: DetectLocalInterfaces = DetectLocalInterfaces()
    reset_connections: bool = False
    conntrack: ConntrackSettings = ConntrackSettings()
    iptables: IptablesSettings = IptablesSettings()
    oom_score_adj: int = -999
    ipvs: IpvsSettings = IpvsSettings()

    @property
    def healthz(self) -> tuple[str, int] | None:
        """Address and port of ``healthz_bind_address``, None for nowhere."""
        return parse_address(self.healthz_bind_address) if self.healthz_bind_address else None

    @property
    def metrics(self) -> tuple[str, int] | None:
        """Address and port of ``metrics_bind_address``, None for nowhere."""
        return parse_address(self.metrics_bind_address) if self.metrics_bind_address else None

    @property
    def node_port_ranges(self) -> tuple[str, ...]:
        """``node_port_addresses`` as the node's facts have it."""
        return parse_ranges(self.node_port_addresses)

    @property
    def pod_interface(self) -> str:
        """The devices that pods come in by, where the mode tells pods by them; ``*`` at the end means any."""
        match self.detect_local_mode:
            case "BridgeInterface":
                return self.detect_local.bridge_interface
            case "InterfaceNamePrefix":
                return f"{self.detect_local.interface_name_prefix}*"
            case _:
                return ""

    def facts(self, node: str, cluster_cidrs: tuple[str, ...], service_cidrs: tuple[str, ...]) -> NodeFacts:
        """The facts of a node that follow from these settings; its addresses and zone are added later."""
        by_node = self.detect_local_mode == "NodeCIDR"
        return NodeFacts(
            name=node,
            node_port_ranges=self.node_port_ranges,
            external_ips=self.allow_external_ips,
            pod_cidrs=() if by_node else cluster_cidrs,
            pod_cidrs_of_node=by_node,
            pod_interface=self.pod_interface,
            service_cidrs=service_cidrs,
            masquerade_bit=self.masquerade_bit,
            masquerade_all=self.masquerade_all,
            reset_connections=self.reset_connections,
            iptables=self.iptables,
            ipvs=self.ipvs,
        )


def parse_address(text: str) -> tuple[str, int]:
    """Address and port of ``192.0.2.1:80`` or ``[::]:80``.

    Raises: ValueError.
    """
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not an address and port, such as 0.0.0.0:10256 or [::]:10256")
    return str(ip_address(address.removeprefix("[").removesuffix("]"))), int(port)


def parse_seconds(text: str) -> int:
    """Seconds of ``24h0m0s``, ``90s``, ``5m`` or ``0``.

    Raises: ValueError.
    """
    if text.isdigit():
        return int(text)
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        raise ValueError(f"{text!r} is not a time, such as 24h0m0s, 5m or 90s")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return (hours * 60 + minutes) * 60 + seconds


def normalized(document: Mapping[str, Any], source: str, path: str = "proxy") -> dict[str, Any]:
    """The document with fields named by their path put in their section, and times as seconds.

    Raises: ConfigError with the field that is wrong.
    """
    found: dict[str, Any] = {}
    for key, value in document.items():
        section, dot, field = str(key).partition(".")
        if dot:
            found[section] = (found[section] if isinstance(found.get(section), dict) else {}) | {field: value}
        elif isinstance(value, Mapping) and isinstance(found.get(key), dict):
            found[key] |= value
        else:
            found[key] = dict(value) if isinstance(value, Mapping) else value
    for section, fields in _DURATIONS.items():
        values = found.get(section)
        if not isinstance(values, dict):
            continue
        for field in fields:
            if isinstance(values.get(field), str):
                try:
                    values[field] = parse_seconds(values[field])
                except ValueError as problem:
                    raise ConfigError(source, _under(path, f"{section}.{field}"), str(problem)) from problem
    return found


def parse_settings(document: Mapping[str, Any], source: str = "configuration", path: str = "proxy") -> ProxySettings:
    """The settings of a configuration section, which is at ``path`` in ``source``.

    Raises: ConfigError with the field that is wrong.
    """
    settings = convert(normalized(document, source, path), ProxySettings, source, path)
    check_settings(settings, source, path)
    return settings


def check_settings(settings: ProxySettings, source: str, path: str = "proxy") -> None:
    """Checks values and ranges that the field types do not check.

    Raises: ConfigError with the field that is wrong.
    """
    for each, mode in (("mode", settings.mode), ("fallback", settings.fallback)):
        if (each, mode) != ("fallback", ProxySettings().fallback):
            DATAPLANES.check(mode, source, _under(path, each))
    if not 0 <= settings.masquerade_bit <= 29:
        raise ConfigError(source, _under(path, "masqueradeBit"), f"{settings.masquerade_bit} is not between 0 and 29")
    interfaces = {
        "BridgeInterface": ("bridgeInterface", settings.detect_local.bridge_interface),
        "InterfaceNamePrefix": ("interfaceNamePrefix", settings.detect_local.interface_name_prefix),
    }
    field, name = interfaces.get(settings.detect_local_mode, ("", ""))
    if field and not _INTERFACE.fullmatch(name):
        problem = f"{name!r} is not a device name, which detectLocalMode {settings.detect_local_mode} needs"
        raise ConfigError(source, _under(path, f"detectLocal.{field}"), problem)
    for section, values in (("conntrack", settings.conntrack), ("ipvs", settings.ipvs)):
        for each, value in _values(values, _under(path, section)).items():
            if isinstance(value, int) and value < 0:
                raise ConfigError(source, each, f"{value} is less than 0")
    checks: dict[str, Callable[[], object]] = {
        "healthzBindAddress": lambda: settings.healthz,
        "metricsBindAddress": lambda: settings.metrics,
        "nodePortAddresses": lambda: settings.node_port_ranges,
        "oomScoreAdj": lambda: _check_oom_score(settings.oom_score_adj),
        "ipvs.scheduler": lambda: _check_scheduler(settings.ipvs.scheduler),
        "ipvs.excludeCIDRs": lambda: [ip_network(text) for text in settings.ipvs.exclude_cidrs],
    }
    for each, check in checks.items():
        try:
            check()
        except ValueError as problem:
            raise ConfigError(source, _under(path, each), str(problem)) from problem


def _check_oom_score(value: int) -> None:
    if not -1000 <= value <= 1000:
        raise ValueError(f"{value} is not between -1000 and 1000")


def _check_scheduler(name: str) -> None:
    if not _SCHEDULER.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a scheduler, such as rr or wlc")


def _under(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def as_keys(settings: ProxySettings, also: Iterable[str] = (), path: str = "proxy") -> dict[str, str]:
    """As keys and texts of a ConfigMap: the mode, what differs from the defaults, and the keys named by ``also``."""
    usual = _values(ProxySettings(), path)
    wanted = {f"{path}.mode", *also}
    found = {key: value for key, value in _values(settings, path).items() if key in wanted or value != usual[key]}
    texts = {key: msgspec.json.encode(value).decode() for key, value in found.items()}
    return dict(sorted((texts | {f"{path}.mode": settings.mode}).items()))


def paths() -> frozenset[str]:
    """The path in the section of every field."""
    return frozenset(_values(ProxySettings(), ""))


def _values(section: msgspec.Struct, path: str) -> dict[str, Any]:
    """Every field by its path."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(section):
        value, key = getattr(section, field.name), _under(path, field.encode_name)
        if isinstance(value, msgspec.Struct):
            found |= _values(value, key)
        else:
            found[key] = value
    return found
