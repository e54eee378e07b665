"""The table that keeps pods on the bridge to their own addresses, compared whole."""

from msgspec.structs import replace
from tests.unit.cni.test_podbridge import attached

from podwire.cni.bridgeguard import plan
from podwire.state.nft_text import parse_table

WHOLE = """\
table bridge podwire-bridge {
	comment "podwire cni"
	set own4 {
		type ifname . ipv4_addr
		elements = { "PORT" . 10.244.1.2 }
	}

	set own6 {
		type ifname . ipv6_addr
		elements = { "PORT" . fd00::2 }
	}

	set ports {
		type ifname
		elements = { "PORT" }
	}

	chain sources {
		type filter hook prerouting priority -320; policy accept;
		iifname . ip saddr @own4 accept
		meta protocol ip iifname @ports counter drop
		iifname @ports icmpv6 type nd-neighbor-advert icmpv6 taddr != fe80::/10 \
iifname . icmpv6 taddr != @own6 counter drop
		iifname @ports meta protocol ip6 icmpv6 type { nd-router-advert, nd-redirect } counter drop
		iifname . ip6 saddr @own6 accept
		iifname @ports ip6 saddr != fe80::/10 ip6 saddr != :: counter drop
		iifname . arp saddr ip @own4 accept
		iifname @ports arp saddr ip != 0.0.0.0 counter drop
	}
}
"""


def test_the_table_of_a_pod_on_the_bridge() -> None:
    item = attached()
    assert plan([item]) == parse_table(WHOLE.replace("PORT", item.host_link))


def test_pods_with_devices_of_their_own_need_no_table() -> None:
    assert plan([]) is None
    assert plan([replace(attached(), bridge="")]) is None
