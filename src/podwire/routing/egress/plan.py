"""The kernel state of EgressPolicies on one node, added to the plan of routing (pure).

The node of a pod marks the pod's packets to the outside, after Services have translated their destination, and a rule
with a table of its own for each mark leads them to the node that has the egress address, through the backend's device
or route to that node. There the source becomes the egress address. Answers come to that address, are translated back
and take the usual route to the pod.

A packet leaves with the egress address or not at all. Every node knows all pods of all policies: a node that gets
packets of another node's pods without having the address drops them, so nodes that disagree for a moment leak nothing.
A mark without a way is ``unreachable``. On the node with the address, packets that were not
translated are dropped; on the pod's node those that an earlier connection translates to the node's own address.

The egress address is no address of the node's services: on the node itself it answers no TCP, UDP or SCTP. So a packet
of a connection that another node translated before is dropped instead of refused, and the connection continues as soon
as the pod sends: the source port stays the same where it is free.

A pod reaches nothing outside until its own node, and the node with the address, know from the API that it is there.

    chain      hook                      rules, the first policy that matches decides
    route      prerouting, after dnat    answers pass; to the node itself, to a mark, or drop with the reason
    translate  postrouting, before srcnat  snat to the egress address
    guard      postrouting, after srcnat drop what is not translated here, or was translated before
    input      input                     only known connections of TCP, UDP and SCTP to an egress address

Cost: a set element for each selected pod on every node; for each policy two rules on the way of packets of pods; a rule
and a route for each node with an address. Marks are numbers from 1 to 63, so at most 63 nodes have addresses.
"""

import zlib
from collections.abc import Iterable, Mapping
from ipaddress import ip_network

from msgspec.structs import replace

from podwire.routing.backend import Backend
from podwire.routing.clustersets import NEVER
from podwire.routing.egress.holder import EgressAssignment
from podwire.routing.masquerade import passing_marked
from podwire.routing.networks import Network, NetworkUnion
from podwire.routing.nodes import LocalNode, Peer
from podwire.routing.plan import Plan
from podwire.routing.tables import FAMILY, networks_set
from podwire.state.network import NetworkState, merge
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_rules import Rule
from podwire.state.nft_text import parse_rule
from podwire.state.route import Address, FibRule

TABLE = "podwire-egress"
MARKS = 0x3F
"""The bits of packet marks that name a node; kube-proxy, Calico, Cilium, Tailscale and the AWS plugin use others."""
_PRIORITY = 1130
_FIB_TABLE = 11300
_COMMENT = 120  # nft takes comments of up to 127 bytes


def with_egress(
    base: Plan,
    me: LocalNode,
    peers: Iterable[Peer],
    assignments: tuple[EgressAssignment, ...],
    backends: Mapping[str, Backend],
    known: Iterable[str] = (),
) -> Plan:
    """The plan with the state of EgressPolicies; ``base`` itself when there are none.

    ``known`` are the addresses of this node's pods of which it is known whether a policy selects them.
    """
    if not assignments:
        return base
    by_name = {peer.name: peer for peer in peers}
    led = {route.dst for route in base.state.routes if route.kind == "unicast" and route.link}
    carrying = {
        name
        for name, peer in by_name.items()
        if (sender := base.senders.get(name, ""))
        and backends[sender].options.routes_outside
        and any(str(cidr) in led for cidr in peer.pod_cidrs)
    }
    senders = {assignment.node for assignment in assignments if assignment.node and assignment.node != me.name}
    marks = marks_of(senders & carrying)
    writer = _Writer(me, base, marks)
    table = writer.table(assignments, known)
    segments = (_way(base, by_name[name], mark) for name, mark in marks.items())
    state = merge([base.state, *segments, _nowhere(me), _held(me, assignments)])
    values = (*(passing_marked(value, MARKS) for value in base.values), table)
    return replace(base, state=state, values=values)


