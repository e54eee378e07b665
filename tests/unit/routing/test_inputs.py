"""Firewalls of other programs that drop packets to ports of the node."""

from collections.abc import Sequence
from ipaddress import ip_network

import pytest

from podwire.routing.inputs import NeededPort, input_blockers
from podwire.state.firewalls import FirewallChain, ForeignChain

DNS = NeededPort(port=53, protocols=("udp", "tcp"), user="DNS", networks=(ip_network("10.244.0.0/16"),))
TUNNEL = NeededPort(port=8472, protocols=("udp",), user="vxlan")
UNTRACKED_ALONE = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"


def saved(rules: Sequence[str], *needs: NeededPort, policy: str = "DROP", family: str = "ip") -> list[str]:
    chain = FirewallChain(policy, {"INPUT": rules}, "INPUT")
    return list(input_blockers([(family, chain)], (), needs))


def listed(lines: str, *needs: NeededPort, **more: str) -> list[str]:
    chain = ForeignChain(**{"family": "inet", "table": "host", "name": "in", "policy": "drop", "text": lines} | more)
    return list(input_blockers((), [chain], needs))


def test_iptables_without_a_rule_for_the_port_are_reported() -> None:
    assert saved([UNTRACKED_ALONE, "-i lo -j ACCEPT"], DNS) == [
        "iptables' chain INPUT (ip) drops packets of pods to udp and tcp port 53, which DNS needs: accept them, with "
        "iptables -I INPUT -s 10.244.0.0/16 -p udp --dport 53 -j ACCEPT for example"
    ]
    assert saved(["-p tcp -m tcp --dport 53 -j ACCEPT"], DNS)[0].count(" and ") == 0, "TCP passes"
    (tunnel,) = saved(["-p tcp -m tcp --dport 8472 -j ACCEPT"], TUNNEL)
    assert "of other nodes to udp port 8472" in tunnel


@pytest.mark.parametrize(
    "rule",
    [
        "-p udp -m udp --dport 8472 -j ACCEPT",
        "-p udp -m multiport --dports 53,8000:9000 -j ACCEPT",
        "-p udp -m conntrack --ctstate NEW,UNTRACKED -m udp --dport 8472 -j ACCEPT",
        "-s 192.0.2.0/24 -j ACCEPT",
        "-i eth1 -j ACCEPT",
        "-p udp -j ACCEPT",
    ],
)
def test_a_rule_that_seems_to_accept_the_packets_counts(rule: str) -> None:
    assert saved([rule], TUNNEL) == []


@pytest.mark.parametrize(
    "rule",
    [
        "-p udp -m udp --dport 8472 -j DROP",
        "-p udp -m udp --dport 4789 -j ACCEPT",
        "-p udp -m conntrack --ctstate NEW -m udp --dport 8472 -j ACCEPT",
        "-p icmp -j ACCEPT",
        "-i lo -j ACCEPT",
    ],
)
def test_other_rules_accept_no_packets_of_the_tunnel(rule: str) -> None:
    assert len(saved([rule], TUNNEL)) == 1


def test_rules_of_chains_count_where_packets_reach_them() -> None:
    chains = {"INPUT": ["-j ufw"], "ufw": ["-j deeper"], "deeper": ["-p udp --dport 8472 -j ACCEPT", "-j ufw"]}
    reached, apart = FirewallChain("DROP", chains, "INPUT"), FirewallChain("DROP", chains | {"ufw": []}, "INPUT")
    blocked = [list(input_blockers([("ip", chain)], (), [TUNNEL])) for chain in (reached, apart)]
    assert [len(texts) for texts in blocked] == [0, 1]


def test_only_sources_of_pods_open_the_port_of_dns() -> None:
    assert len(saved(["-s 192.0.2.0/24 -j ACCEPT"], DNS)) == 1
    assert saved(["-s 10.0.0.0/8 -j ACCEPT"], DNS) == []


def test_open_firewalls_and_other_families_are_left_out() -> None:
    assert saved([], DNS, TUNNEL, policy="ACCEPT") == []
    assert saved([], DNS, TUNNEL, family="ip6") == []
    assert listed("", DNS, policy="accept") == []
    assert listed("", DNS, family="ip6") == []


@pytest.mark.parametrize(
    ("lines", "blocked"),
    [
        ("ct state { established, related } accept", True),
        ("udp dport 53 accept\ntcp dport 53 accept", False),
        ("th dport { 22, 53 } accept", False),
        ("udp dport != 53 accept", True),
        ("ct state new udp dport { 53 } accept", True),
        ("ct state { new, untracked } th dport 50-60 accept", False),
        ("udp dport @open accept\ntcp dport @open accept", False),
        ("ip saddr 10.244.0.0/16 accept", False),
        ("ip saddr 192.0.2.0/24 accept", True),
        ("ip saddr @trusted accept", False),
        ('iifname "lo" accept', True),
        ('iifname "podwire-pods" accept', False),
        ("icmp type echo-request accept", True),
    ],
)
def test_rules_of_nftables_are_judged_by_port_and_source(lines: str, blocked: bool) -> None:
    assert bool(listed(lines, DNS)) == blocked


def test_firewalld_gets_its_own_commands() -> None:
    chain = {"table": "firewalld", "name": "filter_INPUT", "policy": "accept", "last_rule": "reject with icmpx 1"}
    assert listed("", DNS, **chain)[0].endswith(
        "firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16; firewall-cmd --reload"
    )
    assert listed("", TUNNEL, **chain)[0].endswith(
        "firewall-cmd --permanent --add-port=8472/udp; firewall-cmd --reload"
    )
