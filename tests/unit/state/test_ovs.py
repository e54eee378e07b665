"""Bridges, ports and flows of Open vSwitch, and their text."""

import pytest

from podwire.errors import ConfigError
from podwire.state.drift import render
from podwire.state.kinds import KINDS
from podwire.state.ovs import OvsBridge, OvsFlow, OvsPort, OvsSwitch, flow_changes, own_flows, parse, parse_flow
from podwire.state.share import Share
from podwire.state.share import parse as parse_shares
from podwire.state.share import render as render_shares

TEXT = """\
ovs /run/podwire/routing/ovs
ovs-bridge podwire-ovs-br datapath netdev
ovs-port podwire-ovs-br podwire-ovs type tap number 1
ovs-port podwire-ovs-br podwire-ovs-t type geneve number 2 options key=4096,remote_ip=flow
ovs-flow podwire-ovs-br priority=0 actions=drop
ovs-flow podwire-ovs-br priority=100,ip,in_port=1,nw_dst=10.1.0.0/24 actions=set_field:192.0.2.12->tun_dst,output:2
ovs-bridge podwire-ovs-u datapath netdev address 02:00:00:00:00:09
ovs-route 0.0.0.0/0 bridge podwire-ovs-u via 169.254.82.2 address 02:00:00:00:00:09 mark 112
"""
FLOW = "priority=100,ip,in_port=1,nw_dst=10.1.0.0/24 actions=output:2"
DUMP = """\
OFPST_FLOW reply (OF1.4) (xid=0x2):
 cookie=0x706f6477697265, duration=2.5s, table=0, n_packets=3, n_bytes=9, priority=0 actions=drop
 cookie=0x7, priority=9,in_port=1 actions=drop
 cookie=0x706f6477697265, priority=100,ip,in_port=1,nw_dst=10.1.0.0/24 actions=output:2
"""


def test_the_text_is_read_and_printed() -> None:
    (switch,) = parse(TEXT.splitlines())
    assert f"{switch}\n" == TEXT
    bridge, underlay = switch.bridges
    assert bridge.ports[1] == OvsPort("podwire-ovs-t", "geneve", 2, ("remote_ip=flow", "key=4096"))
    assert bridge.flows[0] == OvsFlow(0, "", "drop")
    assert (underlay.mac, switch.routes[0].mark, switch.routes[0].version) == ("02:00:00:00:00:09", 112, 4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ovs", "needs one word, the directory of the sockets"),
        ("ovs-bridge b datapath netdev", "is below no line `ovs DIRECTORY`"),
        ("ovs /x\novs-bridge b", "needs the word 'datapath'"),
        ("ovs /x\novs-bridge b datapath netdev address here", "'here'"),
        ("ovs /x\novs-port b p type tap number 1", "is below no line `ovs-bridge NAME` of its bridge"),
        ("ovs /x\novs-bridge b datapath netdev\novs-port b p type tap", "needs the word 'number'"),
        ("ovs /x\novs-bridge b datapath netdev\novs-port b p type tap number one", "number takes a number, not 'one'"),
        ("ovs /x\novs-bridge b datapath netdev\novs-flow b drop", "'drop' is not a flow: expected priority=NUMBER"),
        ("ovs /x\novs-bridge b datapath netdev\novs-flow b", "is not a flow"),
        ("ovs /x\novs-route 10.0.0.0/8 bridge b via 192.0.2.1", "needs the word 'address'"),
        ("ovs /x\novs-group b 1", "begins with 'ovs-group': expected ovs-bridge, ovs-port, ovs-flow or ovs-route"),
    ],
)
def test_a_wrong_text_is_refused_by_its_word(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(text.split("\n"))


def test_two_objects_with_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="two ports of b have the number 1"):
        OvsBridge("b", "netdev", ports=(OvsPort("p", "tap", 1), OvsPort("q", "tap", 1)))
    with pytest.raises(ValueError, match="two flows of b have the match priority=1,ip"):
        OvsBridge("b", "netdev", flows=(OvsFlow(1, "ip", "drop"), OvsFlow(1, "ip", "output:1")))


def test_flows_are_read_as_open_vswitch_prints_them() -> None:
    assert own_flows(DUMP) == (OvsFlow(0, "", "drop"), parse_flow(FLOW)), "the flow of another owner is left out"
    control = "duration=171s, n_packets=3, n_bytes=222, priority=7,tun_src=10.9.0.2,in_port=2,actions=output:1"
    assert parse_flow(control) == OvsFlow(7, "tun_src=10.9.0.2,in_port=2", "output:1")
    assert parse_flow("duration=1s, n_packets=0, n_bytes=0, priority=0,actions=drop") == OvsFlow(0, "", "drop")


def test_changed_flows_are_replaced_and_surplus_ones_deleted_by_cookie() -> None:
    present = (parse_flow(FLOW), OvsFlow(0, "", "drop"), OvsFlow(5, "ip", "drop"))
    desired = (parse_flow(FLOW.replace("output:2", "output:1")), OvsFlow(0, "", "drop"))
    assert list(flow_changes(present, desired).commands()) == [
        "delete_strict cookie=0x706f6477697265/-1,priority=5,ip",
        "add cookie=0x706f6477697265,priority=100,ip,in_port=1,nw_dst=10.1.0.0/24 actions=output:1",
    ]
    assert list(flow_changes(present, present).commands()) == []


def test_a_share_with_a_switch_reads_back() -> None:
    share = Share(part="routing", desired=parse(TEXT.splitlines()))
    assert parse_shares(render_shares([share])) == [share]
    assert ("routing: ovs", "ovs-flow podwire-ovs-br priority=0 actions=drop") in share.located()
    assert share.mark(KINDS["ovs"]) == ("/run/podwire/routing/ovs",)
    assert Share(part="routing").mark(KINDS["ovs"]) is None
    with pytest.raises(ConfigError, match=r"part routing.*below no line"):
        parse_shares(["part routing", "ovs-flow b priority=1 actions=drop", "end"])


def test_differences_are_lines_of_ports_and_flows() -> None:
    desired = parse(TEXT.splitlines())
    present = parse([line for line in TEXT.splitlines() if "nw_dst" not in line])
    share = Share(part="routing", desired=desired)
    assert list(render(share.compare(KINDS["ovs"], present))) == ["@@ routing: ovs @@", f"+{TEXT.splitlines()[5]}"]
    assert list(share.compare(KINDS["ovs"], desired)) == []
    assert len(list(share.compare(KINDS["ovs"], [OvsSwitch("/elsewhere")]))) == len(TEXT.splitlines())
