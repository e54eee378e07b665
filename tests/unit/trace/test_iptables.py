"""Packets through tables of iptables."""

import msgspec
import pytest

from podwire.errors import ProtocolError
from podwire.state.iptables import Ruleset, parse
from podwire.trace.bytecode import same_ends
from podwire.trace.ipset import Elements
from podwire.trace.iptables import RuleOption, Tracer, parse_rule
from podwire.trace.packet import LocalAddresses, Outcome, Packet

MACHINE = LocalAddresses(addresses=frozenset(("192.168.99.1",)))
PACKET = Packet(source="10.0.0.1", destination="10.96.0.1", destination_port=80, input="veth1", output="eth0")


def table(*lines: str, name: str = "nat", family: str = "ip") -> Ruleset:
    return parse((f"*{name} {family}", *lines, "COMMIT"))


def through(*lines: str, packet: Packet = PACKET, name: str = "nat") -> Outcome:
    return Tracer([table(*lines, name=name)], MACHINE).trace(packet)


def test_options_of_a_rule() -> None:
    assert parse_rule('! -s 10.0.0.0/8 -m comment --comment "two words" -m recent --set --name X -j Y') == (
        RuleOption("-s", "10.0.0.0/8", True),
        RuleOption("-m", "comment"),
        RuleOption("--comment", "two words"),
        RuleOption("-m", "recent"),
        RuleOption("--set"),
        RuleOption("--name", "X"),
        RuleOption("-j", "Y"),
    )


@pytest.mark.parametrize("rule", ["-m ttl --ttl 3 -j DROP", "-j NOWHERE", "stray -j DROP"])
def test_an_unknown_match_is_an_error(rule: str) -> None:
    with pytest.raises(ProtocolError):
        through(f"-A PREROUTING {rule}")


@pytest.mark.parametrize(
    ("match", "holds"),
    [
        ("-s 10.0.0.1/32", True),
        ("! -s 10.0.0.0/8", False),
        ("-d 10.96.0.0/16 -p tcp -m tcp --dport 80", True),
        ("-d 0.0.0.1/0.0.0.63", True),
        ("-d 0.0.0.2/0.0.0.63", False),
        ("-d ::1/::3f", False),
        ("-p udp -m udp --dport 80", False),
        ("-m tcp --dport 81", False),
        ("-i veth+", True),
        ("! -i veth1", False),
        ("-m addrtype --dst-type LOCAL", False),
        ("-o eth+", True),
        ("-o veth1", False),
        ("-p 6 -m tcp --dport 70:80", True),
        ("-p 17", False),
        ("-p tcp -m multiport --dports 53,79:81", True),
        ("-p tcp -m multiport --dports 53,81:90", False),
        ("-m conntrack --ctstate ESTABLISHED --ctdir REPLY", False),
        ("-m conntrack --ctstate NEW --ctdir ORIGINAL", True),
        ("-m conntrack --ctstate DNAT", False),
        ("-m conntrack --ctstatus CONFIRMED", False),
        ("-m conntrack --ctstatus NONE", True),
        ("-p ipv6-icmp -m icmp6 --icmpv6-type 135", False),
        ("-m limit --limit 10/sec --limit-burst 50", True),
        ("-m addrtype --src-type LOCAL", False),
        ("-m conntrack --ctstate NEW", True),
        ("-m conntrack --ctstate RELATED,ESTABLISHED", False),
        ("-m mark ! --mark 0x4000/0x4000", True),
        (f'-m bpf --bytecode "{same_ends("ip")}"', False),
    ],
)
def test_matches(match: str, holds: bool) -> None:
    result = through(f"-A PREROUTING {match} -j DROP")
    assert result.verdict == ("drop" if holds else "accept")


def test_the_way_of_a_packet() -> None:
    result = through(
        ":SVC",
        "-A PREROUTING -j SVC",
        "-A POSTROUTING -m mark --mark 0x1/0x1 -j MASQUERADE",
        "-A SVC -j MARK --set-xmark 0x1/0x1",
        "-A SVC -p tcp -m tcp -j DNAT --to-destination 10.0.0.9:8080",
    )
    assert (result.packet.destination, result.packet.destination_port) == ("10.0.0.9", 8080)
    assert (result.verdict, result.translated, result.masqueraded, result.delivered) == ("accept", True, True, False)
    assert [step.chain for step in result.steps] == ["PREROUTING", "SVC", "SVC", "POSTROUTING"]
    assert str(result.steps[0]) == "prerouting: iptables nat PREROUTING: -j SVC"


def test_jump_comes_back_and_goto_does_not() -> None:
    lines = (":ONE", "-A FORWARD -j TWO", "-A FORWARD -j DROP", ":TWO", "-A TWO {} ONE", "-A TWO -j ACCEPT")
    for word, verdict in (("-j", "accept"), ("-g", "drop")):
        assert through(*(line.format(word) for line in lines), name="filter").verdict == verdict
    assert through(":X", "-A FORWARD -j X", "-A X -j RETURN", "-A X -j DROP", name="filter").verdict == "accept"


def test_own_packets_pass_output_and_input() -> None:
    own = Packet(source="192.168.99.1", destination="192.168.99.1", destination_port=1)
    assert through("-A INPUT -j REJECT --reject-with tcp-reset", packet=own, name="filter").verdict == "reject"
    assert through("-A FORWARD -j DROP", packet=own, name="filter").verdict == "accept"
    assert through("-A OUTPUT -j DROP", packet=own, name="filter").verdict == "drop"


