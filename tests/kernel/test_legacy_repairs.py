"""Tables of legacy iptables that are put back as podwire wrote them, with rules of other programs in them."""

import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Iterator

import pytest

from podwire.kernel import netns
from podwire.kernel.iptables import Iptables, find
from podwire.kernel.legacy_rules import KnownTables, LegacyTables
from podwire.kernel.xtables_lock import lock
from podwire.state.iptables import parse_save

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

PLACE = f"/run/netns/pwt-legacy-{os.getpid()}"
LOOPBACK = {"ip": "127.0.0.1", "ip6": "::1"}
RULES = """*filter
:BEFORE - [0:0]
:OURS - [0:0]
:OURS-PART - [0:0]
:ZULU - [0:0]
-A INPUT -p udp -m udp --dport 9 -j DROP
-A INPUT -p tcp -m tcp --dport 80 -j OURS
-A INPUT -p tcp -j ZULU
-A OUTPUT -m comment --comment "no target"
-A OUTPUT -j OURS
-A BEFORE -m comment --comment "of another program" -j RETURN
-A OURS -m comment --comment "a text of ours" -j OURS-PART
-A OURS -m mark ! --mark 0x1/0x1 -j RETURN
-A OURS-PART -p tcp -m tcp --dport 80 -j RETURN
-A ZULU -p tcp -m tcp --dport 80 -g BEFORE
COMMIT
"""


class Table:
    """The table ``filter`` of a family with :data:`RULES`, as podwire knows it."""

    def __init__(self, family: str, tool: Iptables, known: KnownTables) -> None:
        self.family, self.tool, self.known = family, tool, known

    def put_back(self) -> bool:
        with lock() as is_free:
            assert is_free
            return self.known.put_back((self.family, "filter"), lambda chain: chain.startswith("OURS"))

    def change(self, *lines: str) -> None:
        self.tool.restore("\n".join(("*filter", *lines, "COMMIT\n")))

    def chains(self) -> dict[str, list[str]]:
        return parse_save(self.tool.save("filter"))["filter"]

    def counters(self) -> dict[str, int]:
        """The packets of each rule."""
        rules = re.findall(r"^\[(\d+):\d+\] -A (.*)$", self.tool.save("filter", counters=True), re.M)
        return {rule: int(packets) for packets, rule in rules}

    def traffic(self) -> None:
        number = socket.AF_INET if self.family == "ip" else socket.AF_INET6
        with netns.inside(PLACE), socket.create_server((LOOPBACK[self.family], 80), family=number) as server:
            socket.create_connection(server.getsockname()[:2]).close()


@pytest.fixture(params=["ip", "ip6"])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    programs = find("legacy")
    assert programs is not None
    netns.create(PLACE)
    try:
        with netns.inside(PLACE):
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        with (
            Iptables(request.param, programs, PLACE) as tool,
            contextlib.closing(LegacyTables(PLACE, ("filter", "nat"))) as tables,
        ):
            tool.restore(RULES)
            known = KnownTables(tables)
            known.read()
            known.remember()
            yield Table(request.param, tool, known)
    finally:
        netns.delete(PLACE)


LOST = {
    "a chain": ("-F OURS",),
    "all chains": ("-F OURS", "-F OURS-PART"),
    "a rule": ("-D OURS 2",),
    "a jump": ("-D INPUT 2",),
    "jumps and chains": ("-D INPUT 2", "-D OUTPUT 2", "-F OURS", "-F OURS-PART", "-X OURS", "-X OURS-PART"),
    "nothing, but there is more": ("-I OURS -j DROP", "-A FORWARD -j OURS"),
    "a rule of the same size": ("-R OURS-PART 1 -p tcp -m tcp --dport 81 -j RETURN",),
}


@pytest.mark.parametrize("case", LOST)
def test_lost_legacy_rules_are_put_back(table: Table, case: str) -> None:
    before = table.tool.save("filter")
    table.change(*LOST[case])
    table.known.accept(table.known.differing(rules=True))
    assert table.chains() != parse_save(before)["filter"]
    assert table.put_back()
    assert table.chains() == parse_save(before)["filter"]
    assert table.known.differing(rules=False) == frozenset(), "it is known as it is now"
    table.traffic()
    assert table.counters()["ZULU -p tcp -m tcp --dport 80 -g BEFORE"]


def test_counters_of_other_rules_continue(table: Table) -> None:
    table.traffic()
    before = table.counters()
    assert min(packets for rule, packets in before.items() if "udp" not in rule) > 0
    table.change("-D OURS 2", "-D INPUT 2")
    assert table.put_back()
    after = table.counters()
    lost = {"INPUT -p tcp -m tcp --dport 80 -j OURS", *(rule for rule in before if rule.startswith("OURS "))}
    assert {rule: packets for rule, packets in after.items() if rule not in lost} == {
        rule: packets for rule, packets in before.items() if rule not in lost
    }
    assert not any(after[rule] for rule in lost)


FOREIGN = {
    "a rule more": ("-A BEFORE -j DROP",),
    "a rule less": ("-D INPUT 1",),
    "a rule of the same size": ("-R INPUT 1 -p udp -m udp --dport 7 -j DROP",),
    "a chain more": (":THEIRS - [0:0]",),
    "a chain less": ("-F ZULU", "-D INPUT 3", "-X ZULU"),
    "a policy": (":FORWARD DROP [0:0]",),
    "another target": (":OTHER - [0:0]", "-R ZULU 1 -p tcp -m tcp --dport 80 -g OTHER"),
    "another order": ("-D INPUT 1", "-A INPUT -p udp -m udp --dport 9 -j DROP"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_changes_of_other_programs_are_not_undone(table: Table, case: str) -> None:
    table.change(*FOREIGN[case], "-F OURS")
    changed = table.chains()
    assert not table.put_back()
    assert table.chains() == changed


def test_only_what_podwire_wrote_is_put_back(table: Table) -> None:
    """Rules that changed before they could be remembered are not; nor those of a table that another change followed."""
    table.change("-F OURS-PART")
    table.known.read(written=False)
    table.known.remember()
    table.change("-F OURS")
    assert table.put_back(), "as it was when podwire knew it last"
    assert table.chains()["OURS"] and not table.chains()["OURS-PART"]
    table.known.read()
    table.change("-F OURS")
    assert not table.put_back(), "nothing is remembered since the last write"
    table.known.remember()
    assert not table.known.differing(rules=True) - {(table.family, "filter")}
    assert not table.put_back(), "the size is not the one that was read"


def test_a_change_by_others_is_not_taken_for_podwires(table: Table) -> None:
    """Also when podwire's last write was not remembered yet."""
    table.known.read()
    table.change("-F OURS")
    table.known.accept(table.known.differing(rules=False))
    table.known.remember()
    assert not table.put_back()
    table.known.read(written=False)
    table.known.remember()
    assert table.put_back(), "after all rules were compared"


def test_the_lock_of_xtables_keeps_programs_out(table: Table) -> None:
    with lock() as is_free:
        assert is_free
        with lock() as again:
            assert not again
        with netns.inside(PLACE):
            program = subprocess.run(["iptables-legacy", "-w", "1", "-S"], capture_output=True, check=False, timeout=60)
        assert program.returncode and b"lock" in program.stderr
    with lock() as is_free:
        assert is_free
