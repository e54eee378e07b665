"""Rules for pods in firewalls of other programs, and what is reported instead."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_network

import pytest
from tests.fakes.clock import FakeClock

from podwire.errors import KernelError
from podwire.kernel.firewall_chains import FilterTables
from podwire.kernel.iptables import Programs
from podwire.routing.firewalls import CHECK_S, READ_S, FirewallPass
from podwire.routing.forwarding import blockers, forward_ruleset
from podwire.routing.inputs import NeededPort
from podwire.state.chain_marks import FORWARD
from podwire.state.firewalls import FirewallChain, ForeignChain
from podwire.state.iptables import Ruleset, parse_save
from podwire.state.iptables_diff import repair

PODS = (ip_network("10.244.0.0/16"), ip_network("fd00::/56"))
RULESET = """\
*filter ip
:PODWIRE-FORWARD
-A FORWARD -m comment --comment "podwire routing" -j PODWIRE-FORWARD
-A PODWIRE-FORWARD -s 10.244.0.0/16 -m comment --comment "podwire routing" -j ACCEPT
-A PODWIRE-FORWARD -d 10.244.0.0/16 -m comment --comment "podwire routing" -j ACCEPT
COMMIT"""
JUMP = '-m comment --comment "podwire routing" -j PODWIRE-FORWARD'


@pytest.mark.parametrize(
    ("policy", "rules", "refuses"),
    [
        ("ACCEPT", (), False),
        ("DROP", (), True),
        ("ACCEPT", ("-j DOCKER-USER", "-j REJECT --reject-with icmp-host-prohibited"), True),
        ("ACCEPT", ("-s 192.0.2.1/32 -j DROP",), False),
    ],
)
def test_rules_are_made_only_where_the_rest_is_refused(policy: str, rules: Sequence[str], refuses: bool) -> None:
    created = forward_ruleset("ip", PODS, FirewallChain(policy, {"FORWARD": rules}))
    assert str(created) == (RULESET if refuses else "*filter ip\nCOMMIT")
    assert not forward_ruleset("ip6", PODS[:1], FirewallChain(policy, {"FORWARD": rules})).chains


@pytest.mark.parametrize(
    ("rules", "lines"),
    [
        ((), [f"-I FORWARD 1 {JUMP}"]),
        (("-j DOCKER-USER", "-j KUBE-FORWARD"), [f"-I FORWARD 3 {JUMP}"]),
        (("-j DOCKER-USER", "-j REJECT --reject-with icmp-host-prohibited"), [f"-I FORWARD 2 {JUMP}"]),
        (("-j DOCKER-USER", JUMP), []),
        ((JUMP, "-j KUBE-FORWARD"), [f"-D FORWARD {JUMP}", f"-I FORWARD 2 {JUMP}"]),
        (("-j DROP", JUMP), [f"-D FORWARD {JUMP}", f"-I FORWARD 1 {JUMP}"]),
    ],
)
def test_the_jump_follows_all_rules_that_refuse_something(rules: Sequence[str], lines: Sequence[str]) -> None:
    expected = forward_ruleset("ip", PODS, FirewallChain("DROP", {}))
    saved = {"filter": {"FORWARD": rules, "PODWIRE-FORWARD": expected.chains["PODWIRE-FORWARD"]}}
    text = repair(saved, (expected,), FORWARD)
    assert [line for line in text.splitlines() if line.startswith(("-I", "-D"))] == lines
    removal = repair(saved, (Ruleset(family="ip", table="filter"),), FORWARD)
    assert ("-X PODWIRE-FORWARD" in removal, f"-D FORWARD {JUMP}" in removal) == (True, JUMP in rules)


def test_a_firewall_of_nftables_is_reported_with_advice() -> None:
    firewalld = ForeignChain(
        family="inet",
        table="firewalld",
        name="filter_FORWARD",
        policy="accept",
        last_rule="reject with icmpx admin-prohibited",
        text="reject",
    )
    custom = ForeignChain(family="inet", table="host", name="fwd", policy="drop", text="ip saddr 192.0.2.0/24 accept")
    knows = ForeignChain(family="inet", table="host", name="fwd", policy="drop", text="ip saddr 10.244.0.0/16 accept")
    open_ = ForeignChain(family="ip", table="host", name="fwd", policy="accept", last_rule="counter")
    assert list(blockers((firewalld, custom, knows, open_), PODS)) == [
        "chain filter_FORWARD of table inet firewalld drops packets that it does not know, pods' among them: "
        "firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16 --add-source=fd00::/56; "
        "firewall-cmd --reload",
        "chain fwd of table inet host drops packets that it does not know, pods' among them: accept packets from "
        "and to 10.244.0.0/16, fd00::/56 there",
    ]


class MemoryHook:
    """A hook with one table, which counts its readings."""

    def __init__(self) -> None:
        self.policy, self.generation, self.reads, self.failure = "DROP", 1, 0, ""
        self.written: list[Ruleset] = []

    def fingerprint(self) -> object:
        return self.generation

    def tables(self) -> Sequence[FilterTables]:
        if self.failure:
            raise KernelError("read", "iptables", 5, self.failure)
        self.reads += 1
        chain = FirewallChain(self.policy, parse_save(":FORWARD DROP [0:0]").get("filter", {}))
        return (FilterTables(Programs("nft", {}, {}), {"ip": chain}),)

    def foreign(self, hook: str = "forward") -> Sequence[ForeignChain]:
        return (ForeignChain(family="ip", table="host", name=hook, policy="drop"),)

    def hold(self, table: FilterTables, ruleset: Ruleset) -> str:
        assert table.programs.kind == "nft"
        self.written.append(ruleset)
        return ""


def test_a_firewall_is_read_again_only_after_a_change() -> None:
    async def body() -> None:
        hook, clock, reports = MemoryHook(), FakeClock(), list[str]()
        inputs = list[str]()
        subject = FirewallPass(hook, clock, lambda: PODS[:1], reports.append, inputs.append)
        running = asyncio.ensure_future(subject.run())
        await clock.advance(5 * CHECK_S)
        assert (hook.reads, len(subject.held), str(subject.shares()[0].desired[0])) == (1, 1, RULESET)
        assert "chain forward of table ip host" in reports[-1]
        subject.needs = lambda: (NeededPort(port=8472, protocols=("udp",), user="vxlan"),)
        await clock.advance(CHECK_S)
        assert hook.reads == 2 and "chain input of table ip host" in inputs[-1]
        hook.policy, hook.generation = "ACCEPT", 2
        await clock.advance(CHECK_S)
        assert (hook.reads, subject.shares(), hook.written[-1].chains) == (3, (), {})
        hook.failure = "busy"
        await clock.advance(READ_S)
        hook.failure, hook.policy = "", "DROP"
        await clock.advance(CHECK_S)
        assert len(subject.held) == 1, "tried again"
        running.cancel()

    asyncio.run(body())
