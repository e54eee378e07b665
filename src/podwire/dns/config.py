"""The configuration of the DNS server, read from one YAML document."""

from pathlib import Path

import msgspec

from podwire.dns.corefile.syntax import Directive
from podwire.dns.names import address_bytes
from podwire.errors import ConfigError
from podwire.model.document import not_yaml, wrong


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Files for TLS with upstream servers: the client's certificate and key, and the authorities that sign servers'.

    Empty means: no certificate, the machine's authorities.
    """

    certificate: str = ""
    key: str = ""
    authorities: str = ""


class ServingTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Files for TLS with clients: certificate and key of the server, and the authorities that sign those of clients.

    ``clients`` says whether a client needs a certificate: none, optional or required. Without ``authorities`` those of
    the machine count.
    """

    certificate: str = ""
    key: str = ""
    authorities: str = ""
    clients: str = "none"


class ForwardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How names are asked for upstream.

    ``upstreams`` are ``address``, ``address:port`` (IPv6 in brackets), ``tls://address`` (DNS over TLS, with
    ``%server-name`` behind the address if it differs from ``tls_server_name``), or a file with the name servers of a
    resolver. ``policy`` is the order of the servers: sequential, random or round_robin. ``max_concurrent`` requests may
    wait, 0 means 2000. A server is bad after ``max_fails`` failed probes in a row, 0 means never; between two probes
    lie ``health_check_seconds``, and they ask for ``health_check_domain``, with recursion unless
    ``health_check_recursion`` is false. An unused connection is closed after ``expire_seconds``. Names below
    ``except_zones`` are not asked for. A reply with one of the response codes ``failover`` does not count while another
    server can be asked. With ``fail_fast`` no server is asked when all are bad. ``next_forward`` is asked instead for
    names below ``except_zones``, after a reply with one of the response codes ``next_codes``, and with
    ``next_without_data`` after a successful reply without records.
    """

    upstreams: tuple[str, ...] = ()
    policy: str = "sequential"
    force_tcp: bool = False
    prefer_udp: bool = False
    max_concurrent: int = 0
    max_fails: int = 2
    health_check_seconds: float = 0.5
    health_check_domain: str = "."
    health_check_recursion: bool = True
    expire_seconds: float = 10.0
    except_zones: tuple[str, ...] = ()
    failover: tuple[str, ...] = ()
    fail_fast: bool = False
    tls: TlsConfig | None = None
    tls_server_name: str = ""
    next_codes: tuple[str, ...] = ()
    next_without_data: bool = False
    next_forward: "ForwardConfig | None" = None

    @property
    def chain(self) -> "tuple[ForwardConfig, ...]":
        """This one and those that are asked after it."""
        return (self, *(self.next_forward.chain if self.next_forward is not None else ()))


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How replies to names outside the cluster are cached.

    A reply is cached for its own time, at least ``..._least_seconds`` and at most ``..._seconds``; success is a reply
    with records, denial one without. A name that was asked for ``prefetch_amount`` times (0: never) without a pause of
    ``prefetch_seconds`` is asked for again when ``prefetch_percent`` of its time are left. SERVFAIL is cached for
    ``failure_seconds``. For ``serve_stale_seconds`` longer, an expired reply is used at once, or
    (``serve_stale_verify``) when no server replies.
    """

    success_capacity: int = 4096
    success_seconds: float = 300.0
    success_least_seconds: float = 0.0
    denial_capacity: int = 4096
    denial_seconds: float = 300.0
    denial_least_seconds: float = 0.0
    prefetch_amount: int = 0
    prefetch_seconds: float = 60.0
    prefetch_percent: int = 10
    serve_stale_seconds: float = 0.0
    serve_stale_verify: bool = False
    failure_seconds: float = 0.0


class PluginBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The plugins of a server block of a Corefile that handle requests, as they were written.

    ``cluster`` says whether the cluster's zone and ``hosts`` answer in the block, ``forwards`` whether other names are
    asked for upstream.
    """

    zones: tuple[str, ...] = ()
    directives: tuple[Directive, ...] = ()
    cluster: bool = False
    forwards: bool = False


class DnsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Settings; the defaults suit a pod of the cluster.

    ``listen`` has addresses without port; ``::`` is left out when the machine has no IPv6. ``http_address`` is the
    address of the health, readiness and metrics endpoints; empty means the addresses of ``listen``, and port 0 turns
    an endpoint off. ``upstreams`` are ``address`` or ``address:port`` (IPv6 in brackets); without them those of
    ``forward`` are used, and without those the name servers of ``resolvConf``. ``stub_domains`` have upstream servers
    of their own. ``zonal`` adds names for the endpoints of a topology zone; ``clusterset`` is the zone of Services that
    other clusters export. ``fallthrough`` has the zones whose missing names are asked for upstream. Foreign names are
    cached for at most ``cache_seconds``; for ``serve_stale_seconds`` longer they answer when upstream does not, or
    (without ``serve_stale_verify``) at once while upstream is asked. ``hosts`` have addresses by name, before all other
    names. ``caches`` are options of the cache by zone. ``view_forwards`` are the upstream servers of views, by their
    names and by zone. ``blocks`` are the server blocks of a Corefile, if one of them has plugins of its own; ``files``
    are the files that these name. ``query_log_format`` is a line of CoreDNS with placeholders, or ``json``;
    ``query_log_classes`` are success, denial and error, none means all. A Corefile is read again every
    ``reload_seconds``, 0 means never. ``node_local``: this is the server of a node, ``listen`` has the addresses of the
    DNS Service, and pods reach the server while it has listed everything and does not leave. ``tls_port`` is where the
    same answers are served over TLS with the certificate of ``serving_tls``, 0 means nowhere.
    """

    domain: str = "cluster.local"
    ttl_seconds: int = 5
    pods: str = "insecure"
    endpoint_pod_names: bool = False
    listen: tuple[str, ...] = ("0.0.0.0", "::")
    port: int = 53
    tls_port: int = 0
    serving_tls: ServingTls = ServingTls()
    health_port: int = 8080
    ready_port: int = 8181
    metrics_port: int = 9153
    http_address: str = ""
    upstreams: tuple[str, ...] = ()
    resolv_conf: str = "/etc/resolv.conf"
    kubeconfig: str = ""
    lameduck_seconds: float = 0.0
    node_local: bool = False
    udp_size: int = 1232
    forward: ForwardConfig = ForwardConfig()
    stub_domains: dict[str, ForwardConfig] = {}
    namespaces: tuple[str, ...] = ()
    ignore_empty_service: bool = False
    zonal: bool = False
    clusterset: str = ""
    reverse_zones: tuple[str, ...] = ("in-addr.arpa", "ip6.arpa")
    fallthrough: tuple[str, ...] = ("in-addr.arpa", "ip6.arpa")
    cache_seconds: float = 300.0
    serve_stale_seconds: float = 0.0
    serve_stale_verify: bool = False
    reload_seconds: float = 0.0
    query_log: bool = False
    query_log_format: str = "{common}"
    query_log_classes: tuple[str, ...] = ()
    hosts: dict[str, tuple[str, ...]] = {}
    hosts_ttl_seconds: int = 3600
    caches: dict[str, CacheConfig] = {}
    view_forwards: dict[str, dict[str, ForwardConfig]] = {}
    blocks: tuple[PluginBlock, ...] = ()
    files: dict[str, str] = {}

    @property
    def page_addresses(self) -> tuple[str, ...]:
        """Where health, readiness and metrics are served: a node's own server has no address of its own."""
        if self.http_address:
            return (self.http_address,)
        if not self.node_local:
            return self.listen
        return ("0.0.0.0", "::")


_PODS = ("disabled", "insecure", "verified")
TLS_CLIENTS = ("none", "optional", "required")
"""Whether clients over TLS need a certificate."""


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
    tls = config.serving_tls
    if config.tls_port and not (tls.certificate and tls.key):
        raise ConfigError(source, "servingTls", "expected a certificate and a key for tlsPort")
    if tls.clients not in TLS_CLIENTS:
        problem = f"expected one of {', '.join(TLS_CLIENTS)}, got {tls.clients!r}"
        raise ConfigError(source, "servingTls.clients", problem)
    if config.node_local:
        check_service_addresses(config.listen, source, "listen")
    if not 512 <= config.udp_size <= 65535:
        raise ConfigError(source, "udpSize", f"expected 512 to 65535, got {config.udp_size}")
    return config


def check_service_addresses(addresses: tuple[str, ...], source: str, field: str) -> None:
    """Refuses what cannot be addresses of the DNS Service.

    Raises: ConfigError naming the field.
    """
    wrong_addresses = [address for address in addresses if not any(address_bytes(address))]
    if wrong_addresses or not addresses:
        problem = f"expected the addresses of the DNS Service, got {', '.join(wrong_addresses) or 'none'}"
        raise ConfigError(source, field, problem)


def load_config(path: str) -> DnsConfig:
    """The settings in a file.

    Raises: ConfigError.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as failure:
        raise ConfigError(path, "", f"cannot be read: {failure.strerror}") from failure
    return parse_config(text, path)
