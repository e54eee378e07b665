"""A ``KubeProxyConfiguration`` (``kubeproxy.config.k8s.io/v1alpha1``) as settings of podwire.

A user who replaces kube-proxy passes its file to ``podwire agent --kube-proxy-config``: the agent then is only a
Service proxy. Fields with the same name have the same meaning. Otherwise:

- ``mode`` empty, which to kube-proxy means iptables, means podwire's own default; the rest is read as for iptables;
- ``masqueradeBit`` and ``masqueradeAll`` are those of the section of the mode;
- ``nodePortAddresses`` empty means every address, with mode nftables the primary ones, as it does to kube-proxy;
- the feature gate ``AllowServiceExternalIPs`` is ``allowExternalIPs``;
- podwire's own settings, such as ``resetConnections``, may be in the file too.

Fields that podwire does not need are returned, so that the log names them. An example are the periods of
synchronisation: podwire programs a change when it arrives, and restores at once what other programs change. An unknown
field is an error.
"""

from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import Any

import msgspec
import yaml

from podwire.errors import ConfigError
from podwire.model.document import not_yaml
from podwire.proxy.settings import parse_settings, paths

API_VERSION, KIND = "kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration"

_PORTS = {"healthzBindAddress": 10256, "metricsBindAddress": 10249}
_OF_IPV6 = {"healthzBindAddress": "::", "metricsBindAddress": "::1"}
"""The addresses of the pages on a node whose ``bindAddress`` is an IPv6 address."""
_MODES = ("", "iptables", "ipvs", "nftables")
_SECTIONS = {"": "iptables", "ipvs": "iptables"}
"""The section with the masquerade settings of a mode that has no section with such settings."""
_EVERYWHERE = ["0.0.0.0/0", "::/0"]
_GATE = "featureGates.AllowServiceExternalIPs"
_READ = frozenset(
    (
        "apiVersion",
        "kind",
        "mode",
        "clusterCIDR",
        "hostnameOverride",
        "bindAddress",
        "clientConnection.kubeconfig",
        _GATE,
        *_PORTS,
    )
)
_PERIODS = ("syncPeriod", "minSyncPeriod")
_WITHOUT_MEANING = frozenset(
    (
        "bindAddressHardFail",
        "configSyncPeriod",
        "enableProfiling",
        "portRange",
        "showHiddenMetricsForVersion",
        "windowsRunAsService",
        *(f"clientConnection.{name}" for name in ("acceptContentTypes", "contentType", "burst", "qps")),
        *(f"{mode}.{period}" for mode in ("iptables", "ipvs", "nftables") for period in _PERIODS),
        *(f"{mode}.{name}" for mode in ("iptables", "nftables") for name in ("masqueradeAll", "masqueradeBit")),
    )
)
_FOREIGN = ("featureGates", "logging", "winkernel")
"""Sections of which only the masquerade settings are read."""
_UNSAID: tuple[Any, ...] = (None, "", [], {})
_ZERO: tuple[Any, ...] = (*_UNSAID, False, 0, "0", "0s")


class KubeProxySettings(msgspec.Struct, frozen=True):
    """A parsed file: the node, the API server, the section ``proxy``, and the ignored fields."""

    node_name: str
    kubeconfig: str
    cluster_cidrs: tuple[str, ...]
    proxy: dict[str, Any]
    without_meaning: tuple[str, ...]


def parse(text: str, source: str, hostname: str) -> KubeProxySettings:
    """The settings of a file; ``hostname`` is the name of the node if the file has none.

    Raises: ConfigError naming the source and the field.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise not_yaml(problem, source) from problem
    if not isinstance(document, Mapping) or (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        raise ConfigError(source, "kind", f"expected {KIND} of {API_VERSION}")
    fields = {path: value for path, value in _leaves(document, "") if value not in _UNSAID}
    proxy, without_meaning = _proxy(fields, source)
    parse_settings(proxy, source, "")
    return KubeProxySettings(
        node_name=str(fields.get("hostnameOverride") or hostname).strip().lower(),
        kubeconfig=str(fields.get("clientConnection.kubeconfig", "")),
        cluster_cidrs=_networks(str(fields.get("clusterCIDR", "")), source),
        proxy=proxy,
        without_meaning=without_meaning,
    )


def _leaves(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        where = f"{path}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{where}.")
        else:
            yield where, value


def _proxy(fields: Mapping[str, Any], source: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The section ``proxy``, and the fields without a meaning that are set."""
    known = paths()
    mode = str(fields.get("mode", ""))
    if mode not in _MODES:
        raise ConfigError(
            source,
            "mode",
            f"{mode!r} is not a mode of Linux; the modes are {', '.join(filter(None, _MODES))}",
        )
    section = _SECTIONS.get(mode, mode)
    proxy_fields: dict[str, Any] = {} if mode == "nftables" else {"nodePortAddresses": _EVERYWHERE}
    proxy_fields |= {"mode": mode} if mode else {}
    without_meaning: list[str] = []
    for path, value in fields.items():
        own, _, name = path.rpartition(".")
        if own == section and name in ("masqueradeAll", "masqueradeBit"):
            proxy_fields[name] = value
        elif path in known and path not in _READ:
            proxy_fields[path] = value
        elif path in _WITHOUT_MEANING or (path.split(".")[0] in _FOREIGN and path != _GATE):
            without_meaning += [path] * (value not in _ZERO)
        elif path not in _READ:
            raise ConfigError(source, path, f"is not a field of {KIND}")
    usual = _OF_IPV6 if ":" in str(fields.get("bindAddress", "")) else {}
    for path, text in {**usual, **{path: str(fields[path]) for path in _PORTS if path in fields}}.items():
        proxy_fields[path] = _with_port(text, _PORTS[path])
    if _GATE in fields:
        proxy_fields["allowExternalIPs"] = fields[_GATE]
    return proxy_fields, tuple(without_meaning)


def _networks(text: str, source: str) -> tuple[str, ...]:
    cidrs = tuple(filter(None, (part.strip() for part in text.split(","))))
    for cidr in cidrs:
        try:
            ip_network(cidr)
        except ValueError as problem:
            raise ConfigError(source, "clusterCIDR", str(problem)) from problem
    return cidrs


def _with_port(text: str, port: int) -> str:
    """Address and port of an address with or without one."""
    if text.count(":") > 1 and not text.startswith("["):
        return f"[{text}]:{port}"
    return text if ":" in text.rpartition("]")[2] else f"{text}:{port}"
