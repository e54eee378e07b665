"""Second interfaces of pods in the network of the nodes: what the backends with such interfaces share (pure).

A connection must not use the leg in one direction and a translating node in the other. So a table masquerades
connections that the node translates between its own pods and pods with legs elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import collapse_addresses

from podwire.routing.networks import Network
from podwire.routing.nodes import Address, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath, follow_plain_route
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_rules import Rule
from podwire.state.nft_text import parse_rule
from podwire.state.route import Route

DEVICE = "lan0"
"""The leg in the pod's namespace, as ``podwire.cni.wiring`` names it."""
ANNOUNCEMENT = {"legs": True}
"""What a node whose pods have legs announces below the name of the backend."""
_FAMILY = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}
_PRIORITY_SRCNAT = 100


def has_legs(peer: Peer | LocalNode, backend: str) -> bool:
    """Whether a node has announced that its pods have legs of a backend."""
    announced = peer.facts.details.get(backend) if peer.facts is not None else None
    return isinstance(announced, Mapping) and announced.get("legs") is True


def leg_path(me: LocalNode, peer: Peer, address: Address, state: PathState, leg: tuple[str, str]) -> PeerPath:
    """The path of a pod's packet: by its leg to a node whose pods have legs too, else by the plain route of the node.

    ``leg`` is the backend and the lower device of legs.
    """
    backend, uplink = leg
    cidr = next((str(cidr) for cidr in peer.pod_cidrs if address in cidr), "")
    if not (cidr and has_legs(me, backend) and has_legs(peer, backend)):
        return follow_plain_route(state.network, peer, address)
    route, lower = Route(dst=cidr, link=DEVICE), state.network.link(uplink)
    if lower is None or not lower.up:
        problem = f"device {uplink} is down" if lower is not None else f"no device {uplink}"
        return PeerPath(route=route, missing=(f"{problem}, which carries the legs of pods",))
    return PeerPath(route=route, mtu=lower.mtu)


def legged_networks(peers: Iterable[Peer], backend: str) -> list[Network]:
    """The pod CIDRs of the peers whose pods have legs of a backend."""
    return [cidr for peer in peers if has_legs(peer, backend) for cidr in peer.pod_cidrs]


def leg_table(name: str, own: Sequence[Network], far: Sequence[Network]) -> Table:
    """The table that keeps both directions of a translated connection on the way through the nodes."""
    sets: list[Set] = []
    rules: list[Rule] = []
    for version in sorted({network.version for network in own}):
        word, kind = _FAMILY[version]
        near_set = _set(f"own{version}", kind, own, "pod CIDRs of this node")
        far_set = _set(f"legs{version}", kind, far, "pod CIDRs of nodes whose pods have legs")
        sets += [near_set, far_set]
        for source, target in ((near_set, far_set), (far_set, near_set)):
            ends = f"{word} saddr @{source.name} {word} daddr @{target.name}"
            rules.append(parse_rule(f'ct status dnat {ends} masquerade fully-random comment "answers pass this node"'))
    chain = Chain(name="postrouting", type="nat", hook="postrouting", priority=_PRIORITY_SRCNAT, rules=tuple(rules))
    return Table(family="inet", name=name, comment="podwire routing", chains=(chain,), sets=tuple(sets))


def _set(name: str, kind: str, networks: Iterable[Network], comment: str) -> Set:
    version = 6 if kind == "ipv6_addr" else 4
    empty = Set(name=name, key=(kind,), flags=("interval",), comment=comment)
    merged: Iterable[Network] = collapse_addresses(n for n in networks if n.version == version)  # type: ignore[type-var]
    return empty.with_elements(empty.element(str(network)) for network in merged)
