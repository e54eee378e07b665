"""What the ``iptables`` data plane of policies owes beside verdicts, which the packet table has, with rules of both
kinds: nothing leaks and nothing is lost while rules change or while another data plane takes over, connections are cut
and come back, unknown devices and borrowed addresses stay out, rules of others stay behind ours.
"""

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from tests.kernel import policy_checks
from tests.kernel import test_policy_replacement as replacement
from tests.kernel.policy_checks import ALLOW, DB, DENY, LATE_S, OPEN, PORTS, RANGES, Echo, begin, change, reaches
from tests.kernel.policy_namespaces import FACTS, World, inside, load, path
from tests.kernel.test_policy_packets import CASES, compilers
from tests.kernel.test_policy_replacement import ALLOWED, DENIED, Flood

from podwire.errors import KernelError, Unsupported
from podwire.kernel import netns
from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import Kind, find, nft_tables
from podwire.kernel.iptables_watch import Poll
from podwire.kernel.kinds import read_values
from podwire.kernel.nflog import Nflog
from podwire.policy.dataplanes.iptables.dataplane import IptablesPolicy, clear
from podwire.policy.dataplanes.iptables.tracing import OWNER_MARKS
from podwire.policy.modes import PolicyModes
from podwire.policy.settings import LogSettings
from podwire.policy.switch import Switch
from podwire.state.ipset import IpSet

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

KINDS: tuple[Kind, ...] = ("nft", "legacy")
seen = replacement.seen
echo = policy_checks.echo
GROUP = 4712
LOGGING = replace(FACTS["n1"], log=LogSettings(group=GROUP))
MANGLE = {"nft": "iptables-nft", "legacy": "iptables-legacy"}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        created.attach_pods(OPEN)
        yield created


@pytest.fixture(scope="module", params=KINDS)
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[IptablesPolicy]:
    iptables_policy = IptablesPolicy(LOGGING, path("n1"), find(request.param))
    yield iptables_policy
    iptables_policy.remove()
    iptables_policy.close()
    assert not clear(path("n1")), "everything is gone"


def differences(plane: IptablesPolicy) -> set[str]:
    """The lines in which the desired and the actual rules differ."""
    values = read_values(path("n1"), OWNER_MARKS)
    return {line for value in values for line in value.lines()} ^ {
        line for value in plane.desired() for line in value.lines()
    }


@pytest.mark.parametrize("case", [OPEN, PORTS, CASES[-1]], ids=lambda case: case.name)
def test_the_kernel_holds_what_is_desired(world: World, plane: IptablesPolicy, case: object) -> None:
    load(plane, compilers(case)["n1"], world)  # type: ignore[arg-type]
    assert differences(plane) == set()


def test_policy_change_cuts_a_connection_and_the_next_restores_it(
    world: World, plane: IptablesPolicy, echo: Echo
) -> None:
    policy_checks.cut_and_come_back(world, plane)


def under_flood(step: Callable[[int], None], count: int) -> None:
    """Runs steps while datagrams flow to an allowed and to a denied port: none is lost and none leaks."""
    step(0)
    before = replacement.arrived(ALLOWED), replacement.arrived(DENIED)
    flood = Flood()
    for number in range(1, count):
        step(number)
    allowed, denied = flood.stop()
    time.sleep(0.1)
    assert min(allowed, denied) > 10 * count
    assert (replacement.arrived(ALLOWED) - before[0], replacement.arrived(DENIED) - before[1]) == (allowed, 0)


def test_nothing_leaks_and_nothing_is_lost_while_rules_are_replaced(
    world: World, plane: IptablesPolicy, seen: None
) -> None:
    compiler = begin(plane, world)
    under_flood(lambda number: replacement.replace(plane, world, compiler, number), 40)  # type: ignore[arg-type]


def test_another_data_plane_takes_over_under_traffic(world: World, seen: None) -> None:
    """Switches from nftables to iptables and back."""
    switch = Switch(PolicyModes(path("n1")), "nftables", FACTS["n1"])
    compiler = begin(switch, world)

    def step(number: int) -> None:
        replacement.replace(switch, world, compiler, number)  # type: ignore[arg-type]
        switch.configured_mode = ("nftables", "iptables")[number % 2]
        load(switch, compiler, world)
        assert switch.name == switch.configured_mode

    under_flood(step, 9)
    assert not read_values(path("n1"), OWNER_MARKS)
    switch.remove()
    switch.close()


