"""Network state: text form, canonical values, owner marks."""

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.errors import ConfigError
from podwire.state.link import Link
from podwire.state.link_kinds import Vxlan
from podwire.state.network import NetworkState, OwnerMark, merge, parse
from podwire.state.route import Address, Fdb, FibRule, Neighbour, Route, Sysctl

NODE = NetworkState(
    links=(
        Link(
            "podwire.1",
            "vxlan",
            1450,
            mac="02:00:00:00:00:0A",
            alias="podwire/routing vxlan",
            attributes=Vxlan(1, local="10.89.0.11", device="eth0"),
        ),
        Link("web-3f9a01", "veth", 1450, alias="shop/web-7f 3f9a", peer="eth0", peer_netns="/run/x/pod-1"),
        Link("eth0", up=False, group=4),
        Link("br0", "bridge"),
        Link("lan0", "macvlan", device="eth0", mode="bridge", master="br0", hairpin=True, locked=True),
    ),
    addresses=(Address("podwire.1", "10.244.0.0/32"), Address("podwire.1", "FD00::1/64", nodad=False)),
    routes=(
        Route("10.244.1.0/24", via="10.244.1.0", link="podwire.1", onlink=True, mtu=1400, proto=113),
        Route(
            "10.245.1.0/24",
            via="10.245.1.1",
            link="gnv1",
            onlink=True,
            encap="ip",
            tunnel_id=7,
            tunnel_dst="10.89.0.12",
            tunnel_ttl=64,
        ),
        Route("0.0.0.0/0", via="10.89.0.254", link="eth0"),
        Route("default", via="fe80::1", link="eth0", metric=1024),
        Route("10.96.0.0/16", kind="blackhole", table=1000),
    ),
    neighbours=(
        Neighbour("podwire.1", "10.244.1.0", "02:00:00:00:00:0B"),
        Neighbour("eth0", "10.89.0.99", proxy=True),
    ),
    fdb=(Fdb("podwire.1", "02:00:00:00:00:0b", "10.89.0.12"), Fdb("lan0", "02:00:00:00:00:0c", bridge=True)),
    rules=(
        FibRule(100, src="10.244.0.0/24", table=77, mark=0x4000, mask=0x4000),
        FibRule(9, dst="fd00::/8", ipproto="tcp", dport="80-90", table=3),
    ),
    sysctls=(Sysctl("net/ipv4/conf/podwire.1/rp_filter", "0"), Sysctl("net/ipv4/tcp_rmem", "1 2 3")),
)

TEXT = """\
link br0 up type bridge
link eth0 group 4 down
link lan0 master br0 hairpin locked up type macvlan link eth0 mode bridge
link podwire.1 mtu 1450 address 02:00:00:00:00:0a alias "podwire/routing vxlan" up type vxlan id 1 \
local 10.89.0.11 dev eth0 dstport 8472 nolearning
link web-3f9a01 mtu 1450 alias "shop/web-7f 3f9a" up type veth peer eth0 netns /run/x/pod-1
address 10.244.0.0/32 dev podwire.1
address fd00::1/64 dev podwire.1 dad
route 10.244.1.0/24 via 10.244.1.0 dev podwire.1 onlink mtu 1400 proto 113
route 10.245.1.0/24 encap ip id 7 dst 10.89.0.12 ttl 64 via 10.245.1.1 dev gnv1 onlink
route 10.96.0.0/16 type blackhole table 1000
route ::/0 via fe80::1 dev eth0
route default via 10.89.0.254 dev eth0
neighbour 10.89.0.99 dev eth0 proxy
neighbour 10.244.1.0 lladdr 02:00:00:00:00:0b dev podwire.1
fdb 02:00:00:00:00:0c dev lan0 master
fdb 02:00:00:00:00:0b dev podwire.1 dst 10.89.0.12
rule 9 -6 to fd00::/8 ipproto tcp dport 80-90 table 3
rule 100 from 10.244.0.0/24 fwmark 0x4000 mask 0x4000 table 77
sysctl net/ipv4/conf/podwire.1/rp_filter = 0
sysctl net/ipv4/tcp_rmem = "1 2 3"
"""


def test_text_of_a_node() -> None:
    assert str(NODE) == TEXT


def test_a_keyword_may_be_a_value() -> None:
    link = Link("lan0", "macvlan", alias="type", device="type", mode="bridge")
    assert parse(str(link)).links == (link,)


def test_text_reads_back() -> None:
    assert parse(f"# a comment\n\n{TEXT}") == NODE


names = st.text("abcdefghij0123456789.-_", min_size=1, max_size=15)
macs = st.binary(min_size=6, max_size=6).map(lambda data: data.hex(":"))
ips = st.ip_addresses().map(str)
numbers = st.integers(0, 2**32 - 1)
networks = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 32)), st.tuples(st.ip_addresses(v=6), st.integers(0, 128))
).map(lambda pair: _network(*pair))


def _network(ip: object, length: int) -> str:
    return str(ipaddress.ip_network(f"{ip}/{length}", strict=False))


