"""Masquerade: which packets get the node's address, and the rules of iptables that give it to them.

Packets of pods that leave the cluster get the node's address. Not changed are packets to pods, to nodes of the same
subnet (they answer a pod directly; behind a router a pod's address would have no route back), to multicast, broadcast
and link-local destinations, to the configured networks (``routing.nonMasqueradeCIDRs``), and packets that do not come
from a pod. The node's own packets into a tunnel get the tunnel's address when peers would not answer their source
through the tunnel. A packet that the rules of Services mark has one translation too: once a packet of a connection is
translated, the kernel passes over the other rules of the hook. The source port is random (RFC 6056), so two connections
that begin at the same moment do not try the same port.

There are two forms, chosen by ``routing.masqueradeRules``: ``nftables`` (:mod:`podwire.routing.tables`) and
``iptables``, for nodes whose other rules are those of iptables. Cost: the first packet of a connection passes one rule
and one set in the form nftables; in the form iptables one rule for each pod network and, out of the cluster, one for
each network or node that is not masqueraded. Packets of established connections pass none.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from podwire.routing.networks import ClusterSets, MergedNetworks
from podwire.state.chain_marks import MASQUERADE_CHAIN, MASQUERADE_PODS_CHAIN
from podwire.state.iptables import Rules, Ruleset
from podwire.state.nft import Table
from podwire.state.nft_text import parse_rule
from podwire.state.value import StateValue

MASQUERADE_TABLE = "podwire-masquerade"
INTO_TUNNEL = "the node into the tunnel"
OUT_OF_CLUSTER = "pods out of the cluster"
_FAMILIES = {4: "ip", 6: "ip6"}


class MasqueradeScope(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The networks of one family that decide about masquerade.

    ``pods`` are the sources that are masqueraded, ``unmasqueraded`` the destinations that see a pod's own address, and
    ``tunnels`` the tunnel devices in use.
    """

    version: int
    pods: MergedNetworks
    unmasqueraded: MergedNetworks
    tunnels: tuple[str, ...] = ()


def masquerade_scopes(sets: ClusterSets, tunnels: Sequence[str] = ()) -> tuple[MasqueradeScope, ...]:
    """The scope of each family of the pod networks."""
    return tuple(
        MasqueradeScope(version=version, pods=pods, unmasqueraded=sets.unmasqueraded[version], tunnels=tuple(tunnels))
        for version, pods in sets.pods.items()
        if pods.prefixes
    )


def masquerade_rulesets(scopes: Iterable[MasqueradeScope]) -> tuple[Ruleset, ...]:
    """The iptables form of masquerade: the table ``nat`` of each family."""
    return tuple(
        Ruleset(
            family=_FAMILIES[scope.version],
            table="nat",
            chains={MASQUERADE_CHAIN: tuple(_sources(scope)), MASQUERADE_PODS_CHAIN: _destinations(scope)},
            jumps=(("POSTROUTING", f'-m comment --comment "podwire routing" -j {MASQUERADE_CHAIN}'),),
        )
        for scope in scopes
    )


def passing_marked(value: StateValue, marks: int) -> StateValue:
    """Masquerade that lets packets with a mark in the bits ``marks`` pass; another value unchanged."""
    if isinstance(value, Table) and value.name == MASQUERADE_TABLE:
        chain = value.chains[0]
        passing = parse_rule(f'meta mark & 0x{marks:08x} != 0x00000000 return comment "to an egress node"')
        return replace(value, chains=(replace(chain, rules=(passing, *chain.rules)),))
    if isinstance(value, Ruleset) and MASQUERADE_CHAIN in value.chains:
        rules = (f"-m mark ! --mark 0x0/0x{marks:x} -j RETURN", *value.chains[MASQUERADE_CHAIN])
        return replace(value, chains={**value.chains, MASQUERADE_CHAIN: rules})
    return value


def _sources(scope: MasqueradeScope) -> Iterator[str]:
    yield from (f"-s {network} -g {MASQUERADE_PODS_CHAIN}" for network in scope.pods.networks)
    for tunnel in scope.tunnels:
        yield f'-o {tunnel} -m comment --comment "{INTO_TUNNEL}" -j MASQUERADE --random-fully'


def _destinations(scope: MasqueradeScope) -> Rules:
    returns = (f"-d {network} -j RETURN" for network in scope.unmasqueraded.networks)
    return (*returns, f'-m comment --comment "{OUT_OF_CLUSTER}" -j MASQUERADE --random-fully')
