"""What ``why`` states of every packet of the packet table is what the table states, by every data plane's rules."""

from pathlib import Path

import pytest

from podwire.proxy.tracing import MODULES, Tracing, open_tracing
from podwire.proxy.why.hop import Backed, View, explain_hop
from podwire.proxy.why.objects import belongs
from podwire.testing.servicecases import ADDRESSES, NODE, Case, Packet, read_cases
from podwire.trace.answer import Hop
from podwire.trace.packet import Machine
from podwire.trace.packet import Packet as Traced

FOLDER = Path(__file__).parents[3] / "cases/services"
CASES = [*read_cases(FOLDER / "policies.yaml"), *read_cases(FOLDER / "scenarios.yaml")]
POD_OF = {address: pod for pod, pair in ADDRESSES.items() for address in pair}
PODS = {"one", "two", "far"}
MACHINE = Machine(addresses=frozenset((*NODE.addresses, "192.168.99.3")))


def backed(case: Case) -> list[Backed]:
    return [(service, tuple(piece for piece in case.slices if belongs(piece, service))) for service in case.services]


def tracing(mode: str) -> Tracing:
    found = open_tracing(mode)
    assert found is not None
    return found


def view(case: Case, mode: str) -> View:
    tracer = tracing(mode).planned(case.resolved(), case.node, MACHINE)
    return View(mode=mode, facts=case.node, machine=MACHINE, planned=tracer, held=tracer)


def traced(packet: Packet) -> Traced:
    return Traced(
        source=packet.client,
        destination=packet.address,
        protocol=packet.protocol,
        destination_port=packet.port,
        input="" if packet.source == "node" else packet.source,
    )


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def check(packet: Packet, hop: Hop) -> None:
    """Whether an answer is what the table states."""
    used = {POD_OF[e.address] for e in hop.endpoints if e.used}
    if packet.dropped:
        assert hop.outcome == "dropped"
    elif packet.refused:
        # Where nobody serves: a rule refuses, or the packet reaches the node or a pod and finds no listener there.
        own = MACHINE.owns(packet.address) or POD_OF.get(packet.address) in PODS
        assert hop.outcome == "refused" or (own and hop.outcome == "untouched")
    elif packet.untouched:
        assert hop.outcome == "untouched"
    else:
        assert hop.outcome == "forwarded"
        assert used == set(packet.reaches or packet.sticky)
        assert sum(e.probability for e in hop.endpoints) == pytest.approx(1)
        if packet.seen:
            assert {e.masqueraded for e in hop.endpoints if e.used} == {packet.seen == "node"}
            assert hop.snat is not None
            assert hop.snat.masqueraded == (packet.seen == "node")
    assert hop.drift == ()


@pytest.mark.parametrize("mode", MODULES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_answer_is_what_the_table_states(case: Case, mode: str) -> None:
    here = view(case, mode)
    for packet in case.by(mode).packets:
        hop, _ = explain_hop(traced(packet), backed(case), here)
        check(packet, hop)
        assert hop.steps or hop.outcome == "untouched"


@pytest.mark.parametrize("mode", MODULES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reasons_agree_with_the_rules(case: Case, mode: str) -> None:
    here = view(case, mode)
    for told, packet in zip(case.packets, case.by(mode).packets, strict=True):
        hop, _ = explain_hop(traced(packet), backed(case), here)
        other = told.differs.get(mode)
        ends_otherwise = other is not None and (other.refused or other.dropped)
        assert (hop.reason == "Mode") == ends_otherwise, f"{packet}: {hop.message}"
        if hop.snat is not None and not (other is not None and other.seen):
            assert hop.snat.reason != "Rules", f"{packet}: {hop.snat.message}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mode_that_cannot_be_traced_is_explained_by_the_objects(case: Case) -> None:
    alone = View(mode="other", facts=case.node, machine=MACHINE)
    for packet in case.packets:
        hop, _ = explain_hop(traced(packet), backed(case), alone)
        check(packet, hop)
        assert hop.steps == ()
