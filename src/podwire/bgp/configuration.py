"""The configuration of one BGP speaker as values: its networks, its neighbours, and the routes that it exports to the
kernel.

The words are those of RFC 4271 (BGP-4), RFC 4456 (route reflection), RFC 4724 (graceful restart), RFC 5880 (BFD) and
RFC 7911 (several paths per prefix). A session carries the routes of the family of its addresses, and those of the other
family where ``second`` says so (RFC 4760).
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal

import msgspec
from msgspec.structs import replace

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
LogLevel = Literal["debug", "info", "warning", "error"]
Community = tuple[int, ...]
"""Two numbers are a community (RFC 1997), three a large community (RFC 8092)."""

BGP_PORT = 179


class RouteRule(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The conditions of a rule, which must all match, and its action; the first rule that matches a route decides."""

    version: Literal[4, 6]
    """The family of the routes."""
    accept: bool
    network: Network | None = None
    operator: Literal["equal", "not equal", "in", "not in"] = "in"
    """How the prefix of the route compares with ``network``."""
    lengths: tuple[int, int] | None = None
    """Shortest and longest prefix, for the operators ``in`` and ``not in``; None is any."""
    interface: str = ""
    """A pattern with ``*`` of the outgoing device."""
    learned: bool = False
    """Whether only routes that another neighbour sent match."""
    peer_type: Literal["", "eBGP", "iBGP"] = ""
    """The sessions to which the rule applies; empty: all."""
    community: Community = ()
    path_prefix: tuple[int, ...] = ()
    """The numbers with which the path begins."""
    added: tuple[Community, ...] = ()
    """Added to accepted routes."""
    local_pref: int = 0
    """The local preference of accepted routes; 0: as it is."""
    prepended: tuple[int, ...] = ()
    """Put before the path of accepted routes."""


