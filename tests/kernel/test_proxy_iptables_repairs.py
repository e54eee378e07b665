"""Rules of the iptables data plane that other programs take away come back, and connections with them."""

import contextlib
import os
import select
import shlex
import subprocess
import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.cases.service_table import NODE
from tests.kernel.iptables_rules import desired_rulesets, in_kernel, iptables, programs
from tests.kernel.service_namespaces import World, by_name, path
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import iptables_watch, netns
from podwire.kernel.iptables_watch import Poll
from podwire.proxy.dataplanes.iptables import shared
from podwire.proxy.dataplanes.iptables.dataplane import IptablesDataPlane

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


def reported(plane: ServiceOwner) -> bool:
    """Whether the data plane reports a change within 30 s."""
    until = time.monotonic() + 30
    while not plane.disturbed() and time.monotonic() < until:
        time.sleep(0.01)
    return time.monotonic() < until


@pytest.mark.parametrize(
    "arguments",
    [("-F", "KUBE-SERVICES"), ("-D", "PREROUTING", "1"), ("-D", "KUBE-SERVICES", "1"), ("-F",)],
    ids=" ".join,
)
def test_lost_legacy_rules_are_noticed_by_table_sizes(
    world: World, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    iptables_data_plane = IptablesDataPlane(NODE, path("node"), programs("legacy"))
    with contextlib.closing(ServiceOwner(iptables_data_plane)) as plane:
        assert isinstance(iptables_data_plane._watch, Poll)
        monkeypatch.setattr(iptables_data_plane._watch, "_compare_at", float("inf"))
        plane.load(by_name("ClusterIP").resolved())
        plane.update(by_name("session affinity").resolved())
        for _ in range(3):
            assert select.select([plane.fileno()], [], [], 30)[0]
            assert not plane.disturbed(), "these are changes of podwire"
        iptables(plane, "-t", "nat", *arguments)
        assert reported(plane)
        first, *compared = plane.heal()
        assert first.startswith("*nat"), "the table that changed is read and written first"
        assert not any(compared)
        assert in_kernel(plane) == desired_rulesets(plane)
        assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        plane.remove()


def test_legacy_tables_are_put_back_without_reading_their_rules(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no other program changed its own rules; otherwise the rules are read, and podwire's written."""
    monkeypatch.setattr(iptables_watch, "RULES_S", 0.0)
    iptables_data_plane = IptablesDataPlane(NODE, path("node"), programs("legacy"))
    with contextlib.closing(ServiceOwner(iptables_data_plane)) as plane:
        watch = iptables_data_plane._watch
        assert isinstance(watch, Poll)
        plane.load(by_name("ClusterIP").resolved())
        foreign = ("OUTPUT", "-m", "comment", "--comment", "foreign", "-j", "ACCEPT")
        for added, text in ((False, "*nat ip as it was"), (True, "*nat\n"), (False, "*nat ip as it was")):
            while ("ip", "nat") not in watch._known._written:
                assert select.select([plane.fileno()], [], [], 30)[0] and not plane.disturbed()
            if added:
                iptables(plane, "-t", "nat", "-I", *foreign)
            iptables(plane, "-t", "nat", "-F", "KUBE-SERVICES")
            assert reported(plane)
            first, *compared = plane.heal()
            assert first.startswith(text) and not any(compared)
            assert in_kernel(plane) == desired_rulesets(plane)
            assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        iptables(plane, "-t", "nat", "-C", *foreign)
        iptables(plane, "-t", "nat", "-D", *foreign)
        plane.remove()


def test_an_equally_long_legacy_rule_is_replaced_within_two_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    iptables_data_plane = IptablesDataPlane(NODE, path("node"), programs("legacy"))
    with contextlib.closing(ServiceOwner(iptables_data_plane)) as plane:
        monkeypatch.setattr(iptables_data_plane._watch, "_compare_at", float("inf"))
        plane.load(by_name("ClusterIP").resolved())
        _, chain, *rule = shlex.split(iptables(plane, "-t", "nat", "-S", "KUBE-SERVICES", "1"))
        iptables(plane, "-t", "nat", "-R", chain, "1", *(argument.replace("10.96.", "10.97.") for argument in rule))
        assert in_kernel(plane) != desired_rulesets(plane)
        began = time.monotonic()
        assert reported(plane)
        first, *compared = plane.heal()
        assert time.monotonic() - began < 2
        assert first.startswith("*nat") and not any(compared)
        assert in_kernel(plane) == desired_rulesets(plane)
        assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        plane.remove()


TAKEN_AWAY = {
    "a shared chain": ("-t nat -F KUBE-SERVICES", ["nat KUBE-SERVICES"]),
    "a constant chain": ("-t nat -F KUBE-MARK-MASQ", ["nat KUBE-MARK-MASQ"]),
    "a target that checks the protocol of its rule": ("-t filter -F KUBE-REFUSE", ["filter KUBE-REFUSE"]),
    "one rule of a shared chain": ("-t nat -D KUBE-SERVICES 1", ["nat KUBE-SERVICES"]),
    "the last rule of a shared chain": ("-t nat -D KUBE-SERVICES {last}", ["nat KUBE-SERVICES"]),
}


@pytest.mark.parametrize("case", TAKEN_AWAY)
def test_deleted_rules_are_put_back_as_they_were(world: World, case: str) -> None:
    """With the same text and counters, without iptables-restore; the comparison then writes nothing."""
    command, chains = TAKEN_AWAY[case]
    with contextlib.closing(ServiceOwner(IptablesDataPlane(NODE, path("node"), programs("nft")))) as plane:
        plane.load(by_name("ClusterIP").resolved())
        assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        before = {key: rules(plane, *key) for key in (("nat", "KUBE-SERVICES"), ("filter", "KUBE-REFUSE"))}
        last = str(len(before["nat", "KUBE-SERVICES"]))
        iptables(plane, *command.format(last=last).split())
        assert plane.disturbed()
        first, *compared = plane.heal()
        assert [" ".join((line.split()[-1], line.split()[5])) for line in first.splitlines()] == chains
        assert not any(compared)
        after = {key: rules(plane, *key) for key in before}
        assert {key: sorted(texts) for key, texts in after.items()} == {k: sorted(v) for k, v in before.items()}
        assert after["nat", "KUBE-SERVICES"][-1] == before["nat", "KUBE-SERVICES"][-1]
        assert in_kernel(plane) == desired_rulesets(plane)
        assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        assert not plane.disturbed()
        assert not any(plane.heal())
        plane.remove()


@pytest.mark.parametrize("chain", ["KUBE-SERVICES", "KUBE-SVC-ADDRESSES-0A"])
def test_a_divided_chain_and_its_parts_are_put_back(world: World, chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MOST_RULES", 0)
    with contextlib.closing(ServiceOwner(IptablesDataPlane(NODE, path("node"), programs("nft")))) as plane:
        plane.load(by_name("ClusterIP").resolved())
        for arguments in (("-F", chain), ("-D", chain, "1")):
            iptables(plane, "-t", "nat", *arguments)
            assert plane.disturbed()
            first, *compared = plane.heal()
            assert first.endswith("# ip nat") and f" {chain} " in first and not any(compared)
            assert in_kernel(plane) == desired_rulesets(plane)
            assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        plane.remove()


def test_rules_that_were_put_back_are_deleted_by_a_change(world: World) -> None:
    """The comments of such rules are user data; iptables-restore finds the rules by their text all the same."""
    with contextlib.closing(ServiceOwner(IptablesDataPlane(NODE, path("node"), programs("nft")))) as plane:
        plane.load(by_name("ClusterIP").resolved())
        iptables(plane, "-t", "nat", "-F", "KUBE-SERVICES")
        assert plane.disturbed()
        plane.heal()
        with netns.inside(path("node")):
            listed = subprocess.check_output(["nft", "list", "chain", "ip", "nat", "KUBE-SERVICES"], text=True)
        assert 'comment "default/web cluster IP"' in listed
        plane.update(dict.fromkeys(by_name("ClusterIP").resolved(), ()))
        assert plane.counts().refused_updates == 0
        assert in_kernel(plane) == desired_rulesets(plane)
        plane.remove()


def rules(plane: ServiceOwner, table: str, chain: str) -> list[str]:
    """The rules of a chain with their counters."""
    return iptables(plane, "-t", table, "-v", "-S", chain).splitlines()[1:]


def test_rules_that_were_written_meanwhile_are_not_doubled(world: World) -> None:
    """The notice of the deleted rules comes after podwire has written the chain anew."""
    resolved = by_name("ClusterIP").resolved()
    with contextlib.closing(ServiceOwner(IptablesDataPlane(NODE, path("node"), programs("nft")))) as plane:
        plane.load(resolved)
        (web,) = (key for key in resolved if key.endswith("/web"))
        chains = [line.split()[1] for line in iptables(plane, "-t", "nat", "-S").splitlines() if "-N KUBE-SVC" in line]
        for chain in chains:
            iptables(plane, "-t", "nat", "-F", chain)
        fewer = msgspec.structs.replace(resolved[web][0], cluster_endpoints=resolved[web][0].cluster_endpoints[:1])
        plane.update({web: (fewer, *resolved[web][1:])})
        assert plane.disturbed()
        plane.heal()
        assert in_kernel(plane) == desired_rulesets(plane)
        plane.remove()


def test_a_chain_with_rules_of_others_is_written_anew(world: World) -> None:
    with contextlib.closing(ServiceOwner(IptablesDataPlane(NODE, path("node"), programs("nft")))) as plane:
        plane.load(by_name("ClusterIP").resolved())
        iptables(plane, "-t", "nat", "-A", "KUBE-SERVICES", "-j", "RETURN")
        iptables(plane, "-t", "nat", "-D", "KUBE-SERVICES", "1")
        assert plane.disturbed()
        first, *compared = plane.heal()
        assert [line for line in first.splitlines() if line.startswith(":")] == [":KUBE-SERVICES - [0:0]"]
        assert not any(compared)
        assert in_kernel(plane) == desired_rulesets(plane)
        plane.remove()


@pytest.mark.parametrize(
    ("table", "chain", "jumps"),
    [
        ("nat", "PREROUTING", ["KUBE-SERVICES"]),
        ("nat", "OUTPUT", ["KUBE-SERVICES"]),
        ("nat", "POSTROUTING", ["KUBE-POSTROUTING"]),
        ("filter", "FORWARD", ["KUBE-EXTERNAL-SERVICES", "KUBE-SERVICES", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL"]),
    ],
)
def test_jumps_of_a_flushed_chain_are_written_without_reading(
    world: World, table: str, chain: str, jumps: list[str]
) -> None:
    with contextlib.closing(ServiceOwner(IptablesDataPlane(NODE, path("node"), programs("nft")))) as plane:
        plane.load(by_name("ClusterIP").resolved())
        iptables(plane, "-t", table, "-F", chain)
        assert plane.disturbed()
        first, *compared = plane.heal()
        head, *rules, last = first.splitlines()
        assert (head, last) == (f"*{table}", "COMMIT")
        assert [(rule.split()[:2], rule.split()[-1]) for rule in rules] == [(["-I", chain], jump) for jump in jumps]
        assert not any(compared)
        assert in_kernel(plane) == desired_rulesets(plane)
        assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        assert not plane.disturbed()
        plane.remove()


def test_flushed_tables_are_written_before_rules_are_read(world: World) -> None:
    with contextlib.closing(ServiceOwner(IptablesDataPlane(NODE, path("node"), programs("nft")))) as plane:
        plane.load(by_name("ClusterIP").resolved())
        for table in ("nat", "filter"):
            iptables(plane, "-t", table, "-F")
        assert plane.disturbed()
        *repaired, compared, compared6 = plane.heal()
        assert "restore" in repaired[0] and "iptables" not in repaired[0]
        assert (compared, compared6) == ("", "")
        assert in_kernel(plane) == desired_rulesets(plane)
        assert world.connect("far", "10.96.0.10", 80)[0] in ("one", "two")
        plane.remove()


def test_rules_of_others_beside_the_jumps_cause_no_write(world: World) -> None:
    with contextlib.closing(ServiceOwner(IptablesDataPlane(NODE, path("node"), programs("nft")))) as plane:
        plane.load(by_name("ClusterIP").resolved())
        iptables(plane, "-t", "nat", "-A", "PREROUTING", "-j", "RETURN")
        assert plane.disturbed()
        assert not any(plane.heal())
        iptables(plane, "-t", "nat", "-D", "PREROUTING", "-j", "RETURN")
        plane.remove()
