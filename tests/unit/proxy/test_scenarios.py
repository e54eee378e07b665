"""The further scenarios, followed through what each data plane would program."""

from pathlib import Path

import msgspec
import pytest
from tests.cases.service_table import ADDRESSES, NODE, Case, Packet, read_cases
from tests.unit.proxy.test_packet_table import TRACERS

from podwire.trace.packet import Outcome
from podwire.trace.packet import Packet as Traced

CASES = read_cases(Path(__file__).parents[2] / "cases/services/scenarios.yaml")
POD_OF = {address: pod for pod, pair in ADDRESSES.items() for address in pair}
PODS = {"one", "two", "far"}


def judge(outcome: Outcome) -> str:
    served = outcome.packet.destination_port in (8080, 8081)
    if outcome.verdict == "reject" or (outcome.delivered and outcome.verdict == "accept" and not served):
        return "refused"
    if outcome.verdict == "drop":
        return "dropped"
    return POD_OF.get(outcome.packet.destination, outcome.packet.destination)


def expected(packet: Packet) -> set[str]:
    if packet.untouched:
        return {packet.address}
    if packet.refused or packet.dropped:
        return {"refused" if packet.refused else "dropped"}
    return set(packet.reaches or packet.sticky)


@pytest.mark.parametrize("name", TRACERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_scenario(case: Case, name: str) -> None:
    tracer = TRACERS[name](case)
    for packet in case.by(name.partition(",")[0]).packets:
        traced = Traced(
            source=packet.client,
            destination=packet.address,
            protocol=packet.protocol,
            destination_port=packet.port,
            input="" if packet.source == "node" else packet.source,
        )
        outcomes = list(tracer.outcomes(traced))
        ends = {judge(outcome) for outcome in outcomes}
        if packet.refused and POD_OF.get(packet.address) in PODS:
            # The packet reaches a pod that does not listen on the port.
            assert ends == {POD_OF[packet.address]}, f"{packet}\n{outcomes[0]}"
            continue
        assert ends == expected(packet), f"{packet}\n{outcomes[0]}"
        if packet.seen and ends <= set(ADDRESSES):
            assert {o.masqueraded for o in outcomes} == {packet.seen == "node"}, f"{packet}\n{outcomes[0]}"


def test_facts_of_the_node_are_replaced_alone() -> None:
    case = next(case for case in CASES if case.name == "hints on a node without a zone")
    assert case.node == msgspec.structs.replace(NODE, zone="")