class BfdTimes(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The times of BFD (RFC 5880) on a session."""

    receive_ms: int = 300
    transmit_ms: int = 300
    multiplier: int = 3
    passive: bool = False
    """Whether the neighbour begins."""


class SecondFamily(msgspec.Struct, frozen=True, kw_only=True):
    """The family of routes that is not that of a session's addresses; the speaker accepts none of the neighbour."""

    version: Literal[4, 6]
    next_hop: Address | None
    """The next hop of sent routes; None: the one of the session, of the other family (RFC 8950)."""
    exports: tuple[RouteRule, ...] = ()
    """Only what these rules accept is sent."""


class BgpSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session with one neighbour; ``name`` is unique and consists of letters, digits and underscores."""

    name: str
    peer: str = ""
    """The Node or object that the session is with; printable, without double quotes."""
    local: Address
    local_as: int
    local_port: int = BGP_PORT
    remote: Address
    remote_as: int
    """0: any but the own one."""
    remote_port: int = BGP_PORT
    password: str = ""
    """TCP MD5 password (RFC 2385); empty for none."""
    on_link: bool = False
    """Whether the neighbour is on a subnet of this node, so that no router is between them."""
    waits: bool = False
    """Whether the neighbour alone opens the connection: where both do, one of the two connections is closed again."""
    sends: Literal["own", "pods", "all"] = "own"
    """Which routes the neighbour gets: own networks; all pod networks; all that other neighbours sent."""
    cluster_id: str = ""
    """Where the neighbour is a client of this route reflector: the identifier of the reflector's cluster."""
    accepts: tuple[Network, ...] = ()
    """Only these networks, and networks inside them, are accepted; empty accepts all."""
    communities: tuple[Community, ...] = ()
    """Added to sent routes."""
    prepends: int = 0
    """How often the own number is added to the path of sent routes."""
    bfd: bool = False
    bfd_times: BfdTimes | None = None
    """None: the times of the speaker."""
    add_paths: bool = False
    imports: tuple[RouteRule, ...] = ()
    """For routes of the neighbour; they come after the refusal of own networks, and before ``accepts``."""
    exports: tuple[RouteRule, ...] = ()
    """For routes to the neighbour; they come before ``sends``."""
    next_hop: Literal["", "self", "keep"] = ""
    """The next hop of sent routes; empty: as RFC 4271 says."""
    has_source: bool = True
    """Whether packets to the neighbour have the address ``local``; else the kernel chooses."""
    restart_time_s: int = 0
    """As ``BgpConfiguration.restart_time_s``; 0: the same."""
    keepalive_s: int = 0
    """The time between two keepalives; a neighbour that is silent three times as long is dead. 0: that of BIRD."""
    hold_s: int = 0
    """After how long without a message the neighbour is dead, together with ``keepalive_s``; 0: three keepalives."""
    connect_retry_s: int = 2
    keeps_routes: bool = True
    """Whether the neighbour keeps the routes while the speaker restarts (RFC 4724)."""
    router_id: str = ""
    """Another identifier than that of the speaker."""
    own_as_limit: int | None = None
    """How often a received path may have the own number; None: once from another autonomous system, else never."""
    hops: int = 0
    """With more than 0, packets from farther away are dropped (RFC 5082)."""
    interface: str = ""
    """The device behind which the neighbour is, which alone opens the connection, from any address of the link; it
    learns the address of this node from router advertisements. ``local`` and ``remote`` are unspecified then."""
    vrf: str = ""
    """The device of the VRF in which the neighbour is; empty: the main routing table."""
    second: SecondFamily | None = None
    """None: the session carries the family of its addresses alone."""

    @property
    def key(self) -> tuple[Address, str, str]:
        """The neighbour, and where it is."""
        return self.remote, self.vrf, self.interface

    @property
    def is_internal(self) -> bool:
        """Whether both ends have the same autonomous system number (iBGP)."""
        return self.local_as == self.remote_as


class BgpConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one speaker."""

    router_id: IPv4Address
    link: str
    """The device with the node's addresses."""
    ignored_devices: tuple[str, ...] = ()
    """Patterns of devices whose networks are not read."""
    networks: tuple[Network, ...] = ()
    """The own networks, which are announced and never accepted."""
    service_networks: tuple[Network, ...] = ()
    """Addresses of load balancers, which are announced where a rule of a session accepts them."""
    unsent: tuple[Network, ...] = ()
    """No route inside these networks is announced, unless a rule of the session accepts it."""
    tags: tuple[tuple[Network, tuple[Community, ...]], ...] = ()
    """Communities of announced routes inside a network."""
    gateways: tuple[tuple[Address, Address], ...] = ()
    """Neighbours, and the next hop to each of them."""
    strict_bind: bool = False
    """Whether BIRD listens only at the addresses of its sessions."""
    sources: tuple[Address, ...] = ()
    """The preferred source address of routes in the kernel, at most one of each family."""
    pod_networks: tuple[Network, ...] = ()
    """All pod networks of the cluster."""
    planned_next_hops: tuple[str, ...] = ()
    """Next hops, as texts, to which another program writes the routes to pod networks: the speaker leaves them out."""
    writes_pod_routes: bool = True
    """Whether routes to pod networks are written into the kernel at all."""
    sessions: tuple[BgpSession, ...] = ()
    restart_time_s: int = 120
    """How long neighbours keep the routes of this speaker while it restarts."""
    log_file: str
    log_level: LogLevel = "info"


class ServiceRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """What a speaker announces for load balancers: the networks, and sessions with the rules that accept them."""

    networks: tuple[Network, ...] = ()
    sessions: tuple[BgpSession, ...] = ()


def with_services(config: BgpConfiguration, routes: ServiceRoutes) -> BgpConfiguration:
    """The configuration with the routes of load balancers.

    Where the speaker has a session with a neighbour already, this session announces them, and stays as it is otherwise.
    A family in which the speaker has no networks is left out.
    """
    if not routes.sessions:
        return replace(config, service_networks=routes.networks)
    families = {network.version for network in config.networks}
    sessions = {session.key: session for session in config.sessions}
    for session in routes.sessions:
        known = sessions.get(session.key)
        second = session.second if session.second and session.second.version in families else None
        exports = (*session.exports, *known.exports) if known else session.exports
        sessions[session.key] = replace(known or session, exports=exports, second=second)
    return replace(config, service_networks=routes.networks, sessions=tuple(sessions.values()))
