"""The rules and routes by which pods reach the node's own server at the address of the DNS Service (pure).

How it works: a local route delivers packets for the Service address to the node's own sockets. Before connection
tracking, a rule looks whether a socket with the option IP_TRANSPARENT waits for the query; the server sets the option
while it takes queries (:mod:`podwire.dns.sockets`). If so, the query is not tracked: no rule of a proxy translates it,
and no connection is recorded. Otherwise the proxy translates it to a replica of the cluster, as without these rules. So
the kernel chooses for each query: when the server leaves, crashes or is not ready, the next query goes to the cluster,
and no rule has to change. A connection over TCP stays where it began: the first packet of one that the server takes
puts its source into the set ``connections``, by which the other packets are known for two minutes after the last one.

Replies of the server leave without connection tracking too. The route has the node's address as preferred source:
otherwise processes of the node would ask the cluster's replicas from the Service address. So there are no rules for a
Service address in whose family the node has no address.

Only pods to which no egress policy applies reach the server, and only from their own addresses (ADR 20): the policies
of all others have replicas as destinations.

Cost for a packet that is no query: the comparison of its destination with one address, for each rule.

Sources: net/netfilter/nft_socket.c, net/ipv4/netfilter/nf_socket_ipv4.c, ip(7) for IP_TRANSPARENT.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_text import parse_rule
from podwire.state.route import Route

OWNER = OwnerMark(route_protocol=117)
TABLE = "podwire-dns"
COMMENT = "podwire dns"
CLIENTS, CONNECTIONS = "clients", "connections"
RT_TABLE_LOCAL = 255  # linux/rtnetlink.h
_RAW = -300
_CONNECTIONS = 65535
"""The most connections over TCP; further ones go to the cluster."""
_TYPES = {"ip": "ipv4_addr", "ip6": "ipv6_addr"}
FAMILIES = tuple(_TYPES)


def family_of(address: str) -> str:
    """The nft family of an address."""
    return "ip6" if ip_address(address).version == 6 else "ip"


def clients_set(family: str, pods: Mapping[str, Iterable[str]]) -> Set:
    """The set of pods that reach the server: device and address."""
    declared = Set(name=CLIENTS, key=("ifname", _TYPES[family]), comment="pods without egress policy")
    keys = [f"{device} . {address}" for device, own in pods.items() for address in own if family_of(address) == family]
    return declared.with_elements([declared.element(key) for key in keys])


def plan_table(address: str, pods: Mapping[str, Iterable[str]]) -> Table:
    """The table of the family of a Service address; ``pods`` has the addresses of pods by their devices."""
    family = family_of(address)
    to_server = f"{family} daddr {address}"
    syn = "tcp flags & fin,syn,rst,ack"
    source = f"{family} saddr . tcp sport"
    admit = f"iifname . {family} saddr @{CLIENTS} socket transparent 1 counter packets 0 bytes 0"
    flags = ("dynamic", "timeout")
    remember = f"update @{CONNECTIONS} {{ {source} timeout 2m }} notrack"
    flows = Set(name=CONNECTIONS, key=(_TYPES[family], "inet_service"), flags=flags, size=_CONNECTIONS)
    return Table(
        family=family,
        name=TABLE,
        comment=COMMENT,
        sets=(clients_set(family, pods), flows),
        chains=(
            _chain(
                "connections",
                "prerouting",
                f"{to_server} tcp dport 53 {syn} != syn {source} @{CONNECTIONS} {remember}",
                f"{to_server} tcp dport 53 {syn} == syn {admit} {remember} accept",
                f"{to_server} tcp dport 53 {syn} == syn delete @{CONNECTIONS} {{ {source} }}",
            ),
            _chain("queries", "prerouting", f"{to_server} udp dport 53 {admit} notrack"),
            _chain(
                "replies",
                "output",
                f"{family} saddr {address} udp sport 53 notrack",
                f"{family} saddr {address} tcp sport 53 notrack",
            ),
        ),
    )


def _chain(name: str, hook: str, *rules: str) -> Chain:
    return Chain(name=name, type="filter", hook=hook, priority=_RAW, rules=tuple(map(parse_rule, rules)))


def plan_routes(addresses: Iterable[str], sources: Iterable[str]) -> NetworkState:
    """The local routes for the Service addresses; ``sources`` are the addresses of the node."""
    own = {family_of(source): source for source in reversed(tuple(sources))}
    return NetworkState(
        routes=tuple(
            Route(
                dst=address,
                kind="local",
                link="lo",
                src=own.get(family_of(address), ""),
                table=RT_TABLE_LOCAL,
            )
            for address in addresses
        )
    )


def reachable(addresses: Iterable[str], sources: Iterable[str]) -> tuple[str, ...]:
    """The Service addresses of the families in which the node has an address."""
    families = {family_of(source) for source in sources}
    return tuple(address for address in addresses if family_of(address) in families)


def occupied(addresses: Iterable[str], state: NetworkState) -> tuple[str, str]:
    """A Service address that a device has, and the device; ("", "") when there is none.

    Such a device is that of IPVS, which takes packets for its addresses, or of another node-local server.
    """
    service_addresses = set(addresses)
    for entry in state.addresses:
        address = entry.cidr.partition("/")[0]
        if address in service_addresses:
            return address, entry.link
    return "", ""
