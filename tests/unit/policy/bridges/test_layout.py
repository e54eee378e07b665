"""The table about a bridge's frames, compared whole."""

from podwire.policy.bridges.layout import BridgePort, table
from podwire.state.nft_text import parse_table

WHOLE = """\
table bridge podwire-policy {
	comment "podwire: NetworkPolicy on bridges"
	set own4 {
		type ifname . ipv4_addr
		elements = { "veth1" . 10.0.0.1, "veth2" . 10.0.0.2 }
	}

	set own6 {
		type ifname . ipv6_addr
		elements = { "veth1" . fd00::1 }
	}

	set pods4 {
		type ipv4_addr
		elements = { 10.0.0.1, 10.0.0.2 }
	}

	set pods6 {
		type ipv6_addr
		elements = { fd00::1 }
	}

	set ports {
		type ifname
		elements = { "veth1", "veth2" }
	}

	set shut4 {
		type ifname
		elements = { "veth2" }
	}

	set shut6 {
		type ifname
	}

	chain forward {
		type filter hook forward priority -310; policy accept;
		meta protocol ip iifname @shut4 counter drop
		meta protocol ip oifname @shut4 counter drop
		meta protocol ip6 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
		meta protocol ip6 iifname @shut6 counter drop
		meta protocol ip6 oifname @shut6 counter drop
	}

	chain prerouting {
		type filter hook prerouting priority -310; policy accept;
		iifname . ip saddr @own4 accept
		ip saddr @pods4 counter drop
		meta protocol ip iifname @ports counter drop
		iifname @ports icmpv6 type nd-neighbor-advert icmpv6 taddr != fe80::/10 \
iifname . icmpv6 taddr != @own6 counter drop
		iifname @ports meta protocol ip6 icmpv6 type { nd-router-advert, nd-redirect } counter drop
		iifname . ip6 saddr @own6 accept
		ip6 saddr @pods6 counter drop
		iifname @ports ip6 saddr != fe80::/10 ip6 saddr != :: counter drop
		iifname . arp saddr ip @own4 accept
		arp saddr ip @pods4 counter drop
		iifname @ports arp saddr ip != 0.0.0.0 counter drop
	}
}
"""


def test_the_table_of_two_pods() -> None:
    ports = (
        BridgePort(name="veth1", addresses=("10.0.0.1", "fd00::1")),
        BridgePort(name="veth2", addresses=("10.0.0.2",), isolated=frozenset(("ip",))),
    )
    assert table(ports) == parse_table(WHOLE)


def test_without_pods_there_is_none() -> None:
    assert table(()) is None
