"""The programs of iptables: their input, their answers, and the timer descriptor."""

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from podwire.errors import KernelError, Unsupported
from podwire.kernel import netns
from podwire.kernel.iptables import Iptables, Kind, Ticker, choose, find, locked, nft_tables
from podwire.kernel.iptables_tables import drop_tables, make_tables
from podwire.kernel.legacy_rules import MOST_BYTES, KnownTables, LegacyTables
from podwire.kernel.xtables_lock import LockUses
from podwire.state.iptables import parse_save

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

PLACE = f"/run/netns/pwt-iptables-{os.getpid()}"


@pytest.fixture
def place() -> Iterator[str]:
    netns.create(PLACE)
    yield PLACE
    netns.delete(PLACE)


@pytest.fixture(params=["nft", "legacy"])
def tool(place: str, request: pytest.FixtureRequest) -> Iterator[Iptables]:
    kind: Kind = request.param
    result = find(kind)
    assert result is not None and result.kind == kind
    with Iptables("ip", result, place) as iptables:
        yield iptables


def test_written_chains_are_read_back_and_the_rest_stays(tool: Iptables) -> None:
    tool.restore("*filter\n:ONE - [0:0]\n-A ONE -j RETURN\nCOMMIT\n*nat\n:TWO - [0:0]\nCOMMIT\n")
    tool.restore("*filter\n:THREE - [0:0]\nCOMMIT\n")
    saved = parse_save(tool.save())
    assert saved["filter"]["ONE"] == ["-j RETURN"]
    assert {"THREE"} <= saved["filter"].keys() and "TWO" in saved["nat"]


def test_the_callback_gets_the_process_before_any_change(tool: Iptables) -> None:
    reported: list[tuple[int, bool]] = []
    tool.restore("*filter\n:ONE - [0:0]\nCOMMIT\n", lambda pid: reported.append((pid, ":ONE" in tool.save())))
    ((process, there),) = reported
    assert process > 0 and not there
    tool.restore("", lambda pid: reported.append((pid, True)))
    assert len(reported) == 1, "nothing to change needs no process"


def test_a_refused_text_names_its_line(tool: Iptables) -> None:
    with pytest.raises(KernelError, match="-A ONE --nonsense") as caught:
        tool.restore("*filter\n:ONE - [0:0]\n-A ONE --nonsense\nCOMMIT\n")
    assert caught.value.operation == "iptables-restore"
    assert "ONE" not in parse_save(tool.save()).get("filter", {}), "a table changes whole or not at all"


def test_only_the_namespace_is_changed(tool: Iptables) -> None:
    tool.restore("*nat\n:PODWIRE-TEST - [0:0]\nCOMMIT\n")
    for family in ("ip", "ip6"):
        programs = find("nft")
        assert programs is not None
        with Iptables(family, programs) as here:
            assert "PODWIRE-TEST" not in here.save()


OURS = "*mangle\n:OURS - [0:0]\n-I FORWARD -j OURS\nCOMMIT\n"
WITHOUT = "*mangle\n:OURS - [0:0]\n-D FORWARD -j OURS\n-X OURS\nCOMMIT\n"


@pytest.fixture
def nft(place: str) -> Iterator[Iptables]:
    result = find("nft")
    assert result is not None
    with Iptables("ip", result, place) as iptables:
        yield iptables


def make(place: str) -> list[int]:
    """Creates the missing tables; returns what was reported about each of them."""
    result, reported = find("nft"), list[int]()
    assert result is not None
    make_tables(result, ("mangle",), place, reported.append)
    return reported


def test_a_table_that_podwire_created_is_deleted(nft: Iptables, place: str) -> None:
    assert make(place)
    assert not make(place), "it is there"
    assert nft_tables(place) == {("ip", "mangle"), ("ip6", "mangle")}
    nft.restore(OURS)
    drop_tables(("mangle",), place)
    assert nft_tables(place) == {("ip", "mangle")}, "it is in use"
    nft.restore(WITHOUT)
    assert nft_tables(place) == {("ip", "mangle")}
    drop_tables(("mangle",), place)
    assert not nft_tables(place)


@pytest.mark.parametrize(
    "line", [":THEIRS - [0:0]", "-A OUTPUT -j RETURN", ":OUTPUT DROP [0:0]"], ids=["chain", "rule", "policy"]
)
def test_a_used_table_stays(nft: Iptables, place: str, line: str) -> None:
    make(place)
    nft.restore(OURS)
    nft.restore(f"*mangle\n{line}\nCOMMIT\n")
    nft.restore(WITHOUT)
    before = nft.save()
    drop_tables(("mangle",), place)
    assert [splitline for splitline in nft.save().splitlines() if "#" not in splitline] == [
        splitline for splitline in before.splitlines() if "#" not in splitline
    ]
    assert ("ip", "mangle") in nft_tables(place)


