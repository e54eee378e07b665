"""Differences of network states as the commands that an operator would type."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.state.test_network import NODE, states

from podwire.state.assembly import Assembly
from podwire.state.changes import Change, Changes, creation_order, diff, differences, must_be_remade, narrowed
from podwire.state.link import Link
from podwire.state.link_kinds import Vxlan
from podwire.state.network import NetworkState, OwnerMark, merge, parse
from podwire.state.route import Address, Fdb, FibRule, Neighbour, Route, Sysctl

OWNER = OwnerMark(113, "podwire/routing")
MACS = st.sampled_from(["02:00:00:00:00:02", "02:00:00:00:00:03"])

PEERS = OWNER.stamp(
    parse("""\
link podwire.1 mtu 1450 address 02:00:00:00:00:01 up type vxlan id 1 local 10.89.0.11 dev eth0
address 10.244.0.0/32 dev podwire.1
route 10.244.1.0/24 via 10.244.1.0 dev podwire.1 onlink
neighbour 10.244.1.0 lladdr 02:00:00:00:00:02 dev podwire.1
fdb 02:00:00:00:00:02 dev podwire.1 dst 10.89.0.12
rule 100 from 10.244.0.0/24 table 77
sysctl net/ipv4/conf/podwire.1/rp_filter = 0
sysctl net/ipv4/ip_forward = 1
""")
)

MADE = """\
sysctl -w net/ipv4/ip_forward=1
ip link add podwire.1 type vxlan id 1 local 10.89.0.11 dev eth0 dstport 8472 nolearning
ip link set podwire.1 mtu 1450 address 02:00:00:00:00:01 alias podwire/routing up
sysctl -w net/ipv4/conf/podwire.1/rp_filter=0
ip address add 10.244.0.0/32 dev podwire.1 proto 113
ip neighbour add 10.244.1.0 lladdr 02:00:00:00:00:02 dev podwire.1 proto 113 nud permanent
bridge fdb append 02:00:00:00:00:02 dev podwire.1 dst 10.89.0.12 self permanent
ip route add 10.244.1.0/24 via 10.244.1.0 dev podwire.1 onlink proto 113
ip rule add priority 100 from 10.244.0.0/24 table 77 proto 113
"""


def test_from_nothing() -> None:
    assert str(diff(NetworkState(), PEERS, OWNER)) == MADE


def test_to_nothing_deletes_in_the_reverse_order() -> None:
    on_eth0 = OWNER.stamp(
        parse("route 10.244.1.0/24 via 10.89.0.12 dev eth0\nneighbour 10.89.0.12 lladdr 02:00:00:00:00:02 dev eth0")
    )
    assert str(diff(merge((PEERS, on_eth0)), NetworkState(), OWNER)) == (
        "ip rule delete priority 100 from 10.244.0.0/24 table 77 proto 113\n"
        "ip route delete 10.244.1.0/24 via 10.89.0.12 dev eth0 proto 113\n"
        "ip neighbour delete 10.89.0.12 lladdr 02:00:00:00:00:02 dev eth0 proto 113\n"
        "ip link delete podwire.1\n"
    )


def test_a_peer_that_leaves() -> None:
    want = NetworkState(links=PEERS.links, addresses=PEERS.addresses, rules=PEERS.rules)
    assert str(diff(PEERS, want, OWNER)) == (
        "ip route delete 10.244.1.0/24 via 10.244.1.0 dev podwire.1 onlink proto 113\n"
        "bridge fdb delete 02:00:00:00:00:02 dev podwire.1 dst 10.89.0.12 self permanent\n"
        "ip neighbour delete 10.244.1.0 lladdr 02:00:00:00:00:02 dev podwire.1 proto 113\n"
    )


def test_from_tunnel_to_subnet_the_route_is_replaced_first() -> None:
    want = OWNER.stamp(parse("route 10.244.1.0/24 via 10.89.0.12 dev eth0"))
    lines = str(diff(PEERS, want, OWNER)).splitlines()
    assert lines[0] == "ip route replace 10.244.1.0/24 via 10.89.0.12 dev eth0 proto 113"
    assert not any(line.startswith("ip route delete") for line in lines)
    assert lines[-1] == "ip link delete podwire.1"


def test_a_peer_with_a_new_address_is_replaced() -> None:
    fdb = (Fdb("podwire.1", "02:00:00:00:00:02", "10.89.0.13"),)
    neighbours = (Neighbour("podwire.1", "10.244.1.0", "02:00:00:00:00:03", proto=113),)
    want = merge((NetworkState(PEERS.links, PEERS.addresses, PEERS.routes, neighbours, fdb, PEERS.rules),))
    assert str(diff(PEERS, want, OWNER)) == (
        "ip neighbour replace 10.244.1.0 lladdr 02:00:00:00:00:03 dev podwire.1 proto 113 nud permanent\n"
        "bridge fdb replace 02:00:00:00:00:02 dev podwire.1 dst 10.89.0.13 self permanent\n"
    )


def test_stations_behind_a_port_are_entries_of_the_bridge() -> None:
    port = Link("port0", "dummy", master="br0", locked=True, alias="podwire/routing")
    entry = Fdb("port0", "02:00:00:00:00:0c", bridge=True)
    bridge = Link("br0", "bridge", alias="podwire/routing")
    want = NetworkState((bridge, port), fdb=(entry,))
    assert "bridge fdb add 02:00:00:00:00:0c dev port0 master static\n" in str(diff(NetworkState(), want, OWNER))
    own = Fdb("port0", "02:00:00:00:00:0c")
    assert str(diff(NetworkState((bridge, replace(port, locked=False)), fdb=(own, entry)), want, OWNER)) == (
        "ip link set port0 master br0 locked alias podwire/routing up\n"
        "bridge fdb delete 02:00:00:00:00:0c dev port0 self permanent\n"
    )


def test_equal_states_need_nothing() -> None:
    assert not diff(PEERS, PEERS, OWNER)
    assert not diff(NODE, NODE)


@settings(max_examples=40, deadline=None)
@given(states)
def test_any_state_equals_itself(state: NetworkState) -> None:
    assert not [step for step in diff(state, state).steps if isinstance(step.value, Link)]
    assert not diff(state, state, OwnerMark(113, "podwire/routing")).conflicts


KEYED: st.SearchStrategy[Any] = st.one_of(
    st.builds(Route, st.integers(0, 40).map("10.244.{}.0/24".format), st.sampled_from(["10.89.0.2", "10.89.0.3"])),
    st.builds(Neighbour, st.just("eth0"), st.integers(1, 40).map("10.89.0.{}".format), MACS),
    st.builds(Fdb, st.just("eth0"), st.integers(0, 40).map("02:00:00:00:00:{:02x}".format), st.just("10.89.0.2")),
)
HOLDINGS = st.lists(KEYED, max_size=20).map(lambda values: {(type(value), *value.key): value for value in values})


@settings(max_examples=60)
@given(HOLDINGS, HOLDINGS, HOLDINGS)
def test_steps_lead_from_any_state_to_any_other(
    common: dict[Any, Any], before: dict[Any, Any], after: dict[Any, Any]
) -> None:
    held, expected = common | before, common | after
    old, new = (Assembly().change((), item.values()) for item in (held, expected))
    steps = diff(old, new).steps
    assert len(steps) == sum(1 for key in held.keys() | expected.keys() if held.get(key) != expected.get(key))
    assert diff(*narrowed(old, new)).steps == steps
    for verb, value in steps:
        assert not isinstance(value, Link)
        key = (type(value), *value.key)
        assert (key in held) == (verb != "add")
        held[key] = value
        if verb == "delete":
            del held[key]
    assert held == expected


def test_objects_of_other_owners_stay() -> None:
    foreign = parse("""\
