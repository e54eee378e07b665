"""The resolved Services of one node: what a data plane programs, with every policy already decided.

A :class:`ResolvedPort` is one port of one Service in one family. Its endpoint lists are final: topology hints, traffic
policies and terminating endpoints are applied by ``proxy.resolve``; a data plane only spreads connections over the
lists. The map is keyed by Service, so that a change costs its Service alone.
"""

from collections.abc import Mapping

import msgspec


class ResolvedEndpoint(msgspec.Struct, frozen=True, gc=False, order=True):
    """Where a connection may go; ``local``: the pod runs on this node."""

    address: str
    port: int
    local: bool = False

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class ResolvedPort(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One port of one Service in one family."""

    service: str
    """``namespace/name``."""
    port_name: str
    protocol: str
    """``tcp``, ``udp`` or ``sctp``."""
    family: str
    """``ip`` or ``ip6``."""
    port: int
    cluster_ip: str
    node_port: int = 0
    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    """Clients allowed to reach the load balancer addresses; empty means everyone."""
    internal_local: bool = False
    """``internalTrafficPolicy: Local``."""
    external_local: bool = False
    """``externalTrafficPolicy: Local`` on a Service that is reachable from outside."""
    cluster_endpoints: tuple[ResolvedEndpoint, ...] = ()
    local_endpoints: tuple[ResolvedEndpoint, ...] = ()
    has_endpoints: bool = False
    """Whether any usable endpoint exists on any node: without one the Service refuses, else it may drop."""
    serving: frozenset[str] = frozenset()
    """``address:port`` of every serving endpoint anywhere, for the clean-up of UDP flows."""
    affinity_s: int = 0
    """How long a client keeps its endpoint, in seconds; 0 without affinity."""
    health_check_node_port: int = 0
    local_ready: tuple[str, ...] = ()
    """Addresses of the ready endpoints of this node, sorted; only with a health check node port."""

    @property
    def name(self) -> str:
        """``namespace/name:port``, as used in errors, comments and logs."""
        return f"{self.service}:{self.port_name}" if self.port_name else self.service

    @property
    def key(self) -> str:
        """The identity of this port within its family."""
        return f"{self.name}/{self.protocol}"

    @property
    def internal_endpoints(self) -> tuple[ResolvedEndpoint, ...]:
        """The endpoints behind the cluster address."""
        return self.local_endpoints if self.internal_local else self.cluster_endpoints


ServiceMap = Mapping[str, tuple[ResolvedPort, ...]]
"""Ports of both families by ``namespace/name``; an empty tuple means that the Service has nothing to program."""


class IpvsSettings(
    msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Settings of the data plane ``ipvs``.

    ``scheduler`` is one of the kernel's: ``rr``, ``wrr``, ``lc``, ``wlc``, ``sh``, ``dh``, ``sed``, ``nq``, ``mh``, ...
    ``strict_arp`` keeps the node from answering ARP for addresses of another device than the one that is asked;
    virtual servers at addresses in ``exclude_cidrs`` are never touched. Timeouts are in seconds; 0 leaves the kernel's.
    """

    scheduler: str = "rr"
    strict_arp: bool = msgspec.field(default=False, name="strictARP")
    exclude_cidrs: tuple[str, ...] = msgspec.field(default=(), name="excludeCIDRs")
    tcp_timeout: int = 0
    tcp_fin_timeout: int = 0
    udp_timeout: int = 0


class IptablesSettings(
    msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Settings of the data plane ``iptables``.

    ``localhost_node_ports``: node ports answer on 127.0.0.0/8 too, where the ranges of node port addresses have it.
    """

    localhost_node_ports: bool = True


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of this node and its cluster that resolving and programming use."""

    name: str
    zone: str = ""
    addresses: tuple[str, ...] = ()
    """The node's internal addresses, both families; node ports answer there unless ``node_port_ranges`` is set."""
    node_port_ranges: tuple[str, ...] = ()
    """Node ports answer on every address of the node in these ranges, except loopback; empty: on ``addresses``."""
    pod_cidrs: tuple[str, ...] = ()
    """The sources that are pods (the cluster's pod ranges); when empty, pods are not distinguished by source."""
    pod_cidrs_of_node: bool = False
    """Whether ``pod_cidrs`` follow the node's own ``spec.podCIDRs``."""
    pod_interface: str = ""
    """The devices on which packets from pods arrive, such as ``cni0`` or ``veth*``; replaces ``pod_cidrs`` when set."""
    external_ips: bool = True
    """Whether ``spec.externalIPs`` are served."""
    service_cidrs: tuple[str, ...] = ()
    """Service ranges; packets to addresses in them that belong to no Service are dropped."""
    masquerade_bit: int = 14
    masquerade_all: bool = False
    reset_connections: bool = False
    """Whether data planes that keep connections themselves end TCP connections to removed endpoints."""
    ipvs: IpvsSettings = IpvsSettings()
    iptables: IptablesSettings = IptablesSettings()

    @property
    def masquerade_mark(self) -> int:
        """The packet mark that asks for masquerade."""
        return 1 << self.masquerade_bit


def of_family(texts: tuple[str, ...], family: str) -> tuple[str, ...]:
    """The addresses or ranges that belong to ``ip`` or ``ip6``."""
    return tuple(text for text in texts if (":" in text) == (family == "ip6"))


def ports_of_family(services: ServiceMap, family: str) -> dict[str, tuple[ResolvedPort, ...]]:
    """The ports of one family, ``ip`` or ``ip6``; a tuple with only ports of that family is returned unchanged."""
    return {
        key: ports if all(port.family == family for port in ports) else _only_family(ports, family)
        for key, ports in services.items()
    }


def _only_family(ports: tuple[ResolvedPort, ...], family: str) -> tuple[ResolvedPort, ...]:
    return tuple(port for port in ports if port.family == family)


def take_over(services: dict[str, tuple[ResolvedPort, ...]], changed: ServiceMap) -> None:
    """Applies changed Services to ``services``; an empty tuple removes a Service."""
    for key, ports in changed.items():
        if ports:
            services[key] = ports
        else:
            services.pop(key, None)
