"""The nftables tables of routing: masquerade, and a guard for the outer packets of a backend.

``podwire-masquerade``: packets of pods that leave the cluster get the node's address. Not changed are packets to pods,
to nodes of the same subnet (they answer a pod directly; behind a router a pod's address would have no route back), to
multicast and link-local destinations, and packets that do not come from a pod. The node's own packets into a tunnel get
the tunnel's address when peers would not answer their source through the tunnel.

A guard accepts the packets of a backend only from nodes and does not forward them from pods to nodes. The packets
bypass connection tracking (one flow per pair of nodes, at the rate of all pods).

Cost: four rules and one set element per node or merged pod network.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import collapse_addresses, ip_network

from podwire.routing.nodes import Address, ClusterView, LocalNode, Network, Peer
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_rules import Field, LiteralValue, Masquerade, Match, Notrack, Rule, SetRef, Verdict

MASQUERADE = "podwire-masquerade"
_FAMILY = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}
_NEVER = {
    4: (ip_network("224.0.0.0/4"), ip_network("169.254.0.0/16"), ip_network("127.0.0.0/8")),
    6: (ip_network("ff00::/8"), ip_network("fe80::/10"), ip_network("::1/128")),
}
_PRIORITY_RAW, _PRIORITY_SRCNAT = -300, 100


def masquerade(me: LocalNode, cluster: ClusterView, tunnels: Sequence[str] = ()) -> Table:
    """The masquerade table; ``tunnels`` are the tunnel devices in use."""
    networks = cluster.pod_networks
    sets: list[Set] = []
    rules: list[Rule] = []
    for version in sorted({network.version for network in networks}):
        word, kind = _FAMILY[version]
        pod_networks = [network for network in networks if network.version == version]
        near = _single(a for a in (*me.addresses, *_near(me, cluster.peers)) if a.version == version)
        pod_set = _networks(f"pods{version}", kind, pod_networks, "pod networks of the cluster")
        unchanged = _networks(
            f"kept{version}",
            kind,
            [*pod_networks, *near, *_NEVER[version]],
            "destinations that see a pod's own address",
        )
        sets += [pod_set, unchanged]
        source, destination = Field(f"{word} saddr"), Field(f"{word} daddr")
        for tunnel in tunnels:
            leaving = Match(Field("oifname"), LiteralValue(f'"{tunnel}"'))
            foreign = Match(source, SetRef(pod_set.name), "!=")
            rules.append(Rule((leaving, foreign, Masquerade(("fully-random",))), "the node into the tunnel"))
        rules.append(
            Rule(
                (
                    Match(source, SetRef(pod_set.name)),
                    Match(destination, SetRef(unchanged.name), "!="),
                    Masquerade(("fully-random",)),
                ),
                "pods out of the cluster",
            )
        )
    chain = Chain(name="postrouting", type="nat", hook="postrouting", priority=_PRIORITY_SRCNAT, rules=tuple(rules))
    return Table(family="inet", name=MASQUERADE, comment="podwire routing", chains=(chain,), sets=tuple(sets))


def guard_udp_port(name: str, port: int, me: LocalNode, cluster: ClusterView) -> Table:
    """The guard of the UDP port at which nodes unpack the packets of a backend, as the table ``name``."""
    return _guard(name, (Match(Field("udp dport"), LiteralValue(str(port))),), me, cluster)


def guard_protocols(name: str, protocols: Sequence[int], me: LocalNode, cluster: ClusterView) -> Table:
    """The guard of IP protocols whose packets nodes unpack (4 is IPv4 in IP, 41 IPv6 in IP), as the table ``name``."""
    outer = tuple(Match(Field("meta l4proto"), LiteralValue(str(protocol))) for protocol in protocols)
    return _guard(name, outer, me, cluster)


def _guard(name: str, outers: Sequence[Match], me: LocalNode, cluster: ClusterView) -> Table:
    version = me.addresses[0].version
    word, kind = _FAMILY[version]
    members = _single(
        a for a in (*me.addresses, *(a for p in cluster.peers for a in p.addresses)) if a.version == version
    )
    pod_networks = [network for network in cluster.pod_networks if network.version == version]
    nodes = _networks("nodes", kind, members, "addresses of nodes")
    pod_set = _networks("pods", kind, pod_networks, "pod networks of the cluster")
    source, destination = Field(f"{word} saddr"), Field(f"{word} daddr")
    local = Match(Field("fib daddr type"), LiteralValue("local"))
    chains = (
        Chain(
            name="prerouting",
            type="filter",
            hook="prerouting",
            priority=_PRIORITY_RAW,
            rules=tuple(
                rule
                for outer in outers
                for rule in (
                    Rule((outer, local, Match(source, SetRef("nodes"), "!="), Verdict("drop")), "not from a node"),
                    Rule((outer, local, Notrack()), "outer packets"),
                )
            ),
        ),
        Chain(
            name="output",
            type="filter",
            hook="output",
            priority=_PRIORITY_RAW,
            rules=tuple(
                Rule((outer, Match(destination, SetRef("nodes")), Notrack()), "outer packets") for outer in outers
            ),
        ),
        Chain(
            name="forward",
            type="filter",
            hook="forward",
            rules=tuple(
                Rule(
                    (outer, Match(source, SetRef("pods")), Match(destination, SetRef("nodes")), Verdict("drop")),
                    "not from a pod",
                )
                for outer in outers
            ),
        ),
    )
    return Table(family="inet", name=name, comment="podwire routing", chains=chains, sets=(nodes, pod_set))


def _near(me: LocalNode, peers: Sequence[Peer]) -> Iterable[Address]:
    return (a for peer in peers for a in peer.addresses if me.underlay.reaches(a))


def _single(addresses: Iterable[Address]) -> list[Network]:
    return list(map(_host, addresses))


@lru_cache(maxsize=4096)
def _host(address: Address) -> Network:
    """The network of one address, cached: each change of a node needs those of all nodes."""
    return ip_network(address)


def _networks(name: str, kind: str, networks: Iterable[Network], comment: str) -> Set:
    empty = Set(name=name, key=(kind,), flags=("interval",), comment=comment)
    merged: Iterable[Network] = collapse_addresses(networks)  # type: ignore[type-var]
    return empty.with_elements(empty.element(str(network)) for network in merged)
