"""Kinds of state in a real kernel: the rows read, apply and watch, also a kind that a test registers."""

import contextlib
import json
import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.fakes import qdisc_kind

from podwire.cli.state import state
from podwire.kernel import netns
from podwire.kernel.kinds import KERNEL_KINDS, KernelKind
from podwire.kernel.netns import NetnsPath
from podwire.state.ipset import parse as parse_sets
from podwire.state.iptables import Ruleset
from podwire.state.kinds import KINDS, Kind
from podwire.state.network import OwnerMark
from podwire.state.network import parse as parse_network
from podwire.state.nft import AbsentTable
from podwire.state.nft_text import parse_table
from podwire.state.share import Share, render

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

HANDLE = "9000:"
"""The owner mark of queueing disciplines in this test."""
_RTNLGRP_TC = 4  # linux/rtnetlink.h


def _tc(place: NetnsPath, *arguments: str) -> str:
    with netns.inside(place):
        return subprocess.run(["tc", *arguments], check=True, capture_output=True, text=True).stdout


def _read(place: NetnsPath, mark: str) -> tuple[qdisc_kind.Qdisc, ...]:
    result = json.loads(_tc(place, "-j", "qdisc", "show"))
    return tuple(qdisc_kind.Qdisc(item["dev"], item["options"]["limit"]) for item in result if item["handle"] == mark)


def _apply(place: NetnsPath, mark: str, qdiscs: Sequence[qdisc_kind.Qdisc]) -> tuple[str, ...]:
    steps = [item for item in qdiscs if item not in _read(place, mark)]
    for step in steps:
        arguments = ("dev", step.device, "root", "handle", mark, "pfifo", "limit", str(step.limit))
        _tc(place, "qdisc", "replace", *arguments)
    return tuple(str(item) for item in steps)


