"""The proxy's settings: the ``proxy`` section of the configuration of an agent or of a local cluster.

Fields that kube-proxy's ``KubeProxyConfiguration`` has too have the same names and meanings; such a file is read by
``proxy.kubeproxyconfig``. A field may also be named by its path, such as ``conntrack.min``, as in the ConfigMap of a
cluster's settings.
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
    """The devices on which packets from pods arrive: a bridge, and the prefix of interface names."""

    bridge_interface: str = ""
    interface_name_prefix: str = ""


class ProxySettings(_Section, frozen=True):
    """How Services are programmed on this node.

    ``mode`` is a data plane of the registry; an agent starts with ``fallback`` when ``mode`` cannot be used.
    ``masquerade_bit`` (0 to 29) is the bit of the packet mark that asks for masquerade; ``masquerade_all`` masquerades
    all connections to cluster addresses.
    ``healthz_bind_address`` is the address of the pages ``/healthz`` and ``/livez``, ``metrics_bind_address`` that of
    ``/metrics`` and ``/proxyMode``; empty: no such pages.
    ``node_port_addresses`` are the ranges in which node ports answer, or ``primary``; without ``allow_external_ips``
    ``spec.externalIPs`` are ignored. ``detect_local_mode`` defines which packets come from pods: those with a source in
    the agent's ``clusterCIDRs`` (ClusterCIDR) or in the node's pod ranges (NodeCIDR), or those that arrive on the
    devices in ``detect_local`` (BridgeInterface, InterfaceNamePrefix).
    ``reset_connections`` ends TCP connections to removed endpoints; ``conntrack`` is set when the proxy starts.
    ``iptables`` and ``ipvs`` are the settings of these modes.
    ``oom_score_adj`` (-1000 to 1000) is the kernel's ``oom_score_adj`` of the agent: with a lower value the kernel ends
    the agent later when memory is short.
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
        """Address and port of ``healthz_bind_address``, None without such pages."""
        return parse_address(self.healthz_bind_address) if self.healthz_bind_address else None

    @property
    def metrics(self) -> tuple[str, int] | None:
        """Address and port of ``metrics_bind_address``, None without such pages."""
        return parse_address(self.metrics_bind_address) if self.metrics_bind_address else None

    @property
    def node_port_ranges(self) -> tuple[str, ...]:
        """``node_port_addresses`` as in :class:`NodeFacts`."""
        return parse_ranges(self.node_port_addresses)

    @property
    def pod_interface(self) -> str:
        """The devices on which packets of pods arrive, empty when sources are used; ``*`` at the end: a prefix."""
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
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"{text!r} is not a time, such as 24h0m0s, 5m or 90s")
    hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return (hours * 60 + minutes) * 60 + seconds


def normalized(document: Mapping[str, Any], source: str, path: str = "proxy") -> dict[str, Any]:
    """The document with fields that are named by their path in their section, and with times in seconds.

    Raises: ConfigError with the field that is wrong.
    """
    result: dict[str, Any] = {}
    for key, value in document.items():
        section, dot, field = str(key).partition(".")
        if dot:
            result[section] = (result[section] if isinstance(result.get(section), dict) else {}) | {field: value}
        elif isinstance(value, Mapping) and isinstance(result.get(key), dict):
            result[key] |= value
        else:
            result[key] = dict(value) if isinstance(value, Mapping) else value
    for section, fields in _DURATIONS.items():
        values = result.get(section)
        if not isinstance(values, dict):
            continue
        for field in fields:
            if isinstance(values.get(field), str):
                try:
                    values[field] = parse_seconds(values[field])
                except ValueError as problem:
                    raise ConfigError(source, _under(path, f"{section}.{field}"), str(problem)) from problem
    return result


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
    for key, mode in (("mode", settings.mode), ("fallback", settings.fallback)):
        if (key, mode) != ("fallback", ProxySettings().fallback):
            DATAPLANES.check(mode, source, _under(path, key))
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
        for key, value in _values(values, _under(path, section)).items():
            if isinstance(value, int) and value < 0:
                raise ConfigError(source, key, f"{value} is less than 0")
    checks: dict[str, Callable[[], object]] = {
        "healthzBindAddress": lambda: settings.healthz,
        "metricsBindAddress": lambda: settings.metrics,
        "nodePortAddresses": lambda: settings.node_port_ranges,
        "oomScoreAdj": lambda: _check_oom_score(settings.oom_score_adj),
        "ipvs.scheduler": lambda: _check_scheduler(settings.ipvs.scheduler),
        "ipvs.excludeCIDRs": lambda: [ip_network(text) for text in settings.ipvs.exclude_cidrs],
    }
    for key, check in checks.items():
        try:
            check()
        except ValueError as problem:
            raise ConfigError(source, _under(path, key), str(problem)) from problem


def _check_oom_score(value: int) -> None:
    if not -1000 <= value <= 1000:
        raise ValueError(f"{value} is not between -1000 and 1000")


def _check_scheduler(name: str) -> None:
    if not _SCHEDULER.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a scheduler, such as rr or wlc")


def _under(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def as_keys(settings: ProxySettings, also: Iterable[str] = (), path: str = "proxy") -> dict[str, str]:
    """Keys and texts for a ConfigMap: the mode, settings that differ from the defaults, and the keys in ``also``."""
    defaults = _values(ProxySettings(), path)
    compared_keys = {f"{path}.mode", *also}
    changed = {
        key: value for key, value in _values(settings, path).items() if key in compared_keys or value != defaults[key]
    }
    texts = {key: msgspec.json.encode(value).decode() for key, value in changed.items()}
    return dict(sorted((texts | {f"{path}.mode": settings.mode}).items()))


def paths() -> frozenset[str]:
    """The path in the section of every field."""
    return frozenset(_values(ProxySettings(), ""))


def _values(section: msgspec.Struct, path: str) -> dict[str, Any]:
    """Every field by its path."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(section):
        value, key = getattr(section, field.name), _under(path, field.encode_name)
        if isinstance(value, msgspec.Struct):
            values |= _values(value, key)
        else:
            values[key] = value
    return values
