"""Proxy entries on bridges of other plugins, as text."""

from ipaddress import ip_network

from podwire.cni.bridgedpods import bridges, plan
from podwire.state.network import parse

STATE = parse("""
link cni0 up type bridge
link docker0 up type bridge
link eth0 up
address 10.244.1.1/24 dev cni0
address 172.17.0.1/16 dev docker0
address 10.244.1.200/32 dev eth0
""")


def test_only_bridges_of_the_pod_network_count() -> None:
    assert bridges(STATE, [ip_network("10.244.1.0/24")]) == ("cni0",)
    assert bridges(STATE, [ip_network("10.244.2.0/24")]) == ()


def test_every_address_gets_an_entry_on_every_bridge() -> None:
    assert str(plan(("a", "b"), ("10.244.1.5",))).splitlines() == [
        "neighbour 10.244.1.5 dev a proxy proto 116",
        "neighbour 10.244.1.5 dev b proxy proto 116",
        "sysctl net/ipv4/neigh/a/proxy_delay = 0",
        "sysctl net/ipv4/neigh/b/proxy_delay = 0",
    ]


def test_ipv6_needs_a_switch_of_the_bridge() -> None:
    assert "sysctl net/ipv6/conf/cni0/proxy_ndp = 1" in str(plan(("cni0",), ("fd00::5",))).splitlines()
    assert plan((), ("fd00::5",)).sysctls == ()
