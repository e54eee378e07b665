"""Differences as signed lines: of objects of ip(8) and of tables."""

import pytest

from podwire.state import ipset, ipvs, network
from podwire.state.drift import (
    Difference,
    compare_ipset,
    compare_network,
    compare_servers,
    compare_table,
    render,
    surplus_table,
)
from podwire.state.kinds import KINDS
from podwire.state.network import OwnerMark
from podwire.state.nft_text import parse_table
from podwire.state.share import Share

WANTED = """\
link tun0 mtu 1450 alias "podwire/routing vxlan" up type vxlan id 1
route 10.244.2.0/24 via 10.244.2.1 dev tun0 onlink proto 113
neighbour 10.244.2.1 lladdr 02:00:00:00:00:02 dev tun0 proto 113
sysctl net/ipv4/ip_forward = 1
"""


def compare(have: str, want: str = WANTED) -> list[str]:
    owner = OwnerMark(113, "podwire/routing")
    return list(render(compare_network("routing", network.parse(have), network.parse(want), owner)))


def test_an_equal_kernel_gives_nothing() -> None:
    assert compare(WANTED) == []


@pytest.mark.parametrize(
    "foreign",
    [
        "route 203.0.113.0/24 dev tun0 proto 3",
        "neighbour 10.244.2.9 lladdr 02:00:00:00:00:09 dev tun0",
        "link docker0 up type bridge",
        "address 192.0.2.1/24 dev eth0",
        "sysctl net/ipv4/tcp_sack = 1",
    ],
)
def test_objects_of_other_owners_are_left_out(foreign: str) -> None:
    assert compare(f"{WANTED}{foreign}\n") == []


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("route 10.244.2.0/24 via 10.244.2.1 dev tun0 onlink proto 113\n", "",
         ["+route 10.244.2.0/24 via 10.244.2.1 dev tun0 onlink proto 113"]),
        ("via 10.244.2.1 dev", "via 10.244.2.7 dev",
         ["-route 10.244.2.0/24 via 10.244.2.7 dev tun0 onlink proto 113",
          "+route 10.244.2.0/24 via 10.244.2.1 dev tun0 onlink proto 113"]),
        ("ip_forward = 1", "ip_forward = 0",
         ["-sysctl net/ipv4/ip_forward = 0", "+sysctl net/ipv4/ip_forward = 1"]),
        ("mtu 1450", "index 7 mtu 1400",
         ['-link tun0 mtu 1400 alias "podwire/routing vxlan" up type vxlan id 1 dstport 8472 nolearning',
          '+link tun0 mtu 1450 alias "podwire/routing vxlan" up type vxlan id 1 dstport 8472 nolearning']),
        ("02:00:00:00:00:02", "02:00:00:00:00:03",
         ["-neighbour 10.244.2.1 lladdr 02:00:00:00:00:03 dev tun0 proto 113",
          "+neighbour 10.244.2.1 lladdr 02:00:00:00:00:02 dev tun0 proto 113"]),
        ("sysctl", "route 10.244.9.0/24 via 10.244.9.1 dev tun0 onlink proto 113\nsysctl",
         ["-route 10.244.9.0/24 via 10.244.9.1 dev tun0 onlink proto 113"]),
    ],
)  # fmt: skip
def test_each_change_has_its_lines(old: str, new: str, lines: list[str]) -> None:
    assert compare(WANTED.replace(old, new)) == ["@@ routing @@", *lines]


def test_a_device_of_another_owner_is_reported() -> None:
    (head, line, *_) = compare("link tun0 up type dummy\nsysctl net/ipv4/ip_forward = 1\n")
    assert head == "@@ routing @@"
    assert line.startswith("+link tun0") and "another owner" in line


TABLE = """\
table ip podwire-proxy {
	comment "podwire: Services"
	map services {
		type ipv4_addr . inet_service : verdict
		elements = { 10.96.0.1 . 80 : goto a,
\t\t\t     10.96.0.2 . 80 : goto a }
	}

	set seen {
		type ipv4_addr
		size 100
		flags dynamic
	}

	chain a {
		counter packets 0 bytes 0
		ip saddr 10.0.0.1 drop
		accept
	}

	chain dispatch {
		type nat hook prerouting priority dstnat; policy accept;
		jump a
	}
}"""


def tables(have: str) -> list[str]:
    return list(render(compare_table("proxy", parse_table(have), parse_table(TABLE))))


def test_counters_and_dynamic_elements_are_no_difference() -> None:
    have = TABLE.replace("packets 0 bytes 0", "packets 9 bytes 700")
    assert tables(have.replace("flags dynamic", "flags dynamic\n\t\telements = { 10.1.1.1 }")) == []


