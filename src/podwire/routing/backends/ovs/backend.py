"""Pod routing by Open vSwitch: flows choose the tunnel to each peer, as in Antrea.

Each node has an Open vSwitch of its own: a database server and ovs-vswitchd, which run beside the agent and outlive it.
The kernel's route to the pods of a peer leads to a gateway device; there a flow of the bridge sets the peer's node
address as the tunnel's remote end, and outputs the packet to the one tunnel port (:mod:`.switch`). Flows are a kind of
state of their own (:mod:`podwire.state.ovs`).

Pods stay behind their node's routing table, so Services and NetworkPolicies see every packet; as ports of the bridge
they would bypass both.

Where the kernel has the module openvswitch, its datapath forwards; else ovs-vswitchd itself does, in user space, which
takes two passes through the kernel and one process for each packet. Such packets are lost while ovs-vswitchd is away.

Per peer: two flows, and in both families a route (IPv6: two) and a neighbour, each per pod CIDR; and a flow for packets
from it. Encapsulation takes 50 bytes over IPv4 and 70 over IPv6, for both protocols.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from podwire.routing.backend import BackendOptions, BackendPlan, check_range
from podwire.routing.backends.ovs.processes import processes
from podwire.routing.backends.ovs.switch import (
    BRIDGE,
    DEVICE,
    INBOUND,
    TUNNEL_PORT,
    UNDERLAY,
    Datapath,
    TunnelSettings,
    devices,
    inner,
    switch,
    way,
)
from podwire.routing.direct import DirectRoutes, behind_router, no_address
from podwire.routing.mtu import device_mtu
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import (
    OuterHeader,
    PathState,
    PeerPath,
    follow_plain_route,
    follow_route,
    leads_to,
    next_neighbour,
)
from podwire.routing.peerstates import PeerStates
from podwire.routing.tables import FAMILY, guard_udp_port
from podwire.routing.tunnels import no_outer_address, not_receiving, tunnel_sources
from podwire.state.network import merge
from podwire.state.nft import Table
from podwire.state.nft_rules import Assign, Field, LiteralValue, Match, Notrack, Rule, SetRef, Verdict
from podwire.state.ovs import OvsBridge, OvsSwitch

NAME = "ovs"
GUARD = "podwire-routing-ovs"
_OVERHEAD = {4: 50, 6: 70}
_KERNEL_DATAPATH = "openvswitch"
_PROTOCOLS = {"geneve": "Geneve", "vxlan": "VXLAN"}


class OvsSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The options, the same on all nodes but for ``datapath``.

    ``mode``: every packet in the tunnel (``encap``), none (``noEncap``), or those to nodes of other subnets
    (``hybrid``). ``datapath``: that of the kernel where there is one (``auto``), or always ovs-vswitchd's (``netdev``).
    The port differs from that of the backend ``geneve``, so that nodes can switch between the two.
    """

    mode: Literal["encap", "noEncap", "hybrid"] = "encap"
    tunnel: Literal["geneve", "vxlan"] = "geneve"
    datapath: Literal["auto", "netdev"] = "auto"
    vni: int = 4096
    port: int = 6082


class OvsOptions(BackendOptions, frozen=True):
    """The section ``routing.ovs``."""

    routes_outside = True

    ovs: OvsSection = OvsSection()

    def check(self, source: str) -> None:
        """Checks the ranges of RFC 8926 and of UDP.

        Raises: ConfigError naming the field.
        """
        check_range(source, "routing.ovs.vni", self.ovs.vni, 1, (1 << 24) - 1)
        check_range(source, "routing.ovs.port", self.ovs.port, 1, 65535)


