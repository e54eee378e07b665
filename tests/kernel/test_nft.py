"""nftables in the real kernel, with nft(8) as the oracle."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from podwire.errors import KernelError
from podwire.kernel import netns, uapi
from podwire.kernel.nft import Nft
from podwire.kernel.nft_families import FAMILIES, FamilyTables, clear
from podwire.kernel.nft_monitor import NftMonitor
from podwire.kernel.nft_socket import NftSocket
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_diff import AddElements, AddTable, DeleteElements, Transaction
from podwire.state.nft_text import parse_rule, parse_table

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nft"), reason="needs root and nft(8)")

NAME = f"pwt-nft-{os.getpid()}"
PLACE = Path(f"/run/netns/{NAME}")
GOLDEN = Path(__file__).parents[1] / "golden/nft/everything.nft"
FOREIGN = "table ip foreign {\n\tset s {\n\t\ttype ipv4_addr\n\t\telements = { 1.2.3.4 }\n\t}\n}\n"


def nft(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", NAME, "nft", *arguments], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def kernel() -> Iterator[Nft]:
    netns.create(PLACE)
    with Nft(PLACE) as opened:
        yield opened
    netns.delete(PLACE)


@pytest.fixture
def everything() -> Table:
    return parse_table(GOLDEN.read_text())


def test_nft_lists_what_was_applied(kernel: Nft, everything: Table) -> None:
    kernel.apply(everything)
    assert parse_table(nft("list", "table", "ip", "everything")) == everything
    assert kernel.read("ip", "everything") == everything
    assert '"everything"' in nft("-j", "list", "ruleset")
    assert not kernel.apply(everything)


def test_we_read_what_nft_wrote(kernel: Nft, everything: Table) -> None:
    nft("-f", "-", text=GOLDEN.read_text())
    assert not kernel.apply(everything)


def test_tables_of_other_families_are_read_back(kernel: Nft) -> None:
    for family, address, rule in (("ip6", "fd00::1", "ip6 saddr @s drop"), ("inet", "10.0.0.1", "ip saddr @s drop")):
        kind = "ipv6_addr" if family == "ip6" else "ipv4_addr"
        declared = Set(name="s", key=(kind,), flags=("interval",))
        table = parse_table(
            f"table {family} t {{\n chain c {{\n type filter hook forward priority filter; policy accept;\n {rule}\n"
            "reject\n }\n}"
        )
        table = msgspec.structs.replace(table, sets=(declared.with_elements([declared.element(address)]),))
        kernel.apply(table)
        assert parse_table(nft("list", "table", family, "t")) == table
        assert not kernel.apply(table)


BRIDGE = """table bridge t {
	set own {
		type ifname . ipv4_addr
		elements = { "veth1" . 10.0.0.1 }
	}

	set own6 {
		type ifname . ipv6_addr
	}

	chain c {
		type filter hook prerouting priority -310; policy accept;
		iifname . ip saddr @own accept
		iifname . arp saddr ip @own accept
		arp saddr ip != 0.0.0.0 counter packets 0 bytes 0 drop
		iifname . ip6 saddr @own6 accept
		ip6 saddr != fe80::/10 ip6 saddr != :: drop
		meta protocol ip drop
	}
}
"""


def test_frames_of_a_bridge(kernel: Nft) -> None:
    kernel.apply(parse_table(BRIDGE))
    assert nft("list", "table", "bridge", "t") == BRIDGE.replace("-310", "dstnat - 10")
    assert not kernel.apply(parse_table(BRIDGE))


def test_every_change_between_two_tables_is_applied(kernel: Nft, everything: Table) -> None:
    smaller = msgspec.structs.replace(
        everything,
        sets=tuple(declared for declared in everything.sets if declared.name in ("pods", "services")),
        chains=(
            msgspec.structs.replace(everything.chain("rules"), rules=(parse_rule("ip saddr @pods accept"),)),
            everything.chain("refuse"),
        ),
    )
    for want in (everything, smaller, everything, msgspec.structs.replace(everything, sets=(), chains=())):
        kernel.apply(want)
        assert parse_table(nft("list", "table", "ip", "everything")) == want.canonical()


class SilentSocket(NftSocket):
    """A socket whose requests do not get to the kernel."""

    def _send(self, sock: socket.socket, data: bytes, operation: str) -> None:
        pass


class ForgetfulSocket(NftSocket):
    """A socket that loses the answer to the first request."""

    lost = 0

    def _receive(self, operation: str) -> bytes:
        while not self.lost:
            try:
                super()._receive(operation)
            except KernelError:
                self.lost += 1
                raise
        return super()._receive(operation)


def test_an_answer_that_does_not_come_is_an_error() -> None:
    """An agent that waited for it would never do anything again."""
    with contextlib.closing(SilentSocket(answer_s=0.05)) as silent:
        with pytest.raises(KernelError, match="receive nftables generation: errno 110"):
            silent.generation()
        with pytest.raises(KernelError, match="errno 110"):
            silent.dump(uapi.NFT_MSG_GETTABLE, socket.AF_INET)


def test_a_request_is_sent_again_when_its_answer_is_lost(kernel: Nft, everything: Table) -> None:
    kernel.apply(everything)
    with contextlib.closing(ForgetfulSocket(PLACE, answer_s=0.05)) as forgetful:
        port = forgetful.port
        assert forgetful.generation() == kernel.generation()
        assert (forgetful.lost, forgetful.port) == (1, port)
    with contextlib.closing(ForgetfulSocket(PLACE, answer_s=0.05)) as forgetful:
        with contextlib.closing(NftSocket(PLACE)) as other:
            request = (uapi.NFT_MSG_GETRULE, socket.AF_INET)
            assert forgetful.dump(*request) == other.dump(*request) != []
        assert forgetful.lost == 1


def test_an_answer_is_asked_for_in_the_same_namespace(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    netns.create(elsewhere)
    try:
        with contextlib.closing(ForgetfulSocket(elsewhere, answer_s=0.05)) as forgetful, Nft(elsewhere) as there:
            there.apply(Table(family="inet", name="there"))
            there.apply(Table(family="inet", name="too"))
            netns.delete(elsewhere)
            assert forgetful.generation() == there.generation() > 1
    finally:
        netns.delete(elsewhere)


def test_foreign_tables_stay(kernel: Nft, everything: Table) -> None:
    nft("-f", "-", text=FOREIGN)
    kernel.apply(everything)
    kernel.delete("ip", "everything")
    kernel.delete("ip", "everything")
    assert nft("list", "ruleset") == FOREIGN


def test_a_refusal_names_the_element_and_changes_nothing(kernel: Nft, everything: Table) -> None:
    kernel.apply(everything)
    targets = everything.set("targets").without_elements()
    elements = dict([targets.element("0x9", "10.0.0.9 . 80"), targets.element("0x5", "10.9.9.9 . 80")])
    with pytest.raises(KernelError, match=r"add element targets \{ 0x00000005 : 10.9.9.9 . 80 \}"):
        kernel.commit(Transaction("ip", "everything", (AddElements(targets, elements),)))
    missing = dict([targets.element("0x77", "10.0.0.9 . 80")])
    with pytest.raises(KernelError, match="0x00000077"):
        kernel.commit(Transaction("ip", "everything", (DeleteElements(targets, missing),)))
    assert kernel.read("ip", "everything") == everything


def test_a_refused_rule_is_named(kernel: Nft) -> None:
    bad = parse_table("table ip t {\n chain c {\n ip saddr @missing drop\n }\n}")
    with pytest.raises(KernelError, match="add rule c ip saddr @missing drop"):
        kernel.apply(bad)
    assert kernel.read("ip", "t") is None


def test_unknown_rules_are_replaced(kernel: Nft) -> None:
    nft("-f", "-", text="table ip t {\n chain c {\n type filter hook forward priority 0;\n ip ttl 5 drop\n }\n}\n")
    want = parse_table(
        "table ip t {\n chain c {\n type filter hook forward priority filter; policy accept;\n drop\n }\n}"
    )
    assert [str(operation) for operation in kernel.apply(want).operations] == ["flush chain c", "add rule c drop"]
    assert parse_table(nft("list", "table", "ip", "t")) == want


def test_large_loads_are_one_transaction(kernel: Nft) -> None:
    declared = Set(name="s", key=("ipv4_addr", "inet_service"))
    elements = dict(declared.element(f"10.{n >> 8}.{n & 255}.1 . {n}") for n in range(20_000))
    table = Table(family="ip", name="big", sets=(msgspec.structs.replace(declared, elements=elements),))
    before = kernel.generation()
    kernel.apply(table)
    assert kernel.generation() == before + 1
    assert kernel.read("ip", "big") == table


def test_the_monitor_ignores_own_changes(kernel: Nft, everything: Table) -> None:
    monitor = NftMonitor(PLACE, (kernel.port,))
    kernel.apply(everything)
    assert monitor.changed() == set()
    nft("add", "table", "ip", "other")
    nft("flush", "chain", "ip", "everything", "rules")
    assert monitor.changed() == {("ip", "other"), ("ip", "everything")}
    kernel.commit(Transaction("ip", "mine", (AddTable(),)))
    assert monitor.changed() == set()
    monitor.close()


HOOK = Chain(name="input", type="filter", hook="input", rules=(parse_rule("udp dport 9 drop"),))
PAIR = {family: Table(family=family, name="pair", chains=(HOOK,)) for family in FAMILIES}


@pytest.fixture
def tables(kernel: Nft) -> Iterator[FamilyTables]:
    family_tables = FamilyTables("pair", PLACE)
    yield family_tables
    family_tables.close()


def test_inet_table_is_kept_restored_and_removed(tables: FamilyTables) -> None:
    assert [family for family, _ in tables.load(lambda family, _: PAIR[family], tables.commit)] == ["ip", "ip6"]
    assert not any(done for _, done in tables.load(lambda family, _: PAIR[family], tables.commit))
    assert not tables.disturbed(), "our own changes are not told"
    nft("flush", "chain", "ip6", "pair", "input")
    assert tables.disturbed() and not tables.disturbed()
    assert [bool(done) for done in tables.heal(PAIR.items(), tables.commit)] == [False, True]
    assert [item.name for item in tables.held()] == ["pair", "pair"]
    nft("add", "table", "ip", "other")
    assert clear("pair", PLACE) and not clear("pair", PLACE)
    assert tables.nft.tables() == (("ip", "other"),)
    assert tables.disturbed()
    assert not tables.remove() and not tables.held()


@pytest.mark.parametrize("rest", [False, True])
def test_changes_during_a_pause_are_reported(tables: FamilyTables, *, rest: bool) -> None:
    with tables.notifications_off():
        for _ in tables.load(lambda family, _: PAIR[family], tables.commit):
            if rest:
                nft("add", "table", "ip", f"other{len(nft('list', 'tables'))}")
    assert tables.disturbed() == rest
    with tables.notifications_off():
        pass
    assert not tables.disturbed()


def test_counters_of_rules_are_read(kernel: Nft) -> None:
    text = """table inet counting {
	chain output {
		type filter hook output priority 0; policy accept;
		udp dport 9 counter
		udp dport 9 jump second
		udp dport 10 accept
	}
	chain second {
		counter comment "all"
		meta l4proto udp counter drop
	}
	chain third {
		udp dport 10 accept
	}
}
"""
    subprocess.run(["ip", "-n", NAME, "link", "set", "lo", "up"], check=True)
    nft("-f", "-", text=text)
    with netns.inside(PLACE), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(3):
            with contextlib.suppress(PermissionError):  # the drop, as the sender learns of it
                sock.sendto(b"xx", ("127.0.0.1", 9))
    assert kernel.counters("inet", "counting") == {"output": (3, 90), "second": (6, 180)}
    assert kernel.counters("inet", "counting", "second") == {"second": (6, 180)}
    assert kernel.counters("inet", "counting", "third") == {}
    assert kernel.counters("inet", "counting", "nothing") == {}
    assert kernel.counters("inet", "nothing") == {}
