"""The constant chains, with each way to tell pods and node ports."""

import pytest

from podwire.proxy.dataplanes.iptables.layout import (
    CLUSTER_IPS,
    LOOPBACK,
    NODE_PORTS,
    REFUSED,
    SERVICES,
    SHARED,
    IptablesLayout,
)
from podwire.proxy.servicemap import IptablesSettings, NodeFacts

FACTS = NodeFacts(
    name="n1",
    addresses=("192.168.99.1", "fd99::1"),
    pod_cidrs=("10.180.0.0/16", "fd18::/16"),
    service_cidrs=("10.96.0.0/16", "fd96::/112"),
)
LAST = '-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"'


def test_the_mark_asks_for_masquerade_and_is_taken_off() -> None:
    chains = IptablesLayout("ip", NodeFacts(name="n1", masquerade_bit=15)).chains()
    assert chains["nat", "KUBE-MARK-MASQ"] == ("-j MARK --set-xmark 0x8000/0x8000",)
    assert chains["nat", "KUBE-POSTROUTING"] == (
        "-m mark ! --mark 0x8000/0x8000 -j RETURN",
        "-j MARK --set-xmark 0x8000/0x0",
        '-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
    )


def test_packets_out_of_window_are_dropped_unless_tracking_is_liberal() -> None:
    drop = "-m conntrack --ctstate INVALID -j DROP"
    assert IptablesLayout("ip", FACTS).chains()["filter", "KUBE-FORWARD"][0] == drop
    assert drop not in IptablesLayout("ip", FACTS, liberal=True).chains()["filter", "KUBE-FORWARD"]


def test_node_ports_answer_on_the_addresses_of_the_node() -> None:
    assert IptablesLayout("ip", FACTS).tail(SERVICES) == (f"-d 192.168.99.1/32 {LAST} -j KUBE-NODEPORTS",)
    assert IptablesLayout("ip6", FACTS).tail(SERVICES) == (f"-d fd99::1/128 {LAST} -j KUBE-NODEPORTS",)


@pytest.mark.parametrize(
    ("ranges", "family", "matches"),
    [
        (("192.168.0.0/16",), "ip", ["-d 192.168.0.0/16"]),
        (("0.0.0.0/0",), "ip", ["! -d 127.0.0.0/8"]),
        (("::/0",), "ip6", ["! -d ::1/128"]),
        (("127.0.0.0/8", "10.0.0.0/8"), "ip", ["-d 10.0.0.0/8"]),
        (("126.0.0.0/7",), "ip", ["-d 126.0.0.0/8"]),
        (("10.0.0.0/8",), "ip6", []),
    ],
)
def test_node_ports_in_ranges_leave_loopback_out(ranges: tuple[str, ...], family: str, matches: list[str]) -> None:
    facts = NodeFacts(name="n1", node_port_ranges=ranges, iptables=IptablesSettings(localhost_node_ports=False))
    expected = tuple(f"{match} {LAST} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS" for match in matches)
    assert IptablesLayout(family, facts).tail(SERVICES) == expected


@pytest.mark.parametrize(
    ("ranges", "matches"),
    [
        (("0.0.0.0/0",), [""]),
        (("127.0.0.0/8", "10.0.0.0/8"), ["-d 10.0.0.0/8 ", "-d 127.0.0.0/8 "]),
        (("127.0.0.1/32",), ["-d 127.0.0.1/32 "]),
    ],
)
def test_node_ports_answer_on_loopback_where_the_ranges_have_it(ranges: tuple[str, ...], matches: list[str]) -> None:
    layout = IptablesLayout("ip", NodeFacts(name="n1", node_port_ranges=(*ranges, "::/0")))
    expected = tuple(f"{match}{LAST} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS" for match in matches)
    assert layout.tail(SERVICES) == expected
    (guard,) = layout.chains()["filter", LOOPBACK]
    assert guard.startswith("! -s 127.0.0.0/8 -d 127.0.0.0/8 ") and guard.endswith("DNAT -j DROP")
    assert {("INPUT", f"-j {LOOPBACK}"), ("OUTPUT", f"-j {LOOPBACK}")} <= set(layout.jumps()["filter"])
    assert ("filter", LOOPBACK) not in IptablesLayout("ip6", layout.facts).chains()


def test_out_of_window_segments_do_not_reach_the_node() -> None:
    (rule,) = IptablesLayout("ip", FACTS).chains()["filter", "KUBE-INVALID"]
    assert rule == ("-s 10.180.0.0/16 -p tcp -m conntrack --ctstate INVALID -m tcp --tcp-flags SYN,RST NONE -j DROP")
    (rule,) = IptablesLayout("ip", NodeFacts(name="n1", pod_interface="veth*"), counted=True).chains()[
        "filter", "KUBE-INVALID"
    ]
    assert rule.startswith("-i veth+ -p tcp ") and "--nfacct-name ct_state_invalid_dropped_pkts" in rule
    for layout in (IptablesLayout("ip", FACTS, liberal=True), IptablesLayout("ip", NodeFacts(name="n1"))):
        assert ("filter", "KUBE-INVALID") not in layout.chains()


def test_unmatched_packets_are_checked_only_in_known_ranges() -> None:
    early, jump = IptablesLayout("ip", FACTS).tail(REFUSED)
    assert early.startswith("-d 10.96.0.0/16 ") and early.endswith(" -m conntrack --ctstatus CONFIRMED -j DROP")
    assert jump.startswith("-d 10.96.0.0/16 ") and jump.endswith(" -j KUBE-CLUSTER-IPS")
    assert IptablesLayout("ip", NodeFacts(name="n1")).tail(REFUSED) == ()
    assert IptablesLayout("ip", FACTS).tail(CLUSTER_IPS)[0].endswith("-j DROP")


def test_tcp_is_refused_by_reset() -> None:
    for family, icmp in (("ip", "icmp-port-unreachable"), ("ip6", "icmp6-port-unreachable")):
        assert IptablesLayout(family, FACTS).chains()["filter", "KUBE-REFUSE"] == (
            "-p tcp -j REJECT --reject-with tcp-reset",
            f"-j REJECT --reject-with {icmp}",
        )


def test_several_pod_ranges_share_a_chain() -> None:
    facts = NodeFacts(name="n1", pod_cidrs=("10.1.0.0/16", "10.2.0.0/16", "fd18::/16"))
    chain = ("nat", "KUBE-MARK-OUTSIDE")
    assert IptablesLayout("ip", facts).chains()[chain] == (
        "-s 10.1.0.0/16 -j RETURN",
        "-s 10.2.0.0/16 -j RETURN",
        "-j KUBE-MARK-MASQ",
    )
    assert chain not in IptablesLayout("ip6", facts).chains()


def test_every_jump_leads_to_a_chain() -> None:
    layout = IptablesLayout("ip", FACTS)
    for table, jumps in layout.jumps().items():
        there = {name for of, name in (*layout.chains(), *SHARED) if of == table}
        assert {rule.rpartition(" -j ")[2] for _, rule in jumps} <= there


def test_last_rules_are_known_by_their_text() -> None:
    """A text that the last rules of a chain have, and no other ones."""
    layout = IptablesLayout("ip", FACTS)
    for key in (SERVICES, CLUSTER_IPS):
        text = layout.last(*key)
        assert text and layout.tail(key) and all(text in rule for rule in layout.tail(key))
    assert layout.last(*NODE_PORTS) == "" and layout.tail(NODE_PORTS) == ()
    assert layout.last(*REFUSED) is None and layout.last("nat", "KUBE-MARK-MASQ") is None
