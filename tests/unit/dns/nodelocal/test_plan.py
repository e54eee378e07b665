"""The rules and routes of the node's own DNS server, as text."""

import pytest

from podwire.dns.nodelocal.plan import clients_set, occupied, plan_routes, plan_table, reachable
from podwire.state.network import NetworkState
from podwire.state.route import Address

PODS = {"pw1": ("10.244.1.5", "fd44::5"), "pw2": ("10.244.1.6",)}

TABLE = """\
table ip podwire-dns {
    comment "podwire dns"
    set clients {
        type ifname . ipv4_addr
        comment "pods without egress policy"
        elements = { "pw1" . 10.244.1.5,
                 "pw2" . 10.244.1.6 }
    }

    set connections {
        type ipv4_addr . inet_service
        size 65535
        flags dynamic,timeout
    }

    chain connections {
        type filter hook prerouting priority raw; policy accept;
        ip daddr 10.96.0.10 tcp dport 53 tcp flags & fin,syn,rst,ack != syn ip saddr . tcp sport @connections \
update @connections { ip saddr . tcp sport timeout 2m } notrack
        ip daddr 10.96.0.10 tcp dport 53 tcp flags & fin,syn,rst,ack == syn iifname . ip saddr @clients \
socket transparent 1 counter packets 0 bytes 0 update @connections { ip saddr . tcp sport timeout 2m } notrack accept
        ip daddr 10.96.0.10 tcp dport 53 tcp flags & fin,syn,rst,ack == syn \
delete @connections { ip saddr . tcp sport }
    }

    chain queries {
        type filter hook prerouting priority raw; policy accept;
        ip daddr 10.96.0.10 udp dport 53 iifname . ip saddr @clients socket transparent 1 \
counter packets 0 bytes 0 notrack
    }

    chain replies {
        type filter hook output priority raw; policy accept;
        ip saddr 10.96.0.10 udp sport 53 notrack
        ip saddr 10.96.0.10 tcp sport 53 notrack
    }
}"""


def test_table_leads_queries_to_a_transparent_socket() -> None:
    assert str(plan_table("10.96.0.10", PODS)).strip().expandtabs(4) == TABLE


def test_each_family_has_its_own_clients() -> None:
    table = plan_table("fd96::a", PODS)
    assert table.family == "ip6"
    assert table.sets[0] == clients_set("ip6", {"pw1": ("fd44::5",)})


def test_routes_prefer_the_address_of_the_node() -> None:
    routes = plan_routes(("10.96.0.10", "fd96::a"), ("192.0.2.1", "192.0.2.9", "2001:db8::1"))
    assert [str(route) for route in routes.routes] == [
        "route 10.96.0.10/32 type local dev lo src 192.0.2.1 table 255",
        "route fd96::a/128 type local dev lo src 2001:db8::1 table 255",
    ]


@pytest.mark.parametrize(
    ("cidr", "expected"), [("10.96.0.10/32", ("10.96.0.10", "kube-ipvs0")), ("10.96.0.11/32", ("", ""))]
)
def test_address_on_a_device_is_found(cidr: str, expected: tuple[str, str]) -> None:
    state = NetworkState(addresses=(Address(link="kube-ipvs0", cidr=cidr),))
    assert occupied(("10.96.0.10",), state) == expected


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (("10.0.0.1", "fd00::1"), ("10.96.0.10", "fd96::a")),
        (("10.0.0.1",), ("10.96.0.10",)),
        (("fd00::1",), ("fd96::a",)),
    ],
)
def test_node_serves_the_families_of_its_own_addresses(sources: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """Otherwise its processes would ask the replicas from the Service address."""
    assert reachable(("10.96.0.10", "fd96::a"), sources) == expected
