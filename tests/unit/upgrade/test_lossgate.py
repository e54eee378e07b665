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
from podwire.flows.proof import parse_json
from podwire.upgrade.lossgate import FlowGate, GateSettings


class CountedFlows:
    """Flows with counts that a test sets; ``problem`` is why they cannot be counted at the end."""

    def __init__(self) -> None:
        self.lost = self.undecided = 0
        self.quiet: list[str] = []
        self.running = False
        self.problem = ""

    async def start(self) -> None:
        self.running = True
        if self.problem:
            raise ClusterError(self.problem)

    async def silent(self) -> list[str]:
        return list(self.quiet)

    async def reports(self) -> list[FlowReport]:
        sources = ("node-1", "node-2", "outside")
        return [FlowReport(kind="udp", target="a", source=name, sent=9, lost=self.lost) for name in sources]

    async def settle(self) -> list[FlowReport]:
        if self.problem:
            raise ClusterError(self.problem)
        self.lost += self.undecided
        return await self.reports()

    async def changes(self) -> list[KernelChange]:
        return [KernelChange(at=1.0, subject="link", text="+link", node="node-1")]

    async def remove(self) -> None:
        self.running = False


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
