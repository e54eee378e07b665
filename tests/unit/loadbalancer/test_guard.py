"""The table that keeps packets to ports that no Service has from programs of the node and from routers."""

from ipaddress import ip_address

from podwire.loadbalancer.guard import guard_table
from podwire.state.nft_text import parse_table

WANT = """table inet podwire-loadbalancer {
	comment "podwire loadbalancer"
	set balanced4 {
		type ipv4_addr
		comment "addresses of load balancers"
		elements = { 192.0.2.1,
				192.0.2.2 }
	}
	set balanced6 {
		type ipv6_addr
		comment "addresses of load balancers"
		elements = { 2001:db8::1 }
	}
	chain forward {
		type filter hook forward priority 110; policy accept;
		ip daddr @balanced4 counter drop comment "no Service has the port"
		ip6 daddr @balanced6 counter drop comment "no Service has the port"
	}
	chain input {
		type filter hook input priority 110; policy accept;
		ip daddr @balanced4 meta l4proto { tcp, udp, sctp } counter drop comment "no Service has the port"
		ip6 daddr @balanced6 meta l4proto { tcp, udp, sctp } counter drop comment "no Service has the port"
	}
}"""


def test_packets_that_belong_to_no_service_are_dropped() -> None:
    table = guard_table(ip_address(text) for text in ("192.0.2.2", "2001:db8::1", "192.0.2.1"))
    assert parse_table(str(table)) == parse_table(WANT)