@pytest.mark.parametrize(
    ("old", "new", "place", "lines"),
    [
        ("10.96.0.2 . 80 : goto a", "10.96.0.2 . 80 : drop", "map services",
         ["-10.96.0.2 . 80 : drop", "+10.96.0.2 . 80 : goto a"]),
        ("10.96.0.2", "10.96.0.3", "map services", ["+10.96.0.2 . 80 : goto a", "-10.96.0.3 . 80 : goto a"]),
        ("ip saddr 10.0.0.1 drop\n\t\taccept", "accept\n\t\treturn", "chain a",
         ["+ip saddr 10.0.0.1 drop", "-return"]),
        ("size 100", "size 50", "set seen", ["-size 50", "+size 100"]),
        ("priority dstnat", "priority raw", "chain dispatch",
         ["-type nat hook prerouting priority raw; policy accept;",
          "+type nat hook prerouting priority dstnat; policy accept;"]),
        ("\tset seen", "\tset more {\n\t\ttype mark\n\t}\n\n\tset seen", "set more",
         ["-set more {", "-type mark", "-}"]),
        ("\tset seen {\n\t\ttype ipv4_addr\n\t\tsize 100\n\t\tflags dynamic\n\t}\n\n", "", "set seen",
         ["+set seen {", "+type ipv4_addr", "+size 100", "+flags dynamic", "+}"]),
        ("\tchain a", "\tchain b {\n\t\tdrop\n\t}\n\n\tchain a", "chain b", ["-chain b {", "-drop", "-}"]),
    ],
)  # fmt: skip
def test_each_change_of_a_table_has_its_lines(old: str, new: str, place: str, lines: list[str]) -> None:
    assert old in TABLE
    assert tables(TABLE.replace(old, new)) == [f"@@ proxy: table ip podwire-proxy, {place} @@", *lines]


def test_a_changed_comment_of_the_table() -> None:
    result = tables(TABLE.replace("podwire: Services", "mine"))
    assert result == ["@@ proxy: table ip podwire-proxy @@", '-comment "mine"', '+comment "podwire: Services"']


def test_whole_tables() -> None:
    want = parse_table(TABLE)
    lacking = list(compare_table("proxy", None, want))
    assert [item.text for item in lacking] == str(want).splitlines() and {item.sign for item in lacking} == {"+"}
    surplus = list(surplus_table("proxy", want))
    assert [item.text for item in surplus] == str(want).splitlines() and {item.sign for item in surplus} == {"-"}


def test_a_namespace_that_is_gone_lacks_everything() -> None:
    share = Share(part="cni", pod="shop/web", protocol=112, desired=(network.parse("link lo up\n"),))
    assert list(share.missing()) == [Difference("cni shop/web (its namespace is gone)", "+", "link lo up")]


def test_a_share_of_tables_alone_has_no_objects_to_compare() -> None:
    assert Share(part="proxy").mark(KINDS["network"]) is None


SETS = """\
create fronts hash:ip,port family inet hashsize 1024 maxelem 65536
add fronts 10.96.0.10,tcp:80
add fronts 10.96.0.11,tcp:80
"""


def test_sets_element_by_element() -> None:
    (want,) = ipset.parse(SETS.splitlines())
    (have,) = ipset.parse(SETS.replace("10.96.0.11", "10.96.0.12").splitlines())
    assert list(render(compare_ipset("proxy", want, want))) == []
    assert list(render(compare_ipset("proxy", have, want))) == [
        "@@ proxy: set fronts @@",
        "+add fronts 10.96.0.11,tcp:80",
        "-add fronts 10.96.0.12,tcp:80",
    ]
    assert [item.text for item in compare_ipset("proxy", None, want)] == SETS.splitlines()
    (other,) = ipset.parse(SETS.replace("65536", "100").splitlines())
    assert [item.sign for item in compare_ipset("proxy", other, want)] == ["-", "+", "+", "+"]


SERVERS = """\
-A -t 10.96.0.10:80 -s rr -b flag-3
-a -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 1
"""


def balanced(have: str, want: str = SERVERS) -> list[str]:
    return list(render(compare_servers("proxy", ipvs.parse(have.splitlines()), ipvs.parse(want.splitlines()))))


def test_virtual_servers() -> None:
    leaving = "-a -t 10.96.0.10:80 -r 10.180.0.9:8080 -m -w 0\n"
    assert balanced(SERVERS) == []
    assert balanced(SERVERS + leaving) == [], "its connections have not ended yet"
    assert balanced(SERVERS.splitlines()[0] + "\n" + leaving, "") == []
    assert balanced(SERVERS, "") == ["@@ proxy: ipvs @@", *(f"-{line}" for line in SERVERS.splitlines())]
    assert balanced("") == ["@@ proxy: ipvs @@", *(f"+{line}" for line in SERVERS.splitlines())]
    assert balanced(SERVERS.replace("-w 1", "-w 0")) == [
        "@@ proxy: ipvs @@",
        "--a -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 0",
        "+-a -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 1",
    ]
    assert balanced(SERVERS.replace("-s rr", "-s lc"))[1:] == [
        "--A -t 10.96.0.10:80 -s lc -b flag-3",
        "+-A -t 10.96.0.10:80 -s rr -b flag-3",
    ]