def marks_of(nodes: Iterable[str]) -> dict[str, int]:
    """A mark for each node, the same on every agent start; nodes beyond the last mark have none."""
    marks: dict[str, int] = {}
    free = set(range(1, MARKS + 1))
    for name in sorted(nodes):
        if not free:
            break
        start = zlib.crc32(name.encode()) % MARKS
        mark = next(number for step in range(MARKS) if (number := (start + step) % MARKS + 1) in free)
        free.discard(mark)
        marks[name] = mark
    return marks


def held_addresses(me: str, assignments: Iterable[EgressAssignment]) -> tuple[str, ...]:
    """The egress addresses that a node has."""
    return tuple(
        str(address) for assignment in assignments if assignment.node == me for address in assignment.addresses
    )


def _way(base: Plan, peer: Peer, mark: int) -> NetworkState:
    """The rules and the table that lead marked packets to a peer, by its routes to the peer's pods."""
    table = _FIB_TABLE + mark
    rules, routes = [], []
    for cidr in peer.pod_cidrs:
        default, six = ("::/0", True) if cidr.version == 6 else ("default", False)
        unicast_route = next(
            (r for r in base.state.routes if r.dst == str(cidr) and r.kind == "unicast" and r.link), None
        )
        if unicast_route is not None:
            routes.append(replace(unicast_route, dst=default, table=table, src="", metric=0))
        rules.append(FibRule(priority=_PRIORITY, mark=mark, mask=MARKS, table=table, v6=six))
    return NetworkState(rules=tuple(rules), routes=tuple(routes))


def _nowhere(me: LocalNode) -> NetworkState:
    """Rules that refuse packets with a mark whose own rule is not there, one for each bit.

    Rules and the table of nftables cannot change in one step.
    """
    bits = [1 << bit for bit in range(MARKS.bit_length())]
    return NetworkState(
        rules=tuple(
            FibRule(priority=_PRIORITY + 1, mark=bit, mask=bit, kind="unreachable", v6=version == 6)
            for version in sorted({cidr.version for cidr in me.pod_cidrs})
            for bit in bits
        )
    )


def _held(me: LocalNode, assignments: Iterable[EgressAssignment]) -> NetworkState:
    link = me.underlay.link
    return NetworkState(
        addresses=tuple(
            Address(link=link, cidr=f"{text}/{128 if ':' in text else 32}", deprecated=":" in text)
            for text in held_addresses(me.name, assignments)
        )
    )


