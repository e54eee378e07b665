"""The state of Open vSwitch on one node (pure): bridges, ports, flows, and the devices between them and the kernel.

The bridge :data:`BRIDGE` has two ports: 1 is the gateway, by which packets come from and go to the kernel's routing;
2 is the tunnel to all peers, whose remote end the flows choose. Its flows::

    priority=100,ip,in_port=1,nw_dst=POD_CIDR actions=set_field:NODE->tun_dst,output:2    one per peer and pod CIDR
    priority=90,in_port=1,dl_dst=PEER_MAC actions=set_field:NODE->tun_dst,output:2        one per peer
    priority=100,tun_src=NODE,in_port=2 actions=set_field:DEVICE_MAC->eth_dst,output:1    one per peer
    priority=0 actions=drop

The second one carries packets to addresses outside the cluster, which an EgressPolicy leads to the peer: the kernel
sets the hardware address of the next hop behind the gateway, which is the one of the peer's device.

In the datapath ``system`` the gateway is a veth pair, and the kernel sends and receives the outer packets itself.

In the datapath ``netdev`` ovs-vswitchd forwards, the gateway is a TAP device, and ovs-vswitchd makes the outer packets
itself. It sends them out of a bridge, whose device has to have the address in the outer header; the node's device is
not to be touched, so this is a bridge of its own, :data:`UNDERLAY`, with link-local addresses. Outer packets leave the
bridge into the kernel, which routes them as those of any neighbour. Their source is changed to the node's address by a
flow, and the destination of those that arrive to :data:`INBOUND` by a rule of the guard, without connection tracking::

    priority=100,udp,in_port=LOCAL,nw_src=OWN,tp_dst=PORT actions=set_field:NODE->ip_src,IN_PORT
    priority=100,udp,in_port=LOCAL,nw_dst=INBOUND,tp_dst=PORT actions=set_field:OWN->ip_dst,IN_PORT

When a device of the node comes or goes, ovs-vswitchd reads the ends of its tunnels again, and for some milliseconds it
has none (lib/tnl-ports.c, ``tnl_port_map_run``). Outer packets that arrive then go from the bridge to the kernel and
back until the end of the tunnel is there. So they begin with a time to live of :data:`OUTER_TTL`: with 64, one in a
thousand was lost while devices came and went all the time. On a busy machine the end is away for longer. A packet at
the end of its time to live gets it again, :data:`RENEWALS` times, which its DSCP counts; then it is dropped, so that no
packet goes round for ever::

    priority=110,udp,in_port=LOCAL,nw_dst=INBOUND,nw_tos=0,nw_ttl=1,tp_dst=PORT
        actions=set_field:255->nw_ttl,set_field:1->ip_dscp,set_field:OWN->ip_dst,IN_PORT          and so on from 1 to 2

Sources: ovs-actions(7), ofproto/tunnel.c, lib/ovs-router.c and lib/tnl-ports.c of Open vSwitch 3.1.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from podwire.routing.backends.ovs.processes import directory
from podwire.routing.nodes import LocalNode, Network, Peer, has_node_address
from podwire.routing.tunnels import gateways, tunnel_addresses, tunnel_mac, tunnel_sysctls
from podwire.state.link import Link
from podwire.state.network import NetworkState, Object, merge
from podwire.state.ovs import OvsBridge, OvsFlow, OvsPort, OvsRoute, OvsSwitch
from podwire.state.route import Address, Neighbour, Route, Sysctl

Datapath = Literal["system", "netdev"]

DEVICE = "podwire-ovs"
BRIDGE = "podwire-ovs-br"
TUNNEL_PORT = "podwire-ovs-t"
VETH_PORT = "podwire-ovs-p"
UNDERLAY = "podwire-ovs-u"
OUTER_TTL = 255
"""The time to live of outer packets that ovs-vswitchd makes itself."""
RENEWALS = 7
MARK = 112
"""The mark of packets for the tunnel inside ovs-vswitchd: it selects the route of the outer packets."""
_GATEWAY, _TUNNEL = 1, 2
_PRIORITY = 100
_PRIORITY_OUTSIDE = 90
_PRIORITY_LENT = 110
"""Of a single address, which lies in the range of the node that lends it."""
_PRIORITY_RENEWED = 110
_ALIAS = "podwire/routing ovs"


class OuterAddresses(msgspec.Struct, frozen=True):
    """The addresses on both sides of the bridge :data:`UNDERLAY` for outer packets of one IP version.

    ``own`` is that of ovs-vswitchd, ``router`` the kernel's, ``inbound`` the one to which outer packets are changed.
    """

    own: str
    router: str
    inbound: str
    prefix: int


OUTSIDE = {
    4: OuterAddresses("169.254.82.1", "169.254.82.2", "169.254.82.3", 29),
    6: OuterAddresses("fd70:6f64:7769:7265::1", "fd70:6f64:7769:7265::2", "fd70:6f64:7769:7265::3", 125),
}
INBOUND = {version: outside.inbound for version, outside in OUTSIDE.items()}


class TunnelSettings(msgspec.Struct, frozen=True):
    """The tunnel: ``geneve`` or ``vxlan``, virtual network identifier, UDP port, and the MTU inside."""

    protocol: str
    vni: int
    port: int
    mtu: int


def switch(me: LocalNode, peers: Sequence[Peer], tunnel: TunnelSettings, datapath: Datapath) -> OvsSwitch:
    """The bridges with their ports and flows; ``peers`` are all nodes of the cluster.

    There is a flow also to a peer to which packets take another way: those that entered the gateway before the route
    was replaced still arrive.
    """
    version = me.addresses[0].version
    options = ["df_default=false", f"dst_port={tunnel.port}", f"key={tunnel.vni}", "remote_ip=flow"]
    if datapath == "system":
        options.append(f"local_ip={me.addresses[0]}")
        gateway = OvsPort(VETH_PORT, "system", _GATEWAY)
    else:
        gateway = OvsPort(DEVICE, "tap", _GATEWAY)
        options.append(f"ttl={OUTER_TTL}")
    if version == 6:
        options.append("csum=true")
    bridge = OvsBridge(
        BRIDGE,
        datapath,
        ports=(gateway, OvsPort(TUNNEL_PORT, tunnel.protocol, _TUNNEL, tuple(options))),
        flows=(
            *_sending(me, peers, datapath),
            *_receiving(me, peers),
            OvsFlow(0, "", "drop"),
        ),
    )
    if datapath == "system":
        return OvsSwitch(directory(me), (bridge,))
    outside, mac = OUTSIDE[version], _underlay_mac(me)
    underlay = OvsBridge(UNDERLAY, datapath, mac, flows=(*_turning(me, tunnel, outside), OvsFlow(0, "", "drop")))
    every = "0.0.0.0/0" if version == 4 else "::/0"
    return OvsSwitch(directory(me), (bridge, underlay), (OvsRoute(every, UNDERLAY, outside.router, mac, MARK),))


def _sending(me: LocalNode, peers: Sequence[Peer], datapath: Datapath) -> Iterator[OvsFlow]:
    """To each pod CIDR of each peer, and to each peer by the hardware address of its device."""
    version = me.addresses[0].version
    outer = "tun_dst" if version == 4 else "tun_ipv6_dst"
    marked = f"set_field:{MARK:#x}->pkt_mark," if datapath == "netdev" else ""
    reached = ((cidr, address) for peer in peers if (address := peer.address(version)) for cidr in peer.pod_cidrs)
    for cidr, address in dict(reached).items():
        priority = _PRIORITY if has_node_address(cidr) else _PRIORITY_LENT
        yield OvsFlow(priority, inner(cidr), f"set_field:{address}->{outer},{marked}output:{_TUNNEL}")
    devices = {tunnel_mac(peer.name): address for peer in peers if (address := peer.address(version))}
    for mac, address in devices.items():
        match = f"in_port={_GATEWAY},dl_dst={mac}"
        yield OvsFlow(_PRIORITY_OUTSIDE, match, f"set_field:{address}->{outer},{marked}output:{_TUNNEL}")


def inner(cidr: Network) -> str:
    """The match of the flow to a pod CIDR; a single address has no prefix length, as ovs-ofctl prints it."""
    form = "ip,in_port={},nw_dst={}" if cidr.version == 4 else "ipv6,in_port={},ipv6_dst={}"
    return form.format(_GATEWAY, cidr if has_node_address(cidr) else cidr.network_address)


def _receiving(me: LocalNode, peers: Sequence[Peer]) -> Iterator[OvsFlow]:
    """From each node of the cluster, and from no other sender."""
    version = me.addresses[0].version
    outer = "tun_src" if version == 4 else "tun_ipv6_src"
    addresses = dict.fromkeys(address for peer in peers for address in peer.addresses if address.version == version)
    for address in addresses:
        actions = f"set_field:{tunnel_mac(me.name)}->eth_dst,output:{_GATEWAY}"
        yield OvsFlow(_PRIORITY, f"{outer}={address},in_port={_TUNNEL}", actions)


def _turning(me: LocalNode, tunnel: TunnelSettings, outside: OuterAddresses) -> Iterator[OvsFlow]:
    """The outer packets between ovs-vswitchd and the kernel, both at the same device."""
    node = me.addresses[0]
    udp, match, field = ("udp", "nw", "ip") if node.version == 4 else ("udp6", "ipv6", "ipv6")
    head, end = f"{udp},in_port=LOCAL", f"tp_dst={tunnel.port}"
    sent = f"set_field:{node}->{field}_src,IN_PORT"
    yield OvsFlow(_PRIORITY, f"{head},{match}_src={outside.own},{end}", sent)
    received = f"set_field:{outside.own}->{field}_dst,IN_PORT"
    yield OvsFlow(_PRIORITY, f"{head},{match}_dst={outside.inbound},{end}", received)
    for number in range(RENEWALS):
        expiring = f"{head},{match}_dst={outside.inbound},nw_tos={number << 2},nw_ttl=1,{end}"
        renewed = f"set_field:{OUTER_TTL}->nw_ttl,set_field:{number + 1}->ip_dscp,{received}"
        yield OvsFlow(_PRIORITY_RENEWED, expiring, renewed)


def way(peer: Peer, sources: Mapping[int, str]) -> Iterator[Object]:
    """The routes to the gateway and the neighbours behind it, for one peer; ``sources`` are those of own packets."""
    for cidr, gateway in gateways(DEVICE, peer, tunnel_mac(peer.name)):
        yield gateway
        if cidr.version == 6:
            yield Route(dst=f"{gateway.ip}/128", link=DEVICE)
        yield Route(dst=str(cidr), via=gateway.ip, link=DEVICE, onlink=True, src=sources.get(cidr.version, ""))


def devices(me: LocalNode, tunnel: TunnelSettings, datapath: Datapath) -> NetworkState:
    """The gateway, and the device of outer packets where ovs-vswitchd makes them."""
    own = NetworkState(
        links=_gateway(me, tunnel, datapath),
        addresses=tunnel_addresses(DEVICE, me),
        sysctls=tunnel_sysctls(DEVICE, me),
    )
    return own if datapath == "system" else merge([own, _outer_device(me)])


def _gateway(me: LocalNode, tunnel: TunnelSettings, datapath: Datapath) -> tuple[Link, ...]:
    mac = tunnel_mac(me.name)
    if datapath == "netdev":
        return (Link(name=DEVICE, kind="tun", mode="tap", mtu=tunnel.mtu, mac=mac, alias=_ALIAS),)
    return (
        Link(name=DEVICE, kind="veth", peer=VETH_PORT, mtu=tunnel.mtu, mac=mac, alias=_ALIAS),
        Link(name=VETH_PORT, mtu=tunnel.mtu),
    )


def _outer_device(me: LocalNode) -> NetworkState:
    """The device of the bridge :data:`UNDERLAY`: the kernel accepts the node's own address as source there."""
    version, mac = me.addresses[0].version, _underlay_mac(me)
    outside = OUTSIDE[version]
    if version == 4:
        settings = {f"net/ipv4/conf/{UNDERLAY}/accept_local": "1", f"net/ipv4/conf/{UNDERLAY}/rp_filter": "2"}
        settings["net/ipv4/ip_forward"] = "1"
    else:
        settings = {f"net/ipv6/conf/{UNDERLAY}/accept_ra": "0", "net/ipv6/conf/all/forwarding": "1"}
    return NetworkState(
        links=(Link(name=UNDERLAY, kind="tun", mode="tap", mtu=me.underlay.mtu, mac=mac, alias=_ALIAS),),
        addresses=(Address(link=UNDERLAY, cidr=f"{outside.own}/{outside.prefix}"),),
        neighbours=(Neighbour(link=UNDERLAY, ip=outside.inbound, mac=mac),),
        sysctls=tuple(Sysctl(path=path, value=value) for path, value in settings.items()),
    )


def _underlay_mac(me: LocalNode) -> str:
    return tunnel_mac(f"{me.name} underlay")