def test_every_answer_of_chance_and_no_other() -> None:
    lines = [f":E{n}" for n in range(3)]
    lines += [f"-A E{n} -p tcp -m tcp -j DNAT --to-destination 10.0.1.{n}:80" for n in range(3)]
    chance = "-m statistic --mode random --probability 0.50000000000"
    lines += [f"-A PREROUTING {chance} -j E0", f"-A PREROUTING {chance} -j E1", "-A PREROUTING -j E2"]
    ends = [o.packet.destination for o in Tracer([table(*lines)], MACHINE).outcomes(PACKET)]
    assert sorted(ends) == ["10.0.1.0", "10.0.1.1", "10.0.1.2"]


def test_lists_remember_between_packets_but_not_between_outcomes() -> None:
    name = "--name L --mask 255.255.255.255 --rsource"
    tracer = Tracer(
        [table(f"-A PREROUTING -m recent --rcheck --seconds 9 --reap {name} -j DROP",
               f"-A PREROUTING -m recent --set {name} -j RETURN")],
        MACHINE,
    )  # fmt: skip
    assert [o.verdict for o in tracer.outcomes(PACKET)] == ["accept"]
    assert tracer.trace(PACKET).verdict == "accept"
    assert tracer.trace(PACKET).verdict == "drop"


def test_the_other_family_has_its_own_tables() -> None:
    packet = Packet(source="fd00::1", destination="fd96::1", destination_port=80, input="veth1")
    rules = (":E", "-A PREROUTING -j E", "-A E -p tcp -m tcp -j DNAT --to-destination [fd00::9]:8080")
    result = Tracer([table(*rules, family="ip6"), table("-A PREROUTING -j DROP")], MACHINE).trace(packet)
    assert (result.packet.destination, result.packet.destination_port) == ("fd00::9", 8080)


def test_how_likely_each_way_is() -> None:
    lines = [f":E{n}" for n in range(3)]
    lines += [f"-A E{n} -p tcp -m tcp -j DNAT --to-destination 10.0.1.{n}:80" for n in range(3)]
    chance = "-m statistic --mode random --probability"
    lines += [f"-A PREROUTING {chance} 0.25 -j E0", f"-A PREROUTING {chance} 0.5 -j E1", "-A PREROUTING -j E2"]
    result = {o.packet.destination: o.probability for o in Tracer([table(*lines)], MACHINE).outcomes(PACKET)}
    assert result == {"10.0.1.0": 0.25, "10.0.1.1": 0.375, "10.0.1.2": 0.375}


def test_a_thousand_endpoints_are_a_thousand_outcomes() -> None:
    count = 1000
    lines = [f":E{n}" for n in range(count)]
    lines += [f"-A E{n} -p tcp -m tcp -j DNAT --to-destination 10.1.{n // 250}.{n % 250}:80" for n in range(count)]
    for n in range(count - 1):
        lines.append(f"-A PREROUTING -m statistic --mode random --probability {1 / (count - n):.11f} -j E{n}")
    lines.append(f"-A PREROUTING -j E{count - 1}")
    results = [o.probability for o in Tracer([table(*lines)], MACHINE).outcomes(PACKET)]
    assert results == pytest.approx([1 / count] * count, rel=1e-4)


def test_old_entries_of_recent_lists_expire() -> None:
    rule = "-A PREROUTING -m recent --rcheck --seconds 60 --reap --name L --mask 255.255.255.255 --rsource -j DROP"
    tracer = Tracer([table(rule)], MACHINE)
    for age, verdict in ((59.0, "drop"), (61.0, "accept")):
        tracer.recent = {"L": {"10.0.0.1": age}}
        result = tracer.trace(PACKET)
        assert result.verdict == verdict
        assert result.remembered == (("list L { 10.0.0.1 }",) if age < 60 else ())


def test_rules_for_other_destinations_do_not_match() -> None:
    lines = ("-A PREROUTING -d 10.96.0.2/32 -j DROP", "-A PREROUTING -d 10.96.0.1/32 -j DROP")
    result = through(*lines)
    assert (result.verdict, len(result.steps)) == ("drop", 1)
    assert through("-A PREROUTING ! -d 10.96.0.2/32 -j DROP").verdict == "drop"
    assert through("-A PREROUTING -d 10.96.0.0/16 -j DROP").verdict == "drop"


def test_marks_that_sets_give() -> None:
    rules = table(
        "-A FORWARD -j SET --map-set pods src,src --map-mark",
        "-A FORWARD -j SET --map-set pods dst,dst --map-mark",
        "-A FORWARD -m limit --limit 5/sec -j NFLOG --nflog-prefix said --nflog-group 7",
        "-A FORWARD -m mark --mark 0x30/0xf0 -j DROP",
        name="mangle",
    )
    tracer = Tracer([rules], MACHINE)
    tracer.sets = {"pods": Elements("hash:net,iface", {"10.0.0.1,veth1"}, {"10.0.0.1,veth1": (0x30, 0xF0)})}
    result = tracer.trace(msgspec.structs.replace(PACKET, mark=0x4F))
    assert (result.verdict, result.packet.mark) == ("drop", 0x3F)
    assert [step.elements for step in result.steps] == [("set pods { 10.0.0.1,veth1 skbmark 0x30/0xf0 }",), (), ()]
