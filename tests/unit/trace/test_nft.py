"""The tracer's own rules: order of hooks and chains, verdicts, choices."""

import pytest

from podwire.errors import ProtocolError
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_rules import Opaque, Rule
from podwire.state.nft_text import parse_rule
from podwire.trace.nft import Tracer
from podwire.trace.packet import LocalAddresses, Packet

MACHINE = LocalAddresses(addresses=frozenset(("192.0.2.1",)))
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
        ("ip daddr set 192.0.2.77 ip daddr 192.0.2.77 drop", "drop"),
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
    results = [outcome.packet.destination for outcome in tracer.outcomes(PACKET)]
    assert results == ["10.0.1.0", "10.0.1.1", "10.0.1.2"]


def test_empty_slots_are_drawn_again_and_outcomes_merged() -> None:
    slots = Set(name="slots", key=("ipv4_addr", "slot"), data=("ipv4_addr",))
    slots = slots.with_elements(slots.element(f"10.0.0.2 . {slot}", f"10.0.1.{slot}") for slot in (0, 2, 3))
    draw = "dnat to ip daddr . numgen random mod {} map @slots"
    chain = base("prerouting", draw.format(4), draw.format(4), draw.format(1), priority=-100, kind="nat")
    tracer = Tracer([Table(family="ip", name="t", chains=(chain,), sets=(slots,))], MACHINE)
    result = {outcome.packet.destination: outcome.probability for outcome in tracer.outcomes(PACKET)}
    twice = 1 / 4 + 1 / 4 * 1 / 4
    assert result == {"10.0.1.0": twice + 1 / 16, "10.0.1.2": twice, "10.0.1.3": twice}


def test_steps_list_the_rules_in_order() -> None:
    tracer = Tracer([Table(family="ip", name="t", chains=(base("forward", "ip saddr 10.0.0.1 drop"),))], MACHINE)
    assert str(tracer.trace(PACKET)).splitlines() == [
        "forward: ip t: forward0: ip saddr 10.0.0.1 drop".replace("t: forward0", "t forward0"),
        "drop: tcp 10.0.0.1:40000 -> 10.0.0.2:80",
    ]


def test_an_unknown_statement_is_an_error() -> None:
    chain = Chain(name="c", type="filter", hook="forward", rules=(Rule((Opaque("osf"),)),))
    with pytest.raises(ProtocolError):
        Tracer([Table(family="ip", name="t", chains=(chain,))], MACHINE).trace(PACKET)


def test_trace_reports_matches_and_their_probability() -> None:
    targets = Set(name="targets", key=("slot",), data=("ipv4_addr",))
    targets = targets.with_elements(targets.element(str(slot), f"10.0.1.{slot}") for slot in range(4))
    near = Set(name="near", key=("ipv4_addr",), flags=("interval",))
    near = near.with_elements([near.element("10.0.0.0/8")])
    rule = "ip saddr @near dnat to numgen random mod 4 map @targets"
    chain = base("prerouting", rule, priority=-100, kind="nat")
    result = list(
        Tracer([Table(family="ip", name="t", chains=(chain,), sets=(near, targets))], MACHINE).outcomes(PACKET)
    )
    assert [outcome.probability for outcome in result] == [0.25] * 4
    assert result[2].steps[0].elements == ("set near { 10.0.0.0/8 }", "map targets { 2 : 10.0.1.2 }")


def test_earlier_elements_differ_from_those_the_packet_adds() -> None:
    declared = Set(name="seen", key=("ipv4_addr",), flags=("dynamic", "timeout"), timeout_s=60)
    chain = base("prerouting", "ip saddr @seen drop", "update @seen { ip saddr }", "ip saddr @seen accept")
    tracer = Tracer([Table(family="ip", name="t", chains=(chain,), sets=(declared,))], MACHINE)
    first, again = tracer.trace(PACKET), tracer.trace(PACKET)
    assert (first.verdict, first.remembered) == ("accept", ())
    assert (again.verdict, again.remembered) == ("drop", ("set seen { 10.0.0.1 }",))


def test_dynamic_elements_are_kept_and_can_be_removed() -> None:
    declared = Set(name="seen", key=("ipv4_addr",), data=("mark",), flags=("dynamic", "timeout"), timeout_s=60)
    held = declared.with_elements([declared.element("10.0.0.1", "0x00000007")])
    put = "update @seen { ip saddr : meta mark }"
    look = "meta mark set ip saddr map @seen"
    keep = base("prerouting", put, look, "meta mark 0x00000007 drop")
    forget = base("prerouting", "delete @seen { ip saddr : meta mark }", put, look, "meta mark 0x00000007 drop")
    for chain, verdict in ((keep, "drop"), (forget, "accept")):
        assert verdict_of(chain, held) == verdict


def verdict_of(chain: Chain, declared: Set) -> str:
    return Tracer([Table(family="ip", name="t", chains=(chain,), sets=(declared,))], MACHINE).trace(PACKET).verdict
