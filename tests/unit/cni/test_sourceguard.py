"""The table that keeps pods with devices of their own to their IPv6 addresses, compared whole."""

from msgspec.structs import replace
from tests.unit.cni.test_podbridge import attached

from podwire.cni.sourceguard import plan
from podwire.state.nft_text import parse_table

WHOLE = """\
table ip6 podwire-sources {
	comment "podwire cni"
	set devices {
		type ifname
		elements = { "DEVICE" }
	}

	set own {
		type ifname . ipv6_addr
		elements = { "DEVICE" . fd00::2 }
	}

	chain sources {
		type filter hook prerouting priority -320; policy accept;
		iifname . ip6 saddr @own accept
		iifname @devices ip6 saddr != fe80::/10 ip6 saddr != :: counter drop
	}
}
"""


def test_the_table_of_a_pod_of_two_families() -> None:
    item = replace(attached(), bridge="")
    assert plan([item]) == parse_table(WHOLE.replace("DEVICE", item.host_link))


def test_bridged_pods_and_pods_without_ipv6_need_no_table() -> None:
    assert plan([]) is None
    assert plan([attached()]) is None
    assert plan([replace(attached(), bridge="", addresses=("10.244.1.2",))]) is None