link docker0 up type bridge
address 172.17.0.1/16 dev docker0
address fe80::1/64 dev podwire.1 dad proto 3
route 10.9.0.0/16 via 10.89.0.9 dev eth0 proto 4
neighbour 10.89.0.9 lladdr 02:00:00:00:00:09 dev eth0
rule 5 from 10.9.0.0/16 table 9
sysctl net/ipv4/ip_forward = 1
sysctl net/ipv4/conf/podwire.1/rp_filter = 0
""")
    assert not diff(merge((foreign, PEERS)), PEERS, OWNER)
    remaining = diff(merge((foreign, PEERS)), NetworkState(), OWNER)
    assert "docker0" not in str(remaining)
    assert "10.9.0.0" not in str(remaining)


def test_a_foreign_device_with_the_name_is_a_conflict() -> None:
    have = parse("link podwire.1 up type bridge")
    changes = diff(have, PEERS, OWNER)
    assert [str(x.value) for x in changes.conflicts] == [str(PEERS.links[0])]
    assert "another owner" in str(changes)
    assert not any(isinstance(step.value, Link) for step in changes.steps)


def test_a_foreign_device_that_is_just_right_is_adopted() -> None:
    have = parse(str(PEERS.links[0]).replace("alias podwire/routing ", ""))
    assert [str(x) for x in diff(have, PEERS, OWNER).steps if isinstance(x.value, Link)] == [
        "ip link set podwire.1 mtu 1450 address 02:00:00:00:00:01 alias podwire/routing up"
    ]


def test_device_with_fixed_difference_is_recreated_with_its_state() -> None:
    have = merge((PEERS, NetworkState()))
    link = Link("podwire.1", "vxlan", 1450, mac="02:00:00:00:00:01", alias="podwire/routing", attributes=Vxlan(2))
    want = NetworkState((link,), PEERS.addresses, PEERS.routes, PEERS.neighbours, PEERS.fdb, PEERS.rules)
    lines = str(diff(have, want, OWNER)).splitlines()
    assert lines[0] == "ip link delete podwire.1"
    assert lines[1].startswith("ip link add podwire.1 type vxlan id 2")
    assert [line.split(" dev")[0] for line in lines[3:]] == [
        "ip address add 10.244.0.0/32",
        "ip neighbour replace 10.244.1.0 lladdr 02:00:00:00:00:02",
        "bridge fdb replace 02:00:00:00:00:02",
        "ip route replace 10.244.1.0/24 via 10.244.1.0",
    ]


def test_both_ends_of_a_pair_are_made_by_one_command() -> None:
    want = NetworkState((Link("a", "veth", peer="b"), Link("b", "veth", mtu=1400, peer="a")))
    steps = diff(NetworkState(), want).steps
    assert [(step.verb, step.value) for step in steps] == list(zip(("add", "set"), want.links, strict=True))
    assert [step.verb for step in diff(want, NetworkState()).steps] == ["delete", "delete"]


def test_devices_come_after_their_bridges_and_lower_devices() -> None:
    links = parse("link a master c up type dummy\nlink b up type macvlan link a\nlink c up type bridge").links
    assert [link.name for link in creation_order(links)] == ["c", "a", "b"]
    loop = parse("link a master b up type bridge\nlink b master a up type bridge").links
    assert sorted(link.name for link in creation_order(loop)) == ["a", "b"]


def test_only_what_is_asked_for_is_compared() -> None:
    there = Link("eth0", "veth", 1500, mac="02:00:00:00:00:01", alias="x", index=7, group=3)
    assert differences(there, Link("eth0")) == ()
    assert differences(there, Link("eth0", mtu=1400, up=False, alias="y", master="br0")) == (
        "mtu",
        "alias",
        "up",
        "master",
    )
    assert not must_be_remade(there, Link("eth0"))
    assert must_be_remade(there, Link("eth0", "bridge"))
    assert must_be_remade(there, Link("eth0", "veth", peer="b"))
    assert not must_be_remade(there, Link("eth0", "veth", peer="b", peer_netns="/run/x"))


def test_a_route_without_device_is_content_with_any() -> None:
    want = NetworkState(routes=(Route("default", via="10.0.0.1", proto=113),))
    have = NetworkState(routes=(Route("default", via="10.0.0.1", link="eth0", proto=113),))
    assert not diff(have, want, OWNER)


def test_a_foreign_route_is_not_replaced() -> None:
    have = NetworkState(routes=(Route("10.1.0.0/24", link="a", proto=4),))
    want = NetworkState(routes=(Route("10.1.0.0/24", link="b", proto=113),))
    assert diff(have, want, OWNER).steps == (Change("add", want.routes[0]),)


def test_an_address_that_changes_goes_before_it_comes() -> None:
    have = NetworkState(addresses=(Address("a", "10.0.0.1/24", proto=113),))
    want = NetworkState(addresses=(Address("a", "10.0.0.1/24", noprefixroute=True, proto=113),))
    assert [step.verb for step in diff(have, want, OWNER).steps] == ["delete", "add"]


def test_white_space_in_sysctls_does_not_count() -> None:
    have = NetworkState(sysctls=(Sysctl("net/ipv4/tcp_rmem", "1\t2\t3"),))
    assert not diff(have, NetworkState(sysctls=(Sysctl("net/ipv4/tcp_rmem", "1 2 3"),)))


def test_rules_are_never_replaced() -> None:
    have = NetworkState(rules=(FibRule(1, table=5, proto=113),))
    want = NetworkState(rules=(FibRule(1, table=6, proto=113),))
    assert [step.verb for step in diff(have, want, OWNER).steps] == ["add", "delete"]


def test_no_changes_are_false() -> None:
    assert not Changes()
    assert str(Changes()) == ""


def test_a_tunnel_is_given_another_outer_address_without_being_remade() -> None:
    text = 'link t mtu 1450 alias "podwire/x" up type vxlan id 1 local {} dev {} dstport 8472 nolearning'
    owner = OwnerMark(route_protocol=113, alias_prefix="podwire/x")
    cards = "\nlink a up type dummy\nlink b up type dummy"
    present = parse(text.format("192.0.2.1", "a") + cards)
    desired = parse(text.format("192.0.2.2", "b"))
    assert str(diff(present, desired, owner)) == "ip link set dev t type vxlan local 192.0.2.2 dev b\n"
    for other in (text.format("fd00::1", "a"), text.format("192.0.2.2", "b").replace("id 1", "id 2")):
        steps = diff(present, parse(other), owner).steps
        assert [step.verb for step in steps] == ["delete", "add"]
    foreign = diff(parse(text.format("192.0.2.1", "a").replace("podwire/x", "foreign")), desired, owner)
    assert not foreign.steps and "another owner" in foreign.conflicts[0].reason
