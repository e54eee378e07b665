"""The proxy's settings, read from the ``proxy`` section of an agent's configuration."""

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError
from podwire.proxy.nodeports import PRIMARY, parse_ranges
from podwire.proxy.registry import DATAPLANES
from podwire.proxy.sysctls import ConntrackSettings

DetectLocal = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]

_INTERFACE = re.compile(r"[^\s/:*\"]{1,15}")


class ProxySettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """How Services are programmed on this node.

    ``mode`` is a data plane of the registry. ``masquerade_bit`` (0 to 29) is the bit of the packet mark that asks for
    masquerade; ``masquerade_all`` hides the source of everything that goes to a cluster address.
    ``healthz_bind_address`` is where ``/healthz`` and ``/livez`` of the proxy are answered, ``metrics_bind_address``
    where ``/metrics`` and ``/proxyMode`` are; empty: nowhere.
    ``node_port_addresses`` are the ranges in which node ports answer, or ``primary``; ``allow_external_ips`` false
    leaves ``spec.externalIPs`` out. ``detect_local_mode`` says by what a packet is known to come from a pod:
    ClusterCIDR (the agent's ``clusterCIDRs``), NodeCIDR (the node's own), or by the device it comes in by,
    BridgeInterface or InterfaceNamePrefix, with ``detect_local_interface`` its name or the beginning of it.
    ``reset_connections`` ends TCP connections to endpoints that are gone; ``conntrack`` is set when the proxy starts.
    """

    mode: str = "nftables"
    masquerade_bit: int = 14
    masquerade_all: bool = False
    healthz_bind_address: str = "0.0.0.0:10256"
    metrics_bind_address: str = "127.0.0.1:10249"
    node_port_addresses: tuple[str, ...] = (PRIMARY,)
    allow_external_ips: bool = msgspec.field(default=True, name="allowExternalIPs")
    detect_local_mode: DetectLocal = "ClusterCIDR"
    detect_local_interface: str = ""
    reset_connections: bool = False
    conntrack: ConntrackSettings = ConntrackSettings()

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
        name = self.detect_local_interface
        return {"BridgeInterface": name, "InterfaceNamePrefix": f"{name}*"}.get(self.detect_local_mode, "")


def parse_address(text: str) -> tuple[str, int]:
    """Address and port of ``192.0.2.1:80`` or ``[::]:80``.

    Raises: ValueError.
    """
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not an address and port, such as 0.0.0.0:10256 or [::]:10256")
    return str(ip_address(address.removeprefix("[").removesuffix("]"))), int(port)


def parse_settings(document: Mapping[str, Any], source: str = "proxy") -> ProxySettings:
    """The settings of a configuration section.

    Raises: ConfigError with the field that is wrong.
    """
    try:
        settings = msgspec.convert(dict(document), ProxySettings)
    except msgspec.ValidationError as failure:
        raise ConfigError(source, "", str(failure)) from failure
    if settings.mode not in DATAPLANES:
        raise ConfigError(source, "mode", f"unknown data plane {settings.mode!r}: expected {', '.join(DATAPLANES)}")
    if not 0 <= settings.masquerade_bit <= 29:
        raise ConfigError(source, "masqueradeBit", f"{settings.masquerade_bit} is not between 0 and 29")
    by_interface = settings.detect_local_mode in ("BridgeInterface", "InterfaceNamePrefix")
    if by_interface and not _INTERFACE.fullmatch(settings.detect_local_interface):
        problem = f"{settings.detect_local_interface!r} is not a device name, which {settings.detect_local_mode} needs"
        raise ConfigError(source, "detectLocalInterface", problem)
    checks: dict[str, Callable[[], object]] = {
        "healthzBindAddress": lambda: settings.healthz,
        "metricsBindAddress": lambda: settings.metrics,
        "nodePortAddresses": lambda: settings.node_port_ranges,
    }
    for field, check in checks.items():
        try:
            check()
        except ValueError as problem:
            raise ConfigError(source, field, str(problem)) from problem
    return settings
