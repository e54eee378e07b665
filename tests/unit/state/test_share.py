"""Documents of shares: what is printed parses back, and what is wrong is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ConfigError
from podwire.state import network
from podwire.state.ipset import IpSet
from podwire.state.ipvs import VirtualServer
from podwire.state.nft import AbsentTable
from podwire.state.nft_text import parse_table
from podwire.state.share import Share, parse, render

TEXT = """\
part routing protocol 113 alias podwire/routing
link podwire-vxlan mtu 1450 alias "podwire/routing vxlan" up type vxlan id 4096 dstport 8472 nolearning
route 10.244.2.0/24 via 10.244.2.1 dev podwire-vxlan onlink proto 113
sysctl net/ipv4/ip_forward = 1
table inet podwire-masquerade {
	comment "podwire routing"
	set pods4 {
		type ipv4_addr
		flags interval
		elements = { 10.244.0.0/16,
\t\t\t     10.245.0.0/16 }
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr @pods4 masquerade comment "part of it"
	}
}
no table inet podwire-routing

part cni protocol 112 pod shop/web netns /run/netns/web
address 10.244.1.2/32 dev eth0 proto 112

part proxy protocol 115 alias podwire/proxy
link kube-ipvs0 alias podwire/proxy down type dummy
create KUBE-IPVS-IPS hash:ip family inet hashsize 1024 maxelem 65536
add KUBE-IPVS-IPS 10.96.0.10
-A -t 10.96.0.10:80 -s rr -b flag-3
-a -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 1

part proxy note "Services are not programmed yet"

end
"""


def test_a_document_prints_as_it_reads() -> None:
    shares = parse(TEXT.splitlines(keepends=True))
    assert "".join(f"{line}\n" for line in render(shares)) == TEXT
    routing, pod, balanced, proxy = shares
    assert [share.title for share in shares] == ["routing", "cni shop/web", "proxy", "proxy"]
    assert routing.owner is not None and routing.owner.alias_prefix == "podwire/routing"
    assert proxy.owner is None and proxy.note == "Services are not programmed yet"
    assert routing.values(AbsentTable) == (AbsentTable("inet", "podwire-routing"),)
    assert [item.name for item in balanced.values(IpSet)] == ["KUBE-IPVS-IPS"]
    assert [str(server.key) for server in balanced.values(VirtualServer)] == ["-t 10.96.0.10:80"]
    assert ("proxy: set KUBE-IPVS-IPS", "add KUBE-IPVS-IPS 10.96.0.10") in balanced.located()
    assert ("proxy: ipvs", "-A -t 10.96.0.10:80 -s rr -b flag-3") in balanced.located()
    assert str(pod).splitlines() == TEXT.split("\n\n")[2].splitlines()


def test_lines_say_where_they_belong() -> None:
    routing = parse(TEXT.splitlines())[0]
    result = list(routing.located())
    assert ("routing", "sysctl net/ipv4/ip_forward = 1") in result
    assert ("routing: table inet podwire-masquerade", "10.245.0.0/16 }") in result


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (TEXT.removesuffix("end\n"), "breaks off"),
        ("", "breaks off"),
        ("route 10.0.0.0/8 dev eth0\npart cni\nend\n", "begins with a line `part"),
        ("part cni colour blue\nend\n", "colour"),
        ("part cni protocol many\nend\n", "number"),
        ("part cni pod a\nrout 10.0.0.0/8\nend\n", "part cni a: line 1"),
        ("part proxy\ntable ip x {\nend\n", "no line `}`"),
        ("part proxy\ntable ipx x {\n}\nend\n", "table FAMILY NAME"),
        ("part proxy\nno table x\nend\n", "no table FAMILY NAME"),
        ("part proxy\nadd a 10.0.0.1\nend\n", "set 'a' was not created"),
        ("part proxy\n-a -t 10.0.0.1:80 -r 10.0.0.2:80 -m -w 1\nend\n", "not a line of ipvsadm"),
    ],
)
def test_an_error_names_the_part_and_the_line(text: str, arguments: str) -> None:
    with pytest.raises(ConfigError, match=arguments) as caught:
        parse(text.splitlines(), "saved.txt")
    assert "saved.txt" in str(caught.value)


WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@given(st.sampled_from(["cni", "routing"]), st.integers(0, 255), WORDS, WORDS, WORDS)
def test_any_head_reads_back(part: str, protocol: int, alias: str, netns: str, note: str) -> None:
    state = network.parse("route 10.0.0.0/8 dev eth0 proto 4\nneighbour 10.0.0.1 lladdr 02:00:00:00:00:01 dev eth0\n")
    table = parse_table("table ip x {\n\tset s {\n\t\ttype ipv4_addr\n\t\telements = { 10.0.0.1, 10.0.0.2 }\n\t}\n}")
    share = Share(part=part, protocol=protocol, alias=alias, netns=netns, note=note, desired=(state, table))
    assert parse(render([share, share])) == [share, share]
