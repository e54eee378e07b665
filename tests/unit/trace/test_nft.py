"""The tracer's own rules: order of hooks and chains, verdicts, choices."""

import pytest

from podwire.errors import ProtocolError
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_rules import Opaque, Rule
from podwire.state.nft_text import parse_rule
from podwire.trace.nft import Tracer
from podwire.trace.packet import Machine, Packet

MACHINE = Machine(addresses=frozenset(("192.0.2.1",)))
PACKET = Packet(source="10.0.0.1", destination="10.0.0.2", destination_port=80, input="eth0")


def base(hook: str, *rules: str, priority: int = 0, policy: str = "accept", kind: str = "filter") -> Chain:
    return Chain(
        name=f"{hook}{priority}",
        type=kind,
        hook=hook,
        priority=priority,
        policy=policy,
        rules=tuple(parse_rule(rule) for rule in rules),
    )


def verdict(packet: Packet, *chains: Chain, sets: tuple[Set, ...] = ()) -> str:
    return Tracer([Table(family="inet", name="t", chains=chains, sets=sets)], MACHINE).trace(packet).verdict


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("ip saddr 10.0.0.0/8 drop", "drop"),
        ("ip saddr != 10.0.0.0/8 drop", "accept"),
        ("ip6 saddr fd00::/8 drop", "accept"),
        ("tcp dport 80-90 drop", "drop"),
        ("tcp dport { 22, 80 } drop", "drop"),
        ("udp dport 80 drop", "accept"),
        ('iifname "eth*" drop', "drop"),
        ("ct state established,related drop", "accept"),
        ("ct state new reject", "reject"),
        ("ip daddr @listed drop", "drop"),
        ("meta mark set 0x00000004 meta mark & 0x00000004 == 0x00000004 drop", "drop"),
        ("fib daddr type local drop", "accept"),
        ("reject with tcp reset", "reject"),
    ],
)
def test_one_rule(rule: str, expected: str) -> None:
    listed = Set(name="listed", key=("ipv4_addr",), flags=("interval",))
    listed = listed.with_elements([listed.element("10.0.0.0/30")])
    assert verdict(PACKET, base("forward", rule), sets=(listed,)) == expected


def test_accept_ends_its_own_chain_only() -> None:
    assert verdict(PACKET, base("forward", "accept", priority=-1), base("forward", "drop", priority=1)) == "drop"


def test_jump_returns_and_goto_does_not() -> None:
    side = Chain(name="side", rules=(parse_rule("return"),))
    assert verdict(PACKET, base("forward", "jump side", "drop"), side) == "drop"
    assert verdict(PACKET, base("forward", "goto side", "drop"), side) == "accept"


def test_policies() -> None:
    assert verdict(PACKET, base("forward", policy="drop")) == "drop"
    assert verdict(PACKET, base("forward", "accept", policy="drop")) == "accept"


def test_own_packets_pass_output() -> None:
    own = Packet(source="192.0.2.1", destination="10.0.0.2", destination_port=80)
    assert verdict(own, base("output", "drop")) == "drop"
    assert verdict(own, base("prerouting", "drop")) == "accept"
    to_self = Packet(source="10.0.0.1", destination="192.0.2.1", input="eth0")
    assert verdict(to_self, base("input", "drop")) == "drop"


def test_every_choice_is_taken() -> None:
    targets = Set(name="targets", key=("slot",), data=("ipv4_addr",))
    targets = targets.with_elements(targets.element(str(slot), f"10.0.1.{slot}") for slot in range(3))
    chain = base("prerouting", "dnat to numgen random mod 3 map @targets", priority=-100, kind="nat")
    tracer = Tracer([Table(family="ip", name="t", chains=(chain,), sets=(targets,))], MACHINE)
    found = [outcome.packet.destination for outcome in tracer.outcomes(PACKET)]
    assert found == ["10.0.1.0", "10.0.1.1", "10.0.1.2"]


def test_the_way_is_told() -> None:
    tracer = Tracer([Table(family="ip", name="t", chains=(base("forward", "ip saddr 10.0.0.1 drop"),))], MACHINE)
    assert str(tracer.trace(PACKET)).splitlines() == [
        "forward: ip t: forward0: ip saddr 10.0.0.1 drop".replace("t: forward0", "t forward0"),
        "drop: tcp 10.0.0.1:40000 -> 10.0.0.2:80",
    ]


def test_what_is_not_known_is_an_error() -> None:
    chain = Chain(name="c", type="filter", hook="forward", rules=(Rule((Opaque("osf"),)),))
    with pytest.raises(ProtocolError):
        Tracer([Table(family="ip", name="t", chains=(chain,))], MACHINE).trace(PACKET)
