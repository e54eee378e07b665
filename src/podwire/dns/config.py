"""The configuration of the DNS server, read from one YAML document."""

from pathlib import Path

import msgspec

from podwire.errors import ConfigError
from podwire.model.document import not_yaml, wrong


class ForwardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How names are asked for upstream.

    ``upstreams`` are ``address``, ``address:port`` (IPv6 in brackets), or a file with the name servers of a resolver.
    ``policy`` is the order of the servers: sequential, random or round_robin. ``max_concurrent`` requests may wait, 0
    means 2000. A server is bad after ``max_fails`` failed probes in a row, 0 means never; between two probes lie
    ``health_check_seconds``.
    """

    upstreams: tuple[str, ...] = ()
    policy: str = "sequential"
    force_tcp: bool = False
    prefer_udp: bool = False
    max_concurrent: int = 0
    max_fails: int = 2
    health_check_seconds: float = 0.5


class DnsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Settings; the defaults suit a pod of the cluster.

    ``listen`` has addresses without port; ``::`` is left out when the machine has no IPv6. ``http_address`` is the
    address of the health, readiness and metrics endpoints; empty means the addresses of ``listen``, and port 0 turns
    an endpoint off. ``upstreams`` are ``address`` or ``address:port`` (IPv6 in brackets); without them those of
    ``forward`` are used, and without those the name servers of ``resolvConf``. ``stub_domains`` have upstream servers
    of their own. ``fallthrough`` has the zones whose missing names are asked for upstream. Foreign names are cached for
    at most ``cache_seconds``; for ``serve_stale_seconds`` longer they answer when upstream does not, or (without
    ``serve_stale_verify``) at once while upstream is asked. ``hosts`` have addresses by name, before all other names. A
    Corefile is read again every ``reload_seconds``, 0 means never.
    """

    domain: str = "cluster.local"
    ttl_seconds: int = 5
    pods: str = "insecure"
    endpoint_pod_names: bool = False
    listen: tuple[str, ...] = ("0.0.0.0", "::")
    port: int = 53
    health_port: int = 8080
    ready_port: int = 8181
    metrics_port: int = 9153
    http_address: str = ""
    upstreams: tuple[str, ...] = ()
    resolv_conf: str = "/etc/resolv.conf"
    kubeconfig: str = ""
    lameduck_seconds: float = 0.0
    udp_size: int = 1232
    forward: ForwardConfig = ForwardConfig()
    stub_domains: dict[str, ForwardConfig] = {}
    namespaces: tuple[str, ...] = ()
    ignore_empty_service: bool = False
    reverse_zones: tuple[str, ...] = ("in-addr.arpa", "ip6.arpa")
    fallthrough: tuple[str, ...] = ("in-addr.arpa", "ip6.arpa")
    cache_seconds: float = 300.0
    serve_stale_seconds: float = 0.0
    serve_stale_verify: bool = False
    reload_seconds: float = 0.0
    query_log: bool = False
    hosts: dict[str, tuple[str, ...]] = {}
    hosts_ttl_seconds: int = 3600


_PODS = ("disabled", "insecure", "verified")


def parse_config(text: bytes | str, source: str) -> DnsConfig:
    """The settings in a YAML (or JSON) document; an empty document means all defaults.

    Raises: ConfigError naming the field.
    """
    try:
        config = msgspec.yaml.decode(text, type=DnsConfig | None) or DnsConfig()
    except msgspec.ValidationError as failure:
        raise wrong(failure, DnsConfig, source) from failure
    except msgspec.DecodeError as failure:
        raise not_yaml(failure, source) from failure
    if config.pods not in _PODS:
        raise ConfigError(source, "pods", f"expected one of {', '.join(_PODS)}, got {config.pods!r}")
    if not 0 <= config.ttl_seconds <= 3600:
        raise ConfigError(source, "ttlSeconds", f"expected 0 to 3600, got {config.ttl_seconds}")
    if not 512 <= config.udp_size <= 65535:
        raise ConfigError(source, "udpSize", f"expected 512 to 65535, got {config.udp_size}")
    return config


def load_config(path: str) -> DnsConfig:
    """The settings in a file.

    Raises: ConfigError.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as failure:
        raise ConfigError(path, "", f"cannot be read: {failure.strerror}") from failure
    return parse_config(text, path)