class OpenVSwitch:
    """A bridge of Open vSwitch with one tunnel port to all peers."""

    name = NAME
    feature = "ovs-vswitchd"
    features = (_KERNEL_DATAPATH,)
    options = OvsOptions
    tables = (GUARD,)
    announced = True
    crosses_routers = True

    def __init__(self, options: OvsOptions) -> None:
        self._options = options.ovs
        self._peers = PeerStates()
        self._routes = DirectRoutes()

    @property
    def udp_ports(self) -> tuple[int, ...]:
        """The port of the tunnel."""
        return (self._options.port,)

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The tunnel's protocol and port."""
        return {NAME: {"tunnel": self._options.tunnel, "port": self._options.port, "vni": self._options.vni}}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The bridge, its devices and processes, the way to each peer, and the guard of the port.

        The tunnel carries no credentials, so the guard and the flows accept packets only from nodes.
        """
        datapath = self._datapath(me)
        direct = [peer for peer in peers if self._is_direct(me, peer)]
        tunnelled = [peer for peer in peers if not self._is_direct(me, peer)]
        sources = tunnel_sources(me)
        through = self._peers.merged(tunnelled, sources, lambda peer: way(peer, sources))
        return BackendPlan(
            network=merge([devices(me, self._tunnel(me), datapath), through, self._routes.state(me, direct)]),
            values=(_guard(self._options.port, datapath, me, cluster),),
            children=processes(me),
            program_values=(switch(me, cluster.peers, self._tunnel(me), datapath),),
            tunnels=(DEVICE,),
        )

    def _tunnel(self, me: LocalNode) -> TunnelSettings:
        mtu = device_mtu(me, _OVERHEAD[me.addresses[0].version])
        return TunnelSettings(self._options.tunnel, self._options.vni, self._options.port, mtu)

    def _datapath(self, me: LocalNode) -> Datapath:
        """The kernel's datapath, unless another Open vSwitch uses it: a network namespace has only one.

        ``ovs-system`` is the device of the datapath. podwire uses the datapath when podwire's bridge exists beside it.
        """
        foreign = "ovs-system" in me.underlay.devices and BRIDGE not in me.underlay.devices
        usable = _KERNEL_DATAPATH in me.features and not foreign
        return "system" if usable and self._options.datapath == "auto" else "netdev"

    def _is_direct(self, me: LocalNode, peer: Peer) -> bool:
        """Whether packets to a peer take a plain route."""
        if self._options.mode == "hybrid":
            return not no_address(peer) and not behind_router(me, peer)
        return self._options.mode == "noEncap"

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether the peer is on the same subnet where that is needed, else whether it receives from the tunnel."""
        if self._options.mode == "noEncap":
            return no_address(peer) or behind_router(me, peer)
        if problem := no_outer_address(me, peer):
            return problem
        if peer.facts is None or self._is_direct(me, peer):
            return ""
        if problem := not_receiving(peer, self.name):
            return problem
        own, announced = self.announce(me)[NAME], peer.facts.details.get(NAME)
        if announced != own:
            return f"node {peer.name} has the tunnel {announced}, and routing.ovs of this node is {own}"
        return ""

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route to the gateway, the neighbour entry of its next hop, and the flow with the remote end."""
        if self._is_direct(me, peer):
            return follow_plain_route(state.network, peer, address)
        path = follow_route(state.network, peer, address, (DEVICE,))
        if path.missing or path.route is None:
            return path
        if next_neighbour(state.network, path.route) is None:
            return replace(path, missing=(f"no neighbour entry for {path.route.via} on {DEVICE}",))
        held = next((value for value in state.program_values if isinstance(value, OvsSwitch)), None)
        bridge = next((bridge for bridge in held.bridges if bridge.name == BRIDGE), None) if held is not None else None
        if bridge is None:
            return replace(path, missing=(f"no ovs-vswitchd has the bridge {BRIDGE}",))
        return replace(path, **self._through(bridge, me, peer, address))

    def _through(self, bridge: OvsBridge, me: LocalNode, peer: Peer, address: Address) -> dict[str, Any]:
        """The fields of a path from the gateway on: the tunnel, or the entry that is missing."""
        port = next((port for port in bridge.ports if port.name == TUNNEL_PORT), None)
        if port is None or len(bridge.ports) < 2:
            absent = TUNNEL_PORT if port is None else "the gateway"
            return {"missing": (f"{BRIDGE} has no port for {absent}",)}
        cidr = next((cidr for cidr in peer.pod_cidrs if address in cidr), None)
        flow = next((flow for flow in bridge.flows if cidr is not None and flow.match == inner(cidr)), None)
        if flow is None:
            return {"missing": (f"no flow to {cidr} on {BRIDGE}",)}
        options = dict(option.split("=", 1) for option in port.options)
        outer = OuterHeader(
            protocol=_PROTOCOLS.get(port.type, port.type),
            id=int(options.get("key", "0")),
            port=int(options.get("dst_port", "0")),
            source=str(me.addresses[0]),
            destination=flow.actions.partition("set_field:")[2].partition("->")[0],
        )
        return {"tunnel": outer, "missing": leads_to(peer, outer.destination, f"flow {flow}")}

    def overhead(self, me: LocalNode) -> int:
        """50 bytes over IPv4, 70 over IPv6; none in the mode noEncap."""
        return 0 if self._options.mode == "noEncap" else _OVERHEAD[me.addresses[0].version]


def _guard(port: int, datapath: Datapath, me: LocalNode, cluster: ClusterView) -> Table:
    """The guard of the port; for the datapath ``netdev`` it also leads outer packets from nodes to ovs-vswitchd."""
    table = guard_udp_port(GUARD, port, me, cluster, ingress=False)
    if datapath == "system":
        return table
    version = me.addresses[0].version
    word, _ = FAMILY[version]
    outer = Match(Field("udp dport"), LiteralValue(str(port)))
    local = Match(Field("fib daddr type"), LiteralValue("local"))
    inbound = Assign(Field(f"{word} daddr"), LiteralValue(INBOUND[version]))
    from_node = Match(Field(f"{word} saddr"), SetRef("nodes"))
    entering = Match(Field("oifname"), LiteralValue(f'"{UNDERLAY}"'))
    leaving = Match(Field("iifname"), LiteralValue(f'"{UNDERLAY}"'))
    foreign = Match(Field(f"{word} saddr"), SetRef("nodes"), "!=")
    chains = {chain.name: chain for chain in table.chains}
    chains["prerouting"] = replace(
        chains["prerouting"],
        rules=(
            Rule((outer, foreign, local, Verdict("drop")), "not from a node"),
            Rule((outer, leaving, Notrack()), "outer packets of ovs-vswitchd"),
            Rule((outer, local, from_node, Notrack(), inbound), "outer packets to ovs-vswitchd"),
        ),
    )
    strangers = Rule((entering, foreign, Verdict("drop")), "not from a node")
    chains["forward"] = replace(chains["forward"], rules=(*chains["forward"].rules, strangers))
    return replace(table, chains=tuple(chains.values()))