def test_a_removed_data_plane_leaves_no_table(world: World) -> None:
    """No gap either when the agent was killed and another mode is configured."""
    place = path("empty")
    netns.create(place)
    try:
        for killed in (False, True):
            switch = Switch(PolicyModes(place), "iptables", FACTS["n1"])
            compiler = begin(switch, world)
            assert nft_tables(place) == {("ip", "mangle"), ("ip6", "mangle")}
            if killed:
                switch.close()
                switch = Switch(PolicyModes(place), "nftables", FACTS["n1"])
            switch.configured_mode = "nftables"
            load(switch, compiler, world)
            assert switch.name == "nftables"
            assert not nft_tables(place)
            switch.remove()
            switch.close()
    finally:
        netns.delete(place)


def test_an_unknown_pod_can_neither_send_nor_receive(world: World, plane: IptablesPolicy) -> None:
    policy_checks.shut_off_strangers(world, plane)


def test_a_pod_cannot_send_with_another_pods_address(world: World, plane: IptablesPolicy) -> None:
    policy_checks.stop_borrowed_addresses(world, plane, lambda: drops("PODWIRE-STRANGER") + drops("PODWIRE-INTRUDER"))


def drops(chain: str) -> int:
    """The number of packets that a chain dropped, in either kind of iptables."""
    saved = "".join(inside("n1", f"{name}-save", "-c", "-t", "mangle") for name in MANGLE.values())
    lines = [line for line in saved.splitlines() if f"-A {chain} " in line and line.endswith("-j DROP")]
    return sum(int(line[1:].partition(":")[0]) for line in lines)


def test_forwarded_packets_are_judged_by_their_original_sender(world: World, plane: IptablesPolicy) -> None:
    policy_checks.judge_by_who_sent(world, plane)


def test_marks_of_others_are_kept_and_podwires_are_cleared(world: World, plane: IptablesPolicy) -> None:
    begin(plane, world, allow=ALLOW)
    tool = MANGLE[plane.programs.kind]
    inside("n1", tool, "-t", "mangle", "-A", "PREROUTING", "-j", "MARK", "--set-mark", "0x4321")
    inside("n1", tool, "-t", "nat", "-A", "POSTROUTING", "-m", "mark", "--mark", "0x4321", "-j", "ACCEPT")
    try:
        assert reaches("shop-web", DB, patience_s=LATE_S)
        saved = inside("n1", f"{tool}-save", "-c", "-t", "nat")
        assert not next(line for line in saved.splitlines() if "0x4321" in line).startswith("[0:0]")
    finally:
        inside("n1", tool, "-t", "mangle", "-F", "PREROUTING")
        inside("n1", tool, "-t", "nat", "-F", "POSTROUTING")


def test_ranges_change_as_elements_alone(world: World, plane: IptablesPolicy) -> None:
    compiler = compilers(OPEN)["n1"]
    facts = replace(LOGGING, encapsulation_ports=(4789,), cluster_ranges=RANGES[-1])
    plane.load(compiler, world.devices("n1"), facts)
    for ranges in RANGES:
        facts = replace(facts, cluster_ranges=ranges, pod_ranges=ranges[:1])
        written = plane.update(compiler, world.devices("n1"), compiler.flush(), facts)
        assert any(item.lead for item in written)
        assert not any(item.prepare or item.enter or item.leave for item in written)
        assert differences(plane) == set()
    plane.load(compiler, world.devices("n1"), LOGGING)


def test_own_rules_are_restored_before_those_of_others(world: World, plane: IptablesPolicy) -> None:
    begin(plane, world, deny=DENY)
    tool = MANGLE[plane.programs.kind]
    plane.disturbed()
    inside("n1", tool, "-t", "mangle", "-I", "FORWARD", "-j", "ACCEPT")
    assert plane.disturbed() or plane.programs.kind == "legacy"
    assert not reaches("shop-web", DB), "what somebody lets through is judged when it leaves"
    assert any(plane.heal())
    assert not reaches("shop-web", DB)
    assert "-A FORWARD -j ACCEPT" in inside("n1", f"{tool}-save", "-t", "mangle")
    inside("n1", tool, "-t", "mangle", "-F", "PODWIRE-IN")
    with IpSets(path("n1")) as sets:
        other = IpSet(name="others", kind="hash:ip")
        sets.apply(other)
        own = sets.read("podwire4-egress")
        assert own is not None
        sets.apply(replace(own, elements={}))
        assert any(plane.heal())
        assert sets.read("podwire4-egress") == own
        assert not any(plane.heal())
        assert sets.read("others") == other
        sets.destroy(["others"])
    inside("n1", tool, "-t", "mangle", "-D", "FORWARD", "-j", "ACCEPT")


