"""Which backend carries packets to which peer, and the whole kernel state that follows.

A cluster changes its backend node by node, and both directions must work at every moment of it. So a node sends
with the backend that it is configured for only to peers that can receive it, and with another one to the rest;
and it stays able to receive whatever a peer still announces to send with. The route to a pod CIDR has one key in
all backends: a switch replaces it in place and no packet finds it missing. Old devices go with the first plan in
which nobody needs them. Cost: linear in the number of peers.
"""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import collapse_addresses

import msgspec

from podwire.routing.backend import Backend, Options
from podwire.routing.nodes import Facts, Me, Network, Peer
from podwire.state.network import NetworkState, merge
from podwire.state.route import Route, Sysctl

POD_MTU_MINIMUM = 1280
"""The least that IPv6 works with (RFC 8200 section 5)."""


class Problem(msgspec.Struct, frozen=True, gc=False, order=True):
    """A peer that cannot be reached, and why."""

    peer: str
    reason: str

    def __str__(self) -> str:
        return f"{self.peer}: {self.reason}"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one node's kernel should hold for routing, and what follows from it.

    ``facts`` is what to announce once it is applied, ``senders`` tells the backend used for each peer.
    """

    state: NetworkState
    facts: Facts
    pod_mtu: int
    senders: dict[str, str]
    problems: tuple[Problem, ...] = ()


def plan(me: Me, peers: Iterable[Peer], options: Options, backends: Mapping[str, Backend]) -> Plan:
    """The plan of this node for all peers, in the order of their names.

    ``backends`` are all of the registry, by name.
    """
    ordered = sorted(peers, key=lambda peer: peer.name)
    assigned: dict[str, list[Peer]] = {name: [] for name in backends}
    problems: list[Problem] = []
    for peer in ordered:
        if not peer.pod_cidrs or not peer.addresses:
            continue
        name, reason = choose(me, peer, options, backends)
        if reason:
            problems.append(Problem(peer.name, reason))
        else:
            assigned[name].append(peer)
    receiving = _receiving(ordered, options.backend) & set(backends)
    states = [_common(me)]
    for name, backend in backends.items():
        if assigned[name] or name in receiving:
            states.append(backend.plan(me, assigned[name]))
    used = {name for name in backends if assigned[name]} | receiving
    return Plan(
        state=merge(states),
        facts=Facts(
            backend=options.backend,
            receives=tuple(sorted(used | {"hostgw"})),
            mac=backends["vxlan"].announce(me) if "vxlan" in used else "",
        ),
        pod_mtu=_pod_mtu(me, options, backends),
        senders={peer.name: name for name, some in assigned.items() for peer in some},
        problems=tuple(problems),
    )


def choose(me: Me, peer: Peer, options: Options, backends: Mapping[str, Backend]) -> tuple[str, str]:
    """The backend to send to a peer with, and an empty reason; or why it cannot be reached at all.

    The configured backend comes first (``hostgw`` before it for a neighbour, when direct routing is asked for);
    the others only where the peer announces that it has not followed the configuration yet.
    """
    order = [options.backend]
    if options.direct_routing:
        order.insert(0, "hostgw")
    if peer.facts is not None and peer.facts.backend != options.backend:
        order += [name for name in peer.facts.receives if name in backends]
    refusals: dict[str, str] = {}
    for name in order:
        refusals[name] = backends[name].reaches(me, peer)
        if not refusals[name]:
            return name, ""
    return "", refusals[options.backend]


def cluster_networks(me: Me, peers: Iterable[Peer], cidrs: Iterable[Network]) -> tuple[Network, ...]:
    """All pod networks of the cluster, merged: those of the nodes and those configured, IPv4 first."""
    known = [*cidrs, *me.pod_cidrs, *(cidr for peer in peers for cidr in peer.pod_cidrs)]
    v4 = collapse_addresses(n for n in known if n.version == 4)
    v6 = collapse_addresses(n for n in known if n.version == 6)
    return (*v4, *v6)


def _receiving(peers: Sequence[Peer], configured: str) -> set[str]:
    return {configured} | {peer.facts.backend for peer in peers if peer.facts is not None}


def _common(me: Me) -> NetworkState:
    routes = tuple(Route(dst=str(cidr), kind="unreachable", metric=4096) for cidr in me.pod_cidrs)
    families = {cidr.version for cidr in me.pod_cidrs}
    sysctls = []
    if 4 in families:
        sysctls.append(Sysctl(path="net/ipv4/ip_forward", value="1"))
        sysctls.append(Sysctl(path=f"net/ipv4/conf/{me.underlay.link}/rp_filter", value="2"))
    if 6 in families:
        sysctls.append(Sysctl(path="net/ipv6/conf/all/forwarding", value="1"))
    return NetworkState(routes=routes, sysctls=tuple(sysctls))


def _pod_mtu(me: Me, options: Options, backends: Mapping[str, Backend]) -> int:
    room = me.underlay.mtu - backends[options.backend].overhead(me)
    return max(POD_MTU_MINIMUM, min(room, options.mtu or room))