links = st.builds(
    Link,
    names,
    kind=st.sampled_from(["", "bridge", "dummy"]),
    mtu=st.integers(0, 65535),
    up=st.booleans(),
    mac=macs,
    alias=st.text(max_size=30),
    group=numbers,
    hairpin=st.booleans(),
    locked=st.booleans(),
)
addresses = st.builds(Address, names, ips, nodad=st.booleans(), noprefixroute=st.booleans(), proto=st.integers(0, 255))
routes = st.builds(
    Route,
    networks,
    via=st.one_of(st.just(""), ips),
    link=names,
    onlink=st.booleans(),
    mtu=st.integers(0, 9000),
    metric=numbers,
    table=st.integers(1, 2**32 - 1),
    scope=st.sampled_from(["", "global", "link", "host"]),
    kind=st.sampled_from(["unicast", "local", "blackhole", "throw"]),
).filter(lambda route: route.dst != "default" or ":" not in route.via)
neighbours = st.builds(Neighbour, names, ips, macs, permanent=st.booleans(), proxy=st.booleans())
fib_rules = st.builds(FibRule, numbers, src=networks, mark=numbers, mask=numbers, table=numbers)
states = st.builds(
    NetworkState,
    links=st.lists(links, max_size=3, unique_by=lambda link: link.name).map(tuple),
    addresses=st.lists(addresses, max_size=3).map(tuple),
    routes=st.lists(routes, max_size=3).map(tuple),
    neighbours=st.lists(neighbours, max_size=3).map(tuple),
    fdb=st.lists(st.builds(Fdb, names, macs, ips, st.booleans()), max_size=3).map(tuple),
    rules=st.lists(
        st.builds(FibRule, numbers, src=networks, mark=numbers, mask=numbers, table=numbers), max_size=3
    ).map(tuple),
    sysctls=st.lists(st.builds(Sysctl, names, st.text(min_size=1, max_size=9)), max_size=3).map(tuple),
)


@settings(max_examples=40, deadline=None)
@given(states)
def test_any_state_reads_back(state: NetworkState) -> None:
    assert parse(str(state)) == state


@settings(max_examples=40, deadline=None)
@given(states)
def test_order_and_duplicates_do_not_count(state: NetworkState) -> None:
    assert merge((state, state)) == state
    fields = {field: tuple(reversed(getattr(state, field))) for field in state.__struct_fields__}
    assert str(NetworkState(**fields)) == str(state)


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("lnk eth0", "network state: line 2: unknown object 'lnk': expected one of link, address"),
        ("link", "expected a word after 'link'"),
        ("link a-name-that-is-too-long", "1 to 15 bytes"),
        ("link vx type vxlan dstport 1", "type vxlan needs the word 'id'"),
        ("link vx type", "expected a kind of device after 'type'"),
        ("address 10.0.0.300/8 dev eth0", "10.0.0.300/8"),
        ("route 10.0.0.1/8 dev eth0", "host bits"),
        ("route 10.0.0.0/8 encap ip6 id 7 dst 10.0.0.9", "encap ip6 with the destination 10.0.0.9"),
        ("route 10.0.0.0/8 encap ip id 7", "encap ip with the destination (none)"),
        ("route default via gateway", "'gateway' does not appear to be an IPv4 or IPv6 address"),
        ("neighbour 10.0.0.1 lladdr aa dev eth0", "'aa' is not a hardware address"),
        ("rule x", "expected a number as the priority"),
        ("sysctl a=b", "expected: sysctl PATH = VALUE"),
    ],
)
def test_a_wrong_line_is_named(line: str, output: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"# first\n{line}")
    assert output in str(caught.value)
    assert caught.value.path == "line 2"


OWNER = OwnerMark(113, "podwire/routing", ("extra0",))


@pytest.mark.parametrize(
    ("name", "alias", "ours"),
    [
        ("a", "podwire/routing", True),
        ("a", "podwire/routing vxlan", True),
        ("a", "podwire/routing/x", True),
        ("a", "podwire/routing2", False),
        ("a", "", False),
        ("a", "shop/web", False),
        ("extra0", "whatever", True),
    ],
)
def test_the_alias_marks_owned_devices(name: str, alias: str, ours: bool) -> None:
    assert OWNER.owns_link(Link(name, alias=alias)) is ours


def test_owner_stamps_what_has_no_mark() -> None:
    stamped = OWNER.stamp(NODE)
    for values in (stamped.addresses, stamped.neighbours, stamped.rules, stamped.routes):
        assert {value.proto for value in values} == {113}
    aliases = {x.name: x.alias for x in stamped.links}
    assert aliases["br0"] == "podwire/routing"
    assert aliases["eth0"] == ""
    assert aliases["web-3f9a01"] == "shop/web-7f 3f9a"


@settings(max_examples=40, deadline=None)
@given(states)
def test_stamped_states_and_shares_are_in_order(state: NetworkState) -> None:
    stamped = OWNER.stamp(state)
    for created in (stamped, OWNER.share(state), OWNER.share(stamped)):
        assert created == merge((created,)), "sorted and without duplicates"


def test_share_is_what_carries_the_mark() -> None:
    foreign = NetworkState(
        links=(Link("docker0", "bridge", alias="x"), Link("lo")),
        addresses=(Address("docker0", "172.17.0.1/16"), Address("podwire.1", "fe80::5/64", proto=3)),
        routes=(Route("10.0.0.0/8", link="docker0", proto=4),),
        neighbours=(Neighbour("podwire.1", "10.9.9.9", "02:00:00:00:00:01"),),
        fdb=(Fdb("docker0", "02:00:00:00:00:01"),),
        rules=(FibRule(1, table=5),),
        sysctls=(Sysctl("a", "b"),),
    )
    mine = OWNER.stamp(
        NetworkState(links=NODE.links[1:4:2], addresses=NODE.addresses, routes=NODE.routes, fdb=NODE.fdb)
    )
    assert "podwire.1" in {x.name for x in mine.links}
    share = OWNER.share(merge((foreign, mine)))
    assert "docker0" not in str(share)
    assert "fe80::5" not in str(share)
    assert "10.9.9.9" not in str(share)
    assert share.routes == mine.routes
    assert share.fdb == NODE.fdb[1:], "lan0 has no mark"
    assert (share.rules, share.sysctls) == ((), ())
