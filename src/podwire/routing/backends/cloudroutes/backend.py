"""Pod routing by the network of a cloud, whose route tables lead to the nodes of the pods.

The node itself has no route to a peer: packets leave by the default route, without encapsulation, and the router of the
cloud's network knows the peer's pod CIDR. The controller ``cloudroutes`` keeps those routes and says when a node has
them (condition ``NetworkUnavailable``); so agents need no rights in the cloud. Nodes in other subnets see the pods' own
addresses as well, since the router has the way back.

The cloud no longer checks the source of packets at the nodes' interfaces. The guard takes the part of this check that
concerns the node's own pods: a packet that comes from outside with the address of a pod of this node is dropped.

With ``pods: interfaces`` there are no routes to pods at all: pods have addresses of the cloud's network
(:mod:`podwire.routing.backends.cloudroutes.interfaces`).

Cost: nothing per peer on the node; one rule for each packet that arrives.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Any, Literal

import msgspec

from podwire.cluster.cloudinterfaces import read_interfaces
from podwire.routing.backend import BackendOptions, BackendPlan
from podwire.routing.backends.cloudroutes.interfaces import (
    LAYOUTS,
    MARKS_TABLE,
    device_of,
    marks_table,
    plan_interfaces,
    table_of,
)
from podwire.routing.networks import NetworkUnion
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath, follow_route
from podwire.routing.tables import FAMILY, networks_set
from podwire.state.nft import Chain, Table
from podwire.state.nft_rules import Field, LiteralValue, Match, Rule, SetRef, Verdict

GUARD = "podwire-routing-cloud"
_PRIORITY_RAW = -300


class CloudSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """How pods are in the cloud's network.

    ``pods`` is ``routes`` when the cloud has a route to each node's pod CIDRs, or ``interfaces`` when pods have
    addresses of the node's interfaces, in the ``layout`` of policy rules. ``external_nat``: a gateway of the cloud
    gives packets that leave the cloud their public address, so they leave by the pod's own interface.
    """

    pods: Literal["routes", "interfaces"] = "routes"
    layout: Literal["aws", "terway"] = "aws"
    external_nat: bool = msgspec.field(default=False, name="externalNAT")


class CloudOptions(BackendOptions, frozen=True):
    """The section ``routing.cloudroutes``."""

    cloudroutes: CloudSection = CloudSection()


class CloudRoutes:
    """Leaves packets to the cloud's router."""

    name = "cloudroutes"
    feature = ""
    options = CloudOptions
    tables = (GUARD, MARKS_TABLE)
    announced = True
    """So that peers take this backend only for nodes that are configured with it."""
    crosses_routers = True
    udp_ports = ()

    def __init__(self, options: CloudOptions) -> None:
        self._section = options.cloudroutes

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """No facts: peers need none to send to this node."""
        return {}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The guard, the nodes and networks that see the pods' own addresses, and the ways out of interfaces."""
        unmasqueraded = [ip_network(address) for peer in peers for address in peer.addresses]
        interfaces = read_interfaces(me.annotations)
        if self._section.pods == "routes" or interfaces is None:
            return BackendPlan(
                values=(_guard(me),),
                unmasqueraded=tuple(unmasqueraded),
                ready_by_controller=self._section.pods == "routes",
            )
        unmasqueraded += map(ip_network, interfaces.networks)
        external_nat, layout = self._section.external_nat, LAYOUTS[self._section.layout]
        missing = [interface.mac for interface in interfaces.interfaces if not device_of(me, interface)]
        return BackendPlan(
            network=plan_interfaces(me, interfaces, layout, external_nat=external_nat),
            values=(_guard(me), marks_table(me)),
            unmasqueraded=tuple(unmasqueraded),
            degraded=f"no device has the hardware address {', '.join(missing)}" if missing else "",
        )

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Always: the controller reports a route that the cloud lacks."""
        return ""

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route that the node has, usually the default route; of a pod of an interface, that of its table."""
        return follow_route(state.network, peer, address, any_route=True, table=table_of(state, address))

    def overhead(self, me: LocalNode) -> int:
        """0: the node encapsulates no packets."""
        return 0


def _guard(me: LocalNode) -> Table:
    """Drops packets from outside with the address of a pod of this node."""
    outside = Match(Field("iifname"), LiteralValue(f'"{me.underlay.link}"'))
    sets, rules = [], []
    for version in sorted({cidr.version for cidr in me.pod_cidrs}):
        word, kind = FAMILY[version]
        own = [cidr for cidr in me.pod_cidrs if cidr.version == version]
        sets.append(networks_set(f"own{version}", kind, NetworkUnion(version, own).merged, "pods of this node"))
        spoofed = Match(Field(f"{word} saddr"), SetRef(f"own{version}"))
        rules.append(Rule((outside, spoofed, Verdict("drop")), "a pod of this node is not outside"))
    chain = Chain(name="prerouting", type="filter", hook="prerouting", priority=_PRIORITY_RAW, rules=tuple(rules))
    return Table(family="inet", name=GUARD, comment="podwire routing", chains=(chain,), sets=tuple(sets))