def test_a_table_of_another_owner_stays(nft: Iptables, place: str) -> None:
    nft.restore(OURS)
    make(place)
    nft.restore(WITHOUT)
    drop_tables(("mangle",), place)
    assert nft_tables(place) == {("ip", "mangle")}


def test_missing_iptables_programs_are_an_error(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(Unsupported, match="iptables-restore is not installed"):
        choose(place)


def test_a_held_xtables_lock_is_detected() -> None:
    legacy, nft = find("legacy"), find("nft")
    assert legacy is not None and nft is not None
    descriptor = os.open("/run/xtables.lock", os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert locked(legacy)
        assert not locked(nft), "it takes none"
    finally:
        os.close(descriptor)
    until = time.monotonic() + 30
    while locked(legacy) and time.monotonic() < until:
        time.sleep(0.01)  # whoever waited has it now
    assert not locked(legacy)


def test_a_ticker_becomes_readable_every_period() -> None:
    ticker = Ticker(0.02)
    assert not ticker.period_ended()
    assert select.select([ticker], [], [], 1)[0] == [ticker]
    assert ticker.period_ended() and not ticker.period_ended()
    ticker.close()


def test_programs_of_legacy_iptables_are_noticed_as_they_end(place: str) -> None:
    legacy = find("legacy")
    assert legacy is not None
    with Iptables("ip", legacy, place) as tool, contextlib.closing(LockUses()) as uses:
        tool.restore("*filter\nCOMMIT\n")
        uses.watch()
        uses.used()
        tool.restore("*filter\n:ONE - [0:0]\nCOMMIT\n")
        assert select.select([uses.fileno()], [], [], 30)[0]
        assert uses.used()


@pytest.fixture
def legacy(place: str) -> Iterator[tuple[KnownTables, dict[str, Iptables]]]:
    """The tables ``filter`` of both families, and the tools that change them."""
    programs = find("legacy")
    assert programs is not None
    with contextlib.ExitStack() as stack:
        tools = {family: stack.enter_context(Iptables(family, programs, place)) for family in ("ip", "ip6")}
        for tool in tools.values():
            tool.restore("*filter\n-A INPUT -p tcp -m tcp --dport 80 -m comment --comment own -j ACCEPT\nCOMMIT\n")
        tables = stack.enter_context(contextlib.closing(LegacyTables(place, ("filter", "nat"))))
        known = KnownTables(tables)
        known.read()
        yield known, tools


@pytest.mark.parametrize("family", ["ip", "ip6"])
@pytest.mark.parametrize(
    "line",
    [
        "-R INPUT 1 -p tcp -m tcp --dport 81 -m comment --comment own -j ACCEPT",
        "-R INPUT 1 -p tcp -m tcp --dport 80 -m comment --comment own -j DROP",
        "-P FORWARD DROP",
    ],
)
def test_a_legacy_rule_of_the_same_size_differs(
    legacy: tuple[KnownTables, dict[str, Iptables]], family: str, line: str
) -> None:
    known, tools = legacy
    assert known.differing(rules=True) == frozenset()
    text = ":FORWARD DROP [0:0]" if line.startswith("-P") else line
    tools[family].restore(f"*filter\n{text}\nCOMMIT\n")
    assert known.differing(rules=False) == frozenset(), "the size and the number of rules are as before"
    assert known.differing(rules=True) == {(family, "filter")}
    known.accept([(family, "filter")])
    assert known.differing(rules=True) == frozenset()


def test_counters_of_legacy_rules_make_no_difference(
    legacy: tuple[KnownTables, dict[str, Iptables]], place: str
) -> None:
    known, tools = legacy
    with netns.inside(place):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        with socket.create_server(("127.0.0.1", 80)) as server, socket.create_connection(server.getsockname()):
            pass
    assert "[0:0] -A INPUT" not in tools["ip"].save("filter", counters=True)
    assert known.differing(rules=True) == frozenset()


def test_a_legacy_table_above_the_limit_has_no_digest(
    legacy: tuple[KnownTables, dict[str, Iptables]], place: str
) -> None:
    _, tools = legacy
    rules = [f"-A INPUT -s 10.0.{number >> 8}.{number & 255}/32 -j ACCEPT" for number in range(256)]
    with contextlib.closing(LegacyTables(place, ("filter",))) as tables:
        for times, expected in ((1, True), (MOST_BYTES // 256 // 150, False)):
            tools["ip"].restore("\n".join(("*filter", *(rules * times), "COMMIT\n")))
            info = tables.infos()["ip", "filter"]
            assert bool(tables.digest(("ip", "filter"), info)) == expected
