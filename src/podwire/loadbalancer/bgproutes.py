"""Which addresses a node announces to which routers (pure).

A node announces the address of a Service with an endpoint that serves anywhere; with ``externalTrafficPolicy: Local``
only if such an endpoint is on the node. Prefixes of one length are announced once, with the communities of all
advertisements that ask for them. Advertisements that ask for one prefix with different local preferences contradict
each other: the prefix is not announced, as in MetalLB.

A session carries the family of its addresses, and with ``dualStackAddressFamily`` the other one too, where the node has
an address of it, which is the next hop. Cost: one rule and one route for each prefix.
"""

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network

import msgspec

from podwire.bgp.configuration import Community, RouteRule, ServiceRoutes
from podwire.loadbalancer.bgppeers import BgpScope, RouterPeer
from podwire.loadbalancer.election import Serving, addresses_of, can_announce
from podwire.loadbalancer.pools import BalancerPools
from podwire.loadbalancer.ranges import Address, parse_address
from podwire.model.node import Node
from podwire.model.service import Service

Network = IPv4Network | IPv6Network


class BgpFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the routes depend on."""

    services: Mapping[str, Service]
    endpoints: Mapping[str, Serving]
    pools: BalancerPools
    scopes: Mapping[str, BgpScope]
    peers: Mapping[str, RouterPeer]


class BgpAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """One prefix that a node announces, and to which peers."""

    network: Network
    services: tuple[str, ...]
    local_pref: int = 0
    communities: tuple[Community, ...] = ()
    peers: tuple[str, ...] = ()


class BalancedRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """The routes of one node: for the engine, for people, and the contradictions by Service."""

    routes: ServiceRoutes = ServiceRoutes()
    announcements: tuple[BgpAnnouncement, ...] = ()
    problems: Mapping[str, str] = {}


def plan_routes(facts: BgpFacts, node: Node) -> BalancedRoutes:
    """The routes of a node."""
    peers = {name: peer for name, peer in facts.peers.items() if peer.has_node(node)}
    if not peers or not can_announce(node):
        return BalancedRoutes()
    wishes = _wishes(facts, node, peers)
    announcements: list[BgpAnnouncement] = []
    problems: dict[str, str] = {}
    rules: dict[str, list[RouteRule]] = {name: [] for name in peers}
    for (network, name), scopes in sorted(wishes.items(), key=lambda item: (str(item[0][0]), item[0][1])):
        services = tuple(sorted({key for _, key in scopes}))
        preferences = {scope.local_pref for scope, _ in scopes}
        if len(preferences) > 1:
            values = " and ".join(map(str, sorted(preferences)))
            text = f"{network} is not announced to BGPPeer {name}: advertisements ask for localPref {values}"
            problems |= dict.fromkeys(services, text)
            continue
        communities = tuple(sorted({number for scope, _ in scopes for number in scope.communities}))
        preference = preferences.pop()
        rules[name].append(
            RouteRule(
                version=4 if network.version == 4 else 6,
                accept=True,
                network=network,
                operator="equal",
                added=communities,
                local_pref=preference,
            )
        )
        announcements.append(
            BgpAnnouncement(
                network=network, services=services, local_pref=preference, communities=communities, peers=(name,)
            )
        )
    networks = tuple(dict.fromkeys(entry.network for entry in announcements))
    own = _own(node)
    planned = (peer.session(own, rules[name]) for name, peer in sorted(peers.items()))
    sessions = tuple(session for session in planned if session is not None)
    return BalancedRoutes(
        routes=ServiceRoutes(networks=networks, sessions=sessions),
        announcements=tuple(announcements),
        problems=problems,
    )


def _own(node: Node) -> dict[int, Address]:
    """The first address of a node in each family, by IP version."""
    own: dict[int, Address] = {}
    for text in node.internal_ips:
        address = parse_address(text)
        if address is not None:
            own.setdefault(address.version, address)
    return own


def _wishes(
    facts: BgpFacts, node: Node, peers: Mapping[str, RouterPeer]
) -> dict[tuple[Network, str], list[tuple[BgpScope, str]]]:
    """By prefix and peer, the advertisements that ask for it, each with a Service."""
    scopes = [scope for scope in facts.scopes.values() if scope.has_node(node)]
    own = _own(node)
    carried = {
        name: peer.families if peer.interface else peer.families & own.keys()
        for name, peer in peers.items()
        if peer.interface or peer.address.version in own
    }
    wishes: dict[tuple[Network, str], list[tuple[BgpScope, str]]] = {}
    for key, service in facts.services.items():
        if not _serves(service, facts.endpoints.get(key, Serving()), node.metadata.name):
            continue
        for address in addresses_of(service):
            for scope, network in _prefixes(facts, scopes, service, address):
                for name, families in carried.items():
                    if (not scope.peers or name in scope.peers) and address.version in families:
                        wishes.setdefault((network, name), []).append((scope, key))
    return wishes


def _serves(service: Service, serving: Serving, node: str) -> bool:
    if service.spec.external_traffic_policy == "Local":
        return node in serving.nodes
    return serving.anywhere


def _prefixes(
    facts: BgpFacts, scopes: Iterable[BgpScope], service: Service, address: Address
) -> Iterable[tuple[BgpScope, Network]]:
    pool = facts.pools.of(address)
    for scope in scopes:
        if pool is not None and scope.has_pool(pool) and scope.has_service(service):
            yield scope, ip_network((address, scope.lengths[address.version]), strict=False)
