"""The addresses at which node ports answer."""

import pytest

from podwire.proxy.nodeports import localhost_node_ports, parse_ranges, within, without_loopback
from podwire.proxy.servicemap import IptablesSettings, NodeFacts


@pytest.mark.parametrize(
    ("texts", "ranges"),
    [
        (["primary"], ()),
        (["192.168.0.0/24"], ("192.168.0.0/24", "::/0")),
        (["fd00::/64"], ("fd00::/64", "0.0.0.0/0")),
        (["0.0.0.0/0", "::/0", "0.0.0.0/0"], ("0.0.0.0/0", "::/0")),
        ([], ("0.0.0.0/0", "::/0")),
    ],
)
def test_ranges(texts: list[str], ranges: tuple[str, ...]) -> None:
    assert parse_ranges(texts) == ranges


@pytest.mark.parametrize(("texts", "arguments"), [
    (["primary", "10.0.0.0/8"], "must be the only entry"), (["10.0.0.1/8"], "host bits"), (["all"], "'all'"),
])  # fmt: skip
def test_a_wrong_range_is_named(texts: list[str], arguments: str) -> None:
    with pytest.raises(ValueError, match=arguments):
        parse_ranges(texts)


def test_addresses_within() -> None:
    own = ["127.0.0.1", "192.168.0.3", "10.0.0.3", "192.168.0.3", "::1", "fe80::1", "fd00::3"]
    assert within(own, parse_ranges(["192.168.0.0/24"])) == ("192.168.0.3", "fd00::3")
    assert within(own, parse_ranges([])) == ("192.168.0.3", "10.0.0.3", "fd00::3")


@pytest.mark.parametrize(
    ("ranges", "answers"),
    [((), False), (("10.0.0.0/8", "::/0"), False), (("0.0.0.0/0",), True), (("127.0.0.9/32",), True)],
)
def test_loopback_has_to_be_asked_for(ranges: tuple[str, ...], answers: bool) -> None:
    facts = NodeFacts(name="n1", node_port_ranges=ranges)
    assert localhost_node_ports(facts) == answers
    off = NodeFacts(name="n1", node_port_ranges=ranges, iptables=IptablesSettings(localhost_node_ports=False))
    assert not localhost_node_ports(off)


@pytest.mark.parametrize(("ranges", "left"), [
    (("10.0.0.0/9", "fd00::/8", "10.128.0.0/9"), ("10.0.0.0/8",)),
    (("127.0.0.0/8", "127.1.0.0/16"), ()),
    (("126.0.0.0/7",), ("126.0.0.0/8",)),
    (("::/0",), ()),
])  # fmt: skip
def test_ranges_without_loopback(ranges: tuple[str, ...], left: tuple[str, ...]) -> None:
    assert without_loopback(ranges, "ip") == left


def test_of_ipv6_loopback_is_one_address() -> None:
    assert without_loopback(("::/126",), "ip6") == ("::/128", "::2/127")
