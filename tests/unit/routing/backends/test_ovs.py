"""The backend ovs: the bridges, ports and flows in both datapaths, the modes, and the guard."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.routing.backend import BackendPlan, FeatureUser
from podwire.routing.backends.ovs.backend import OpenVSwitch, OvsOptions, OvsSection
from podwire.routing.nodes import ClusterView, Device, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.settings import parse_settings

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd44::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"), ip_interface("fd89::11/64"))),
    run_dir="/run/test",
)
KERNEL = replace(ME, features=frozenset({"openvswitch"}))
TUNNEL = {"ovs": {"tunnel": "geneve", "port": 6082, "vni": 4096}}
PEER = Peer(
    name="node-2",
    addresses=(ip_address("10.89.0.12"), ip_address("fd89::12")),
    pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd44:0:0:1::/64")),
    facts=RoutingFacts("ovs", ("ovs",), TUNNEL),
)
FAR = replace(PEER, name="node-3", addresses=(ip_address("10.90.0.13"),), pod_cidrs=(ip_network("10.244.3.0/24"),))
DEVICES = """\
link podwire-ovs mtu 1450 address 02:62:79:f1:a3:2d alias "podwire/routing ovs" up type tun mode tap
link podwire-ovs-u mtu 1500 address 02:a8:55:a4:86:fd alias "podwire/routing ovs" up type tun mode tap
address 10.244.0.1/32 dev podwire-ovs
address fd44::1/128 dev podwire-ovs
address 169.254.82.1/29 dev podwire-ovs-u
route 10.244.1.0/24 via 10.244.1.1 dev podwire-ovs onlink src 10.244.0.1
route fd44:0:0:1::/64 via fd44:0:0:1::1 dev podwire-ovs onlink src fd44::1
route fd44:0:0:1::1/128 dev podwire-ovs
neighbour 10.244.1.1 lladdr 02:c1:95:f8:32:c5 dev podwire-ovs
neighbour fd44:0:0:1::1 lladdr 02:c1:95:f8:32:c5 dev podwire-ovs
neighbour 169.254.82.3 lladdr 02:a8:55:a4:86:fd dev podwire-ovs-u
sysctl net/ipv4/conf/podwire-ovs-u/accept_local = 1
sysctl net/ipv4/conf/podwire-ovs-u/rp_filter = 2
sysctl net/ipv4/conf/podwire-ovs/rp_filter = 2
sysctl net/ipv4/ip_forward = 1
sysctl net/ipv6/conf/podwire-ovs/accept_ra = 0
"""
MAC = "02:62:79:f1:a3:2d"
OPTIONS = "df_default=false,dst_port=6082,key=4096,remote_ip=flow,ttl=255"
SENDING = (
    "ovs-flow podwire-ovs-br priority=100,{},in_port=1,{}_dst={} actions=set_field:{},set_field:0x70->pkt_mark,output:2"
)
OUTSIDE = (
    "ovs-flow podwire-ovs-br priority=90,in_port=1,dl_dst=02:c1:95:f8:32:c5 "
    "actions=set_field:{},set_field:0x70->pkt_mark,output:2"
)
TURNED = "ovs-flow podwire-ovs-u priority=100,{},in_port=LOCAL,{},tp_dst=6082 actions=set_field:{},IN_PORT"
RENEWED = (
    "ovs-flow podwire-ovs-u priority=110,{0},in_port=LOCAL,{1},nw_tos={3},nw_ttl=1,tp_dst=6082 "
    "actions=set_field:255->nw_ttl,set_field:{4}->ip_dscp,set_field:{2},IN_PORT"
)


def renewed(protocol: str, match: str, action: str) -> str:
    """The flows of packets at the end of their time to live, in the order of their text."""
    return "\n".join(sorted(RENEWED.format(protocol, match, action, number << 2, number + 1) for number in range(7)))


USERSPACE = f"""\
ovs /run/test/ovs
ovs-bridge podwire-ovs-br datapath netdev
ovs-port podwire-ovs-br podwire-ovs type tap number 1
ovs-port podwire-ovs-br podwire-ovs-t type geneve number 2 options {OPTIONS}
ovs-flow podwire-ovs-br priority=0 actions=drop
{OUTSIDE.format("10.89.0.12->tun_dst")}
{SENDING.format("ip", "nw", "10.244.1.0/24", "10.89.0.12->tun_dst")}
{SENDING.format("ipv6", "ipv6", "fd44:0:0:1::/64", "10.89.0.12->tun_dst")}
ovs-flow podwire-ovs-br priority=100,tun_src=10.89.0.12,in_port=2 actions=set_field:02:62:79:f1:a3:2d->eth_dst,output:1
ovs-bridge podwire-ovs-u datapath netdev address 02:a8:55:a4:86:fd
ovs-flow podwire-ovs-u priority=0 actions=drop
{TURNED.format("udp", "nw_dst=169.254.82.3", "169.254.82.1->ip_dst")}
{TURNED.format("udp", "nw_src=169.254.82.1", "10.89.0.11->ip_src")}
{renewed("udp", "nw_dst=169.254.82.3", "169.254.82.1->ip_dst")}
ovs-route 0.0.0.0/0 bridge podwire-ovs-u via 169.254.82.2 address 02:a8:55:a4:86:fd mark 112\
"""
KERNELS = """\
ovs /run/test/ovs
ovs-bridge podwire-ovs-br datapath system
ovs-port podwire-ovs-br podwire-ovs-p type system number 1
ovs-port podwire-ovs-br podwire-ovs-t type geneve number 2 options df_default=false,dst_port=6082,key=4096,local_ip=10.89.0.11,remote_ip=flow
ovs-flow podwire-ovs-br priority=0 actions=drop
ovs-flow podwire-ovs-br priority=90,in_port=1,dl_dst=02:c1:95:f8:32:c5 actions=set_field:10.89.0.12->tun_dst,output:2
ovs-flow podwire-ovs-br priority=100,ip,in_port=1,nw_dst=10.244.1.0/24 actions=set_field:10.89.0.12->tun_dst,output:2
ovs-flow podwire-ovs-br priority=100,ipv6,in_port=1,ipv6_dst=fd44:0:0:1::/64 actions=set_field:10.89.0.12->tun_dst,output:2
ovs-flow podwire-ovs-br priority=100,tun_src=10.89.0.12,in_port=2 actions=set_field:02:62:79:f1:a3:2d->eth_dst,output:1\
"""  # noqa: E501
OVER_IPV6 = f"""\
ovs-port podwire-ovs-br podwire-ovs-t type geneve number 2 options csum=true,{OPTIONS}
ovs-flow podwire-ovs-br priority=0 actions=drop
{OUTSIDE.format("fd89::12->tun_ipv6_dst")}
{SENDING.format("ip", "nw", "10.244.1.0/24", "fd89::12->tun_ipv6_dst")}
{SENDING.format("ipv6", "ipv6", "fd44:0:0:1::/64", "fd89::12->tun_ipv6_dst")}
ovs-flow podwire-ovs-br priority=100,tun_ipv6_src=fd89::12,in_port=2 actions=set_field:{MAC}->eth_dst,output:1
ovs-bridge podwire-ovs-u datapath netdev address 02:a8:55:a4:86:fd
ovs-flow podwire-ovs-u priority=0 actions=drop
{TURNED.format("udp6", "ipv6_dst=fd70:6f64:7769:7265::3", "fd70:6f64:7769:7265::1->ipv6_dst")}
{TURNED.format("udp6", "ipv6_src=fd70:6f64:7769:7265::1", "fd89::11->ipv6_src")}
{renewed("udp6", "ipv6_dst=fd70:6f64:7769:7265::3", "fd70:6f64:7769:7265::1->ipv6_dst")}
ovs-route ::/0 bridge podwire-ovs-u via fd70:6f64:7769:7265::2 address 02:a8:55:a4:86:fd mark 112\
"""


def backend(**options: object) -> OpenVSwitch:
    return OpenVSwitch(OvsOptions(ovs=replace(OvsSection(), **options)))


def planned(me: LocalNode, *peers: Peer, **options: object) -> BackendPlan:
    return backend(**options).plan(me, peers, ClusterView(peers, (ip_network("10.244.0.0/16"),)))


def test_without_a_datapath_of_the_kernel_ovs_vswitchd_forwards() -> None:
    plan = planned(ME, PEER)
    assert str(plan.network) == DEVICES
    assert [str(value) for value in plan.program_values] == [USERSPACE]
    assert plan.tunnels == ("podwire-ovs",)
    assert [child.name for child in plan.children] == ["podwire-ovsdb", "podwire-vswitchd"]
    assert all("/run/test/ovs" in child.argv for child in plan.children)


def test_the_kernels_datapath_has_one_bridge_and_a_veth_pair() -> None:
    plan = planned(KERNEL, PEER)
    assert str(plan.program_values[0]) == KERNELS
    lines = str(plan.network).splitlines()
    assert lines[0].endswith('alias "podwire/routing ovs" up type veth peer podwire-ovs-p')
    assert lines[1] == "link podwire-ovs-p mtu 1450 up"
    assert not any("podwire-ovs-u" in line or "ip_forward" in line for line in lines)
    assert isinstance(backend(), FeatureUser)
    assert "datapath netdev" in str(planned(KERNEL, PEER, datapath="netdev").program_values[0])


def test_the_datapath_of_another_open_vswitch_is_left_alone() -> None:
    for names, datapath in (({"ovs-system"}, "netdev"), ({"ovs-system", "podwire-ovs-br"}, "system")):
        underlay = replace(ME.underlay, devices=dict.fromkeys(names, Device(1500)))
        plan = planned(replace(KERNEL, underlay=underlay), PEER)
        assert f"podwire-ovs-br datapath {datapath}" in str(plan.program_values[0])


def test_outer_packets_of_ipv6_take_twenty_bytes_more() -> None:
    me = replace(ME, addresses=ME.addresses[::-1])
    plan = planned(me, PEER)
    assert str(plan.program_values[0]).partition("\n")[2].partition("type tap number 1\n")[2] == OVER_IPV6
    assert plan.network.links[0].mtu == 1430
    assert "sysctl net/ipv6/conf/all/forwarding = 1" in str(plan.network)
    assert "udp dport 6082 fib daddr type local ip6 saddr @nodes notrack ip6 daddr set fd70:6f64:7769:7265::3" in (
        "\n".join(plan.values[0].lines())
    )


def test_the_guard_leads_packets_of_nodes_to_ovs_vswitchd() -> None:
    (guard,) = planned(ME, PEER, port=7000).values
    (kernels,) = planned(KERNEL, PEER, port=7000).values
    lines, fewer = ([line.strip() for line in table.lines()] for table in (guard, kernels))
    assert [line for line in lines if line not in fewer] == [
        'udp dport 7000 ip saddr != @nodes fib daddr type local drop comment "not from a node"',
        'udp dport 7000 iifname "podwire-ovs-u" notrack comment "outer packets of ovs-vswitchd"',
        "udp dport 7000 fib daddr type local ip saddr @nodes notrack ip daddr set 169.254.82.3"
        ' comment "outer packets to ovs-vswitchd"',
        'oifname "podwire-ovs-u" ip saddr != @nodes drop comment "not from a node"',
    ]
    assert backend(port=7000).udp_ports == (7000,), "policies do not let pods send to the port"


def test_a_mode_chooses_which_packets_are_encapsulated() -> None:
    routes = {
        mode: [line for line in str(planned(ME, PEER, FAR, mode=mode).network).splitlines() if "route 10." in line]
        for mode in ("encap", "hybrid", "noEncap")
    }
    tunnelled = "route 10.244.3.0/24 via 10.244.3.1 dev podwire-ovs onlink src 10.244.0.1"
    plain = "route 10.244.1.0/24 via 10.89.0.12 dev eth0 src 10.89.0.11"
    assert routes["encap"] == ["route 10.244.1.0/24 via 10.244.1.1 dev podwire-ovs onlink src 10.244.0.1", tunnelled]
    assert routes["hybrid"] == [plain, tunnelled]
    assert routes["noEncap"] == [plain], "the router sends no packets to nodes that are not reached"
    assert [backend(mode=mode).overhead(ME) for mode in ("encap", "hybrid", "noEncap")] == [50, 50, 0]
    assert backend(mode="noEncap").reaches(ME, FAR) == "node node-3 (10.90.0.13) is not on a subnet of eth0"
    assert backend(mode="hybrid").reaches(ME, replace(PEER, facts=RoutingFacts("vxlan"))) == ""
    hybrid = planned(ME, PEER, FAR, mode="hybrid")
    assert "nw_dst=10.244.1.0/24" in str(hybrid.program_values[0]), "packets on their way still arrive"


def test_a_peer_is_reached_when_it_has_the_same_tunnel() -> None:
    assert backend().reaches(ME, PEER) == backend().reaches(ME, replace(PEER, facts=None)) == ""
    assert backend().announce(ME) == TUNNEL
    vxlan = replace(PEER, facts=RoutingFacts("vxlan", ("vxlan",)))
    assert backend().reaches(ME, vxlan) == "node node-2 does not receive ovs yet"
    assert backend().reaches(ME, replace(PEER, addresses=PEER.addresses[1:])) == "node node-2 has no IPv4 address"
    assert backend(port=7000).reaches(ME, PEER).startswith("node node-2 has the tunnel {'tunnel': 'geneve', ")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ovs.port": 0}, r"routing.ovs.port: 0 is not in 1..65535"),
        ({"ovs.vni": 1 << 24}, r"routing.ovs.vni: 16777216 is not in 1..16777215"),
        ({"ovs.mode": "none"}, r"routing.ovs.mode"),
        ({"ovs.tunnel": "gre"}, r"routing.ovs.tunnel"),
    ],
)
def test_a_wrong_option_is_refused_by_its_path(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_settings({"backend": "ovs", **options}, "test")