class _Writer:
    """Writes the table of one node."""

    def __init__(self, me: LocalNode, base: Plan, marks: Mapping[str, int]) -> None:
        self._me = me
        self._base = base
        self._marks = marks
        self._versions = sorted({cidr.version for cidr in me.pod_cidrs})
        self._sets: list[Set] = []
        self._rules: dict[str, list[Rule]] = {"route": [], "translate": [], "guard": [], "input": []}

    def table(self, assignments: Iterable[EgressAssignment], known: Iterable[str]) -> Table:
        """The table for the assignments, in their order."""
        self._add("route", "ct direction reply accept")
        for version in self._versions:
            networks = (*self._base.inside, *NEVER[version])
            self._set(version, f"cluster{version}", networks, "destinations inside the cluster")
            self._set(version, f"own{version}", self._me.pod_cidrs, "pods of this node")
        self._add("input", "ct state established,related accept")
        for assignment in assignments:
            for version in self._versions:
                self._policy(assignment, version)
        self._refuse_unknown(single_texts(known))
        self._add(
            "guard", f"meta mark & 0x{MARKS:08x} != 0x00000000 counter drop", "translated before the EgressPolicy"
        )
        return Table(
            family="inet",
            name=TABLE,
            comment="podwire routing",
            sets=tuple(self._sets),
            chains=(
                self._chain("route", "filter", "prerouting", -90),
                self._chain("translate", "nat", "postrouting", 90),
                self._chain("guard", "filter", "postrouting", 150),
                self._chain("input", "filter", "input", 0),
            ),
        )

    def _refuse_unknown(self, known: Iterable[Network]) -> None:
        """The rules for pods that are not known here yet: own ones, and those of nodes that know more."""
        pods = list(known)
        for version in self._versions:
            word = FAMILY[version][0]
            self._set(version, f"pods{version}", self._base.sets.pod_networks, "pod networks of the cluster")
            self._set(version, f"known{version}", pods, "own pods that are known")
            text = f"{word} saddr @pods{version} {word} saddr != @known{version} {word} daddr != @cluster{version}"
            self._add("route", f"{text} fib daddr type != local counter drop", "the API does not show the pod yet")

    def _chain(self, name: str, kind: str, hook: str, priority: int) -> Chain:
        return Chain(name=name, type=kind, hook=hook, priority=priority, rules=tuple(self._rules[name]))

    def _add(self, chain: str, text: str, comment: str = "") -> None:
        self._rules[chain].append(replace(parse_rule(text), comment=comment[:_COMMENT]))

    def _set(self, version: int, name: str, networks: Iterable[Network], comment: str) -> None:
        """A set of those networks that are of one family."""
        union = NetworkUnion(version, (network for network in networks if network.version == version))
        self._sets.append(networks_set(name, FAMILY[version][1], union.merged, comment))

    def _policy(self, assignment: EgressAssignment, version: int) -> None:
        """The rules of one policy in one family."""
        policy, here = f"EgressPolicy {assignment.name}", assignment.node == self._me.name
        match, address, mark = (
            self._match(assignment, version),
            assignment.address(version),
            self._marks.get(assignment.node),
        )
        if address is None:
            self._add("route", f"{match} counter drop", f"{policy}: it has no IPv{version} address")
        elif here:
            word = FAMILY[version][0]
            self._add("route", f"{match} accept", f"{policy}: this node has {address}")
            self._add("translate", f"{match} snat to {address}", policy)
            self._add("guard", f"{match} counter drop", f"{policy}: not translated")
            text = f"{word} daddr {address} meta l4proto {{ tcp, udp, sctp }} drop"
            self._add("input", text, f"{policy}: no service of the node")
        elif mark is None:
            self._add("route", f"{match} counter drop", f"{policy}: {assignment.problem or self._refusal(assignment)}")
        else:
            own = f"{FAMILY[version][0]} saddr != @own{version}"
            self._add(
                "route", f"{match} {own} counter drop", f"{policy}: {assignment.node} has the address, not this node"
            )
            self._add("route", f"{match} meta mark set 0x{mark:08x} accept", f"{policy}: through {assignment.node}")
            clear = "meta mark set 0x00000000"  # A tunnel would look up its outer packets with the mark, too.
            self._add("guard", f"meta mark & 0x{MARKS:08x} == 0x{mark:08x} {match} {clear} accept", policy)

    def _refusal(self, assignment: EgressAssignment) -> str:
        sender = self._base.senders.get(assignment.node)
        return f"backend {sender} leads to pods alone" if sender else f"no way to {assignment.node}"

    def _match(self, assignment: EgressAssignment, version: int) -> str:
        """The packets of the policy's pods to the policy's destinations."""
        word, name = FAMILY[version][0], set_name(assignment.name)
        self._set(
            version,
            f"pods{version}-{name}",
            single_texts(assignment.pods),
            f"pods of EgressPolicy {assignment.name}"[:_COMMENT],
        )
        text = f"{word} saddr @pods{version}-{name} {word} daddr != @cluster{version}"
        for kind, networks, operator in (("to", assignment.destinations, ""), ("except", assignment.excluded, "!= ")):
            if networks:
                self._set(
                    version, f"{kind}{version}-{name}", networks, f"{kind} of EgressPolicy {assignment.name}"[:_COMMENT]
                )
                text += f" {word} daddr {operator}@{kind}{version}-{name}"
        return text


def single_texts(addresses: Iterable[str]) -> list[Network]:
    """The networks of single addresses, from their texts."""
    return [ip_network(address) for address in addresses]


def set_name(policy: str) -> str:
    """The policy's name inside names of sets; long names are cut and distinguished by a hash."""
    return policy if len(policy) <= 200 else f"{policy[:190]}-{zlib.crc32(policy.encode()):08x}"