class _TcWatch:
    """rtnetlink's notifications about queueing disciplines."""

    def __init__(self, place: NetnsPath, _mark: str) -> None:
        with netns.inside(place):
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._socket.bind((0, 1 << (_RTNLGRP_TC - 1)))
        self.fileno, self.close = self._socket.fileno, self._socket.close

    def changed(self) -> bool:
        try:
            return bool(self._socket.recv(1 << 16))
        except BlockingIOError:
            return False


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A namespace, while the kind `qdisc` is registered."""
    row = Kind(
        qdisc_kind.Qdisc, qdisc_kind.parse, lambda _owner, expected: HANDLE if expected else None, qdisc_kind.compare,
        lambda item: (("qdiscs", line) for line in item.lines()), ("qdisc ",),
    )  # fmt: skip
    monkeypatch.setitem(KINDS, "qdisc", row)
    monkeypatch.setitem(KERNEL_KINDS, "qdisc", KernelKind(_read, _apply, _TcWatch))
    path = f"/run/netns/pwt-kinds-{os.getpid()}"
    netns.create(path)
    _tc(path, "-V")
    yield path
    netns.delete(path)


def state_diff(tmp_path: Path, place: str, share: Share) -> tuple[int, str]:
    """Exit status and output of `podwire state node-1 --diff --saved FILE` in the namespace."""
    saved, config = tmp_path / "saved.txt", tmp_path / "agent.yaml"
    saved.write_text("".join(f"{line}\n" for line in render([share])))
    config.write_text("nodeName: node-1\n")
    arguments = ["node-1", "--diff", "--saved", str(saved), "--config", str(config)]
    with netns.inside(place):
        done = CliRunner().invoke(state, arguments, standalone_mode=False)
    return done.return_value, done.output


def test_a_registered_kind_goes_through_state_diff(place: str, tmp_path: Path) -> None:
    share = Share(part="shaping", desired=(qdisc_kind.Qdisc("lo", 50),))
    added = "@@ shaping: qdiscs @@\n+qdisc dev lo pfifo limit 50\n"
    assert state_diff(tmp_path, place, share) == (
        1, f"--- node-1: the kernel holds\n+++ node-1: it should hold\n{added}",
    )  # fmt: skip
    KERNEL_KINDS["qdisc"].apply(place, HANDLE, share.values(qdisc_kind.Qdisc))
    assert state_diff(tmp_path, place, share) == (0, "")
    _tc(place, "qdisc", "replace", "dev", "lo", "root", "handle", HANDLE, "pfifo", "limit", "7")
    status, text = state_diff(tmp_path, place, share)
    assert status == 1 and "-qdisc dev lo pfifo limit 7\n+qdisc dev lo pfifo limit 50\n" in text


class ChangingAgent(threading.Thread):
    """Serves `/state` on a socket: each answer has the next of the documents."""

    def __init__(self, path: Path, shares: Sequence[Share]) -> None:
        super().__init__(daemon=True)
        self._shares = list(shares)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen()
        self.start()

    def run(self) -> None:
        while self._shares:
            client, _ = self._server.accept()
            with client:
                client.recv(1 << 16)
                text = "".join(f"{line}\n" for line in render([self._shares.pop(0)]))
                client.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        self._server.close()


def test_state_diff_leaves_out_what_is_being_written(place: str, tmp_path: Path) -> None:
    config, agent = tmp_path / "agent.yaml", tmp_path / "agent.sock"
    config.write_text(f"nodeName: node-1\nrunDir: {tmp_path}\n")
    states = [Share(part="shaping", desired=(qdisc_kind.Qdisc("lo", limit),)) for limit in (50, 60, 50, 50)]
    ChangingAgent(agent, states)
    with netns.inside(place):
        for expected in ((0, ""), (1, "+qdisc dev lo pfifo limit 50")):
            done = CliRunner().invoke(state, ["node-1", "--diff", "--config", str(config)], standalone_mode=False)
            assert done.return_value == expected[0], done.output
            assert expected[1] in done.output


SETS = "create podwire-kinds hash:ip family inet hashsize 1024 maxelem 65536\nadd podwire-kinds 10.0.0.1"
CHAINS = Ruleset(
    family="ip", table="mangle", chains={"PODWIRE-X": ("-j RETURN",)}, jumps=(("FORWARD", "-j PODWIRE-X"),)
)
EXAMPLES: dict[str, Any] = {
    "network": parse_network("link kind0 alias podwire/kinds up type bridge\nroute 10.9.0.0/16 dev kind0 proto 201\n"),
    "nftables": parse_table("table ip kinds {\n\tchain c {\n\t\tdrop\n\t}\n}"),
    "iptables": CHAINS,
    "ipset": parse_sets(SETS.splitlines())[0],
    "absent nftables": AbsentTable("ip", "kinds"),
    "qdisc": qdisc_kind.Qdisc("lo", 50),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_applied_state_has_no_difference_and_is_applied_once(place: str, name: str) -> None:
    kind, kernel = KINDS[name], KERNEL_KINDS[name]
    share = Share(part="kinds", protocol=201, alias="podwire/kinds", desired=(EXAMPLES[name],))
    mark = share.mark(kind)
    if name == "absent nftables":
        KERNEL_KINDS["nftables"].apply(place, mark, [EXAMPLES["nftables"]])
    assert list(share.compare(kind, kernel.read(place, mark)))
    assert kernel.apply(place, mark, share.values(kind.type))
    assert list(share.compare(kind, kernel.read(place, mark))) == []
    assert kernel.apply(place, mark, share.values(kind.type)) == ()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "ipset"])
def test_a_watch_notices_changes_by_other_programs(place: str, name: str) -> None:
    kind, kernel = KINDS[name], KERNEL_KINDS[name]
    mark = Share(part="kinds", protocol=201, desired=(EXAMPLES[name],)).mark(kind)
    with contextlib.closing(kernel.watch(place, mark)) as watch:
        assert not watch.changed()
        other = "nftables" if name == "absent nftables" else name
        KERNEL_KINDS[other].apply(place, mark, [EXAMPLES[other]])
        assert select.select([watch.fileno()], [], [], 5)[0] and watch.changed()


def test_a_mark_of_another_owner_selects_nothing(place: str) -> None:
    share = Share(part="kinds", protocol=201, alias="podwire/kinds", desired=(EXAMPLES["network"],))
    kind, kernel = KINDS["network"], KERNEL_KINDS["network"]
    kernel.apply(place, share.mark(kind), share.values(kind.type))
    other = kind.mark(OwnerMark(route_protocol=202, alias_prefix="podwire/other"), ())
    assert list(kind.compare("other", kernel.read(place, other), (), other)) == []
