"""The gate of lost messages: what it lets pass, and the proof that it writes."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.fakes.clock import FakeClock

from podwire.errors import ClusterError
from podwire.flows.changes import KernelChange
from podwire.flows.count import FlowReport
from podwire.flows.health import QUIET_S
from podwire.flows.proof import parse_json
from podwire.upgrade.lossgate import FlowGate, GateSettings


class CountedFlows:
    """Flows with counts that a test sets; ``problem`` is why they cannot be counted at the end.

    Each look finds one more message sent, unless the senders hang.
    """

    def __init__(self) -> None:
        self.lost = self.undecided = self.sent = 0
        self.hanging = False
        self.quiet: list[str] = []
        self.running = False
        self.problem = ""

    async def start(self) -> None:
        self.running = True
        if self.problem:
            raise ClusterError(self.problem)

    def senders(self) -> frozenset[str]:
        return frozenset(SOURCES)

    def silent(self, reports: list[FlowReport]) -> list[str]:
        return list(self.quiet)

    async def reports(self) -> list[FlowReport]:
        self.sent += not self.hanging
        return [FlowReport(kind="udp", target="a", source=name, sent=self.sent, lost=self.lost) for name in SOURCES]

    async def settle(self) -> list[FlowReport]:
        if self.problem:
            raise ClusterError(self.problem)
        self.lost += self.undecided
        return await self.reports()

    async def changes(self) -> list[KernelChange]:
        return [KernelChange(at=1.0, subject="link", text="+link", node="node-1")]

    async def remove(self) -> None:
        self.running = False


SOURCES = ("node-1", "node-2", "outside")
CLOCK = FakeClock()
T = TypeVar("T")


def gate(folder: Path, flows: CountedFlows, lines: list[str], most_lost: int = 0) -> FlowGate:
    settings = GateSettings(folder=folder, title="CoreDNS", most_lost=most_lost)
    return FlowGate(flows, settings, CLOCK, lines.append)


def run(body: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, for which time passes."""

    async def passing() -> T:
        task = asyncio.ensure_future(body)
        while not task.done():
            await CLOCK.advance(1.0)
        return await task

    return asyncio.run(passing())


def test_flows_that_lose_nothing_pass_and_are_proven(tmp_path: Path) -> None:
    flows, lines = CountedFlows(), list[str]()
    checked = gate(tmp_path / "proof", flows, lines)
    checked.say("step 0-before: nothing runs yet")
    run(checked.begin())
    for line in ("step 1-coredns: coredns", "wave 1 of 2", "step 2-kube-proxy: kube-proxy"):
        checked.say(line)
    assert run(checked.losses()) == []
    run(checked.end())
    proof = parse_json((tmp_path / "proof" / "proof.json").read_bytes(), "proof.json")
    assert proof == checked.proof
    assert [step.title for step in proof.steps] == ["1-coredns: coredns", "2-kube-proxy: kube-proxy"]
    assert (proof.nodes, len(proof.flows), len(proof.changes), flows.running) == (2, 3, 1, False)
    assert lines[-1].startswith("loss proof: ")


def test_lost_messages_beyond_the_limit_are_named(tmp_path: Path) -> None:
    flows = CountedFlows()
    checked = gate(tmp_path, flows, [], most_lost=3)
    run(checked.begin())
    flows.lost = 1
    assert run(checked.losses()) == []
    flows.lost = 2
    assert run(checked.losses()) == ["6 messages were lost, at most 3 may be"]


def test_a_loss_counts_at_the_step_that_sent_the_message(tmp_path: Path) -> None:
    flows = CountedFlows()
    checked = gate(tmp_path, flows, [])
    run(checked.begin())
    flows.undecided = 1
    assert run(checked.losses()) == ["3 messages were lost, at most 0 may be"]
    flows.problem = "no counts of the flows from node-2"
    assert run(checked.losses()) == [flows.problem]


def test_flows_that_never_had_answers_are_removed(tmp_path: Path) -> None:
    flows = CountedFlows()
    flows.problem = "flows have no answers"
    with pytest.raises(ClusterError, match="flows have no answers"):
        run(gate(tmp_path, flows, []).begin())
    assert not flows.running


def test_flows_end_when_the_proof_cannot_be_written(tmp_path: Path) -> None:
    flows, lines = CountedFlows(), list[str]()
    (tmp_path / "proof").write_text("a file")
    checked = gate(tmp_path / "proof", flows, lines)
    run(checked.begin())
    run(checked.end())
    assert not flows.running and lines[-1].startswith("there is no loss proof: ")


def test_flows_that_stay_silent_are_named(tmp_path: Path) -> None:
    flows = CountedFlows()
    checked = gate(tmp_path, flows, [])
    run(checked.begin())
    flows.quiet = ["udp from node-1 to a (pod): no answer for 9.0 s"]
    assert run(checked.losses()) == flows.quiet


def test_flows_end_even_when_they_cannot_be_counted(tmp_path: Path) -> None:
    flows, lines = CountedFlows(), list[str]()
    checked = gate(tmp_path, flows, lines)
    run(checked.end())
    assert lines == [], "nothing began"
    run(checked.begin())
    flows.problem = "no counts of the flows from node-2"
    run(checked.end())
    assert not flows.running and lines == ["there is no loss proof: no counts of the flows from node-2"]


def test_senders_that_hang_are_named_within_a_bounded_time(tmp_path: Path) -> None:
    flows = CountedFlows()
    checked = gate(tmp_path, flows, [])
    run(checked.begin())
    assert run(checked.losses()) == []
    flows.hanging = True
    began = CLOCK.monotonic()
    assert run(checked.losses()) == [
        f"the sender of {source} sends nothing: it has sent {flows.sent} messages, as many as before"
        for source in SOURCES
    ]
    assert CLOCK.monotonic() - began <= 2 * QUIET_S
    flows.hanging = False
    assert run(checked.losses()) == []


def test_each_run_keeps_its_proof(tmp_path: Path) -> None:
    files = []
    for lost in (0, 4):
        flows, lines = CountedFlows(), list[str]()
        flows.lost = lost
        checked = gate(tmp_path, flows, lines)
        run(CLOCK.sleep(2.0))
        run(checked.begin())
        run(checked.end())
        files.append(next(line for line in lines if line.startswith("loss proof: ")).split()[2].rstrip(";"))
    kept = [parse_json(Path(file).read_bytes(), file) for file in files]
    assert [proof.flows[0].lost for proof in kept] == [0, 4]
    assert parse_json((tmp_path / "proof.json").read_bytes(), "proof.json") == kept[1]
    assert len(list(tmp_path.glob("proof-*.json"))) == 2
