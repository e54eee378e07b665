"""The nftables tables of routing: masquerade, and a guard for the outer packets of a backend.

``podwire-masquerade`` is one of the two forms of masquerade (:mod:`podwire.routing.masquerade`).

A guard accepts the packets of a backend only from nodes, and forwards them to nodes only from nodes. They are checked
once, behind the translation of Services, which may turn another packet into such a one. The packets bypass connection
tracking (one flow per pair of nodes, at the rate of all pods). Where the kernel has the hook ``ingress``, the rule for
received packets is at the node's device: in ``prerouting``, the packets of pods would pass it, too, on both nodes.
Outer packets that come by another device are tracked then, and pass all the same.

Cost: four rules and one set element per node. An outer packet passes two of the rules and looks up one address on each
of both nodes; a packet of a pod passes the rule in ``forward`` (30 ns, measured on Linux 6.18).
"""

from collections.abc import Sequence

from podwire.routing.clustersets import sets_of
from podwire.routing.masquerade import INTO_TUNNEL, MASQUERADE_TABLE, OUT_OF_CLUSTER, MasqueradeScope
from podwire.routing.networks import ClusterSets, MergedNetworks
from podwire.routing.nodes import Address, ClusterView, LocalNode
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_rules import Field, LiteralValue, Masked, Masquerade, Match, Notrack, Rule, SetRef, Verdict

MASQUERADE = MASQUERADE_TABLE
FAMILY = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}
INGRESS = "nftables-ingress"
"""The kernel feature; a backend that guards a port names it in ``features``."""
_PRIORITY_RAW, _PRIORITY_SRCNAT = -300, 100
_WHOLE = Match(Masked(Field("ip frag-off"), "&", LiteralValue("16383")), LiteralValue("0"))
"""A packet that is no fragment: neither the bit for more fragments nor an offset (RFC 791)."""


def masquerade_table(scopes: Sequence[MasqueradeScope]) -> Table:
    """The nftables form of masquerade."""
    sets: list[Set] = []
    rules: list[Rule] = []
    for scope in scopes:
        word, kind = FAMILY[scope.version]
        pod_set = networks_set(f"pods{scope.version}", kind, scope.pods, "pod networks of the cluster")
        unchanged = networks_set(
            f"kept{scope.version}", kind, scope.unmasqueraded, "destinations that see a pod's own address"
        )
        sets += [pod_set, unchanged]
        source, destination = Field(f"{word} saddr"), Field(f"{word} daddr")
        for tunnel in scope.tunnels:
            leaving = Match(Field("oifname"), LiteralValue(f'"{tunnel}"'))
            foreign = Match(source, SetRef(pod_set.name), "!=")
            rules.append(Rule((leaving, foreign, Masquerade(("fully-random",))), INTO_TUNNEL))
        rules.append(
            Rule(
                (
                    Match(source, SetRef(pod_set.name)),
                    Match(destination, SetRef(unchanged.name), "!="),
                    Masquerade(("fully-random",)),
                ),
                OUT_OF_CLUSTER,
            )
        )
    chain = Chain(name="postrouting", type="nat", hook="postrouting", priority=_PRIORITY_SRCNAT, rules=tuple(rules))
    return Table(family="inet", name=MASQUERADE, comment="podwire routing", chains=(chain,), sets=tuple(sets))


def guard_udp_port(
    name: str, port: int, me: LocalNode, cluster: ClusterView, *, version: int = 0, ingress: bool = True
) -> Table:
    """The guard of the UDP port at which nodes unpack the packets of a backend, as the table ``name``.

    ``version`` is that of outer packets; 0: that of the node's first address. Without ``ingress``, the table has the
    chain ``prerouting`` on every kernel.
    """
    own = _outer_address(me, version)
    device = me.underlay.link if ingress and INGRESS in me.features and own.version == 4 else ""
    outer = Match(Field("udp dport"), LiteralValue(str(port)))
    return _guard(name, (outer,), own, sets_of(me, cluster), device)


def guard_protocols(name: str, protocols: Sequence[int], me: LocalNode, cluster: ClusterView) -> Table:
    """The guard of IP protocols whose packets nodes unpack (4 is IPv4 in IP, 41 IPv6 in IP), as the table ``name``."""
    outer = tuple(Match(Field("meta l4proto"), LiteralValue(str(protocol))) for protocol in protocols)
    return _guard(name, outer, me.addresses[0], sets_of(me, cluster))


def _outer_address(me: LocalNode, version: int) -> Address:
    """The node's address for outer packets of an IP version; 0: the first."""
    return me.addresses[0] if not version else me.address(version) or me.addresses[0]


def _guard(name: str, outers: Sequence[Match], own: Address, sets: ClusterSets, device: str = "") -> Table:
    """The guard of a node to which peers send outer packets at ``own``; ``device``: that of the chain ``ingress``."""
    word, kind = FAMILY[own.version]
    nodes = networks_set("nodes", kind, sets.nodes[own.version], "addresses of nodes")
    source, destination = Field(f"{word} saddr"), Field(f"{word} daddr")
    to_node = Match(destination, LiteralValue(str(own)))
    foreign = Match(source, SetRef("nodes"), "!=")
    whole = (_WHOLE,) if device else ()
    chains = (
        Chain(
            name="ingress" if device else "prerouting",
            type="filter",
            hook="ingress" if device else "prerouting",
            device=device,
            priority=0 if device else _PRIORITY_RAW,
            rules=tuple(Rule((*whole, outer, to_node, Notrack()), "outer packets") for outer in outers),
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
            name="input",
            type="filter",
            hook="input",
            rules=tuple(Rule((outer, foreign, Verdict("drop")), "not from a node") for outer in outers),
        ),
        Chain(
            name="forward",
            type="filter",
            hook="forward",
            rules=tuple(
                Rule((outer, Match(destination, SetRef("nodes")), foreign, Verdict("drop")), "not from a node")
                for outer in outers
            ),
        ),
    )
    return Table(family="inet", name=name, comment="podwire routing", chains=chains, sets=(nodes,))


def networks_set(name: str, kind: str, networks: MergedNetworks, comment: str) -> Set:
    """A set of networks."""
    return Set(name=name, key=(kind,), flags=("interval",), comment=comment, elements=networks.elements)
