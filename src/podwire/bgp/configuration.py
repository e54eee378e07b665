"""What one BGP speaker does, as values: its own networks, its neighbours, and the routes that it gives to the kernel.

The words are those of RFC 4271 (BGP-4), RFC 4456 (route reflection), RFC 4724 (graceful restart), RFC 5880 (BFD) and
RFC 7911 (several paths per prefix). A session carries the routes of one address family, that of its addresses.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal

import msgspec

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
LogLevel = Literal["debug", "info", "warning"]

BGP_PORT = 179


class BgpSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session with one neighbour; ``name`` is unique and consists of letters, digits and underscores."""

    name: str
    local: Address
    local_as: int
    local_port: int = BGP_PORT
    remote: Address
    remote_as: int
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
    communities: tuple[tuple[int, ...], ...] = ()
    """Added to sent routes: two numbers are a community (RFC 1997), three a large community (RFC 8092)."""
    prepends: int = 0
    """How often the own number is added to the path of sent routes."""
    bfd: bool = False
    add_paths: bool = False

    @property
    def is_internal(self) -> bool:
        """Whether both ends have the same autonomous system number (iBGP)."""
        return self.local_as == self.remote_as


class BgpConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one speaker."""

    router_id: IPv4Address
    link: str
    """The device with the node's addresses."""
    networks: tuple[Network, ...] = ()
    """The own networks, which are announced and never accepted."""
    sources: tuple[Address, ...] = ()
    """The preferred source address of routes in the kernel, at most one of each family."""
    pod_networks: tuple[Network, ...] = ()
    """All pod networks of the cluster."""
    planned_next_hops: tuple[Address, ...] = ()
    """Next hops to which another program writes the routes to pod networks: the speaker does not write these."""
    sessions: tuple[BgpSession, ...] = ()
    restart_time_s: int = 120
    """How long neighbours keep the routes of this speaker while it restarts."""
    log_file: str
    log_level: LogLevel = "info"
