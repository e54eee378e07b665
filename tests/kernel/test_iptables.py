"""The programs of iptables: what they are told, what they answer, and a descriptor that ticks."""

import os
import select
from collections.abc import Iterator

import pytest

from podwire.errors import KernelError, Unsupported
from podwire.kernel import iptables, netns
from podwire.kernel.iptables import Iptables, Kind, Ticker, choose, find
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
    found = find(kind)
    assert found is not None and found.kind == kind
    with Iptables("ip", found, place) as made:
        yield made


def test_what_was_written_is_read_and_the_rest_stays(tool: Iptables) -> None:
    tool.restore("*filter\n:ONE - [0:0]\n-A ONE -j RETURN\nCOMMIT\n*nat\n:TWO - [0:0]\nCOMMIT\n")
    tool.restore("*filter\n:THREE - [0:0]\nCOMMIT\n")
    saved = parse_save(tool.save())
    assert saved["filter"]["ONE"] == ["-j RETURN"]
    assert {"THREE"} <= saved["filter"].keys() and "TWO" in saved["nat"]


def test_the_process_is_told_before_it_changes_anything(tool: Iptables) -> None:
    told: list[tuple[int, bool]] = []
    tool.restore("*filter\n:ONE - [0:0]\nCOMMIT\n", lambda pid: told.append((pid, ":ONE" in tool.save())))
    ((process, there),) = told
    assert process > 0 and not there
    tool.restore("", lambda pid: told.append((pid, True)))
    assert len(told) == 1, "nothing to change needs no process"


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


def test_a_machine_without_the_programs_says_so(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iptables, "_PATH", "/nonexistent")
    with pytest.raises(Unsupported, match="there is no iptables-restore on this machine"):
        choose(place)


def test_a_ticker_ticks() -> None:
    ticker = Ticker(0.02)
    assert not ticker.ticked()
    assert select.select([ticker], [], [], 1)[0] == [ticker]
    assert ticker.ticked() and not ticker.ticked()
    ticker.close()