def reported(plane: IptablesPolicy) -> bool:
    """Whether the data plane reports a change within 30 s."""
    until = time.monotonic() + 30
    while not plane.disturbed() and time.monotonic() < until:
        time.sleep(0.01)
    return time.monotonic() < until


def flush_set(plane: IptablesPolicy) -> None:
    with IpSets(path("n1")) as sets:
        own = sets.read("podwire4-own")
        assert own is not None
        assert own.elements
        sets.apply(replace(own, elements={}))


def flush_chain(plane: IptablesPolicy) -> None:
    inside("n1", MANGLE[plane.programs.kind], "-t", "mangle", "-F", "PODWIRE-IN")


def delete_jump(plane: IptablesPolicy) -> None:
    tool = MANGLE[plane.programs.kind].replace("iptables", "ip6tables")
    rules = inside("n1", tool, "-t", "mangle", "-S", "FORWARD").splitlines()
    number = next(place for place, rule in enumerate(rules) if "PODWIRE-" in rule)
    inside("n1", tool, "-t", "mangle", "-D", "FORWARD", str(number))


@pytest.mark.parametrize("spoil", [flush_set, flush_chain, delete_jump])
def test_lost_rules_and_elements_are_reported_without_the_long_timer(
    world: World, plane: IptablesPolicy, spoil: Callable[[IptablesPolicy], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane._ticker, "period_ended", lambda: False)
    if isinstance(plane._watch, Poll):
        monkeypatch.setattr(plane._watch, "_compare_at", float("inf"))
    begin(plane, world)
    plane.disturbed()
    spoil(plane)
    assert reported(plane)
    assert any(plane.heal())
    assert differences(plane) == set()
    assert not any(plane.heal())


def test_own_changes_are_not_reported(world: World, plane: IptablesPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane._ticker, "period_ended", lambda: False)
    if isinstance(plane._watch, Poll):
        monkeypatch.setattr(plane._watch, "_compare_at", float("inf"))
    compiler = begin(plane, world)
    plane.disturbed()
    change(plane, world, compiler, allow=None)
    change(plane, world, compiler, allow=ALLOW)
    looked = 0
    while looked < 3:
        looked += bool(select.select([plane.fileno()], [], [], 30)[0])
        assert not plane.disturbed()


def eventually_gone(sets: IpSets, name: str) -> None:
    """nf_tables releases a set a moment after the rules that refer to it."""
    until = time.monotonic() + 30
    while name in sets.names():
        with contextlib.suppress(KernelError):
            sets.destroy([name])
        assert time.monotonic() < until


def test_a_full_load_follows_a_refused_change(world: World, plane: IptablesPolicy) -> None:
    compiler = begin(plane, world)
    tool = MANGLE[plane.programs.kind]
    for item in (tool, tool.replace("ip", "ip6", 1)):
        inside("n1", item, "-t", "mangle", "-F")
        inside("n1", item, "-t", "mangle", "-X")
    plane.disturbed()
    with IpSets(path("n1")) as sets:
        for name in ("podwire4-ingress", "podwire6-ingress"):
            eventually_gone(sets, name)
    change(plane, world, compiler, deny=DENY)
    assert not reaches("shop-web", DB)
    assert not any(plane.heal())


def test_drops_are_logged_and_counted(world: World, plane: IptablesPolicy) -> None:
    compiler = begin(plane, world, deny=DENY)
    with contextlib.closing(Nflog(GROUP, path("n1"))) as log:
        before = sum(count.count.packets for count in plane.counts())
        assert not reaches("shop-web", DB)
        (logged,) = log.read(10)[0]
        hit = plane.hit(logged.prefix)
        assert hit is not None and hit.text == "no ingress rule of shop/deny"
        assert sum(count.count.packets for count in plane.counts()) == before + 1
    change(plane, world, compiler, deny=None)
    assert sum(count.count.packets for count in plane.counts()) == before + 1, (
        "what a rule that is gone has counted stays"
    )
    assert plane.hit(logged.prefix) == hit


def test_a_missing_feature_of_the_machine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(Unsupported, match="iptables-restore is not installed"):
        IptablesPolicy(FACTS["n1"])


def test_rules_that_the_kernel_refuses_are_an_error(world: World, plane: IptablesPolicy) -> None:
    compiler = begin(plane, world)
    crowded = replace(FACTS["n1"], marks=0b11)
    case = compilers(PORTS)["n1"]
    with pytest.raises(KernelError, match=r"give policy\.marks more bits"):
        plane.load(case, world.devices("n1"), crowded)
    plane.load(compiler, world.devices("n1"), replace(FACTS["n1"], log=LogSettings(group=GROUP)))
    assert differences(plane) == set()
