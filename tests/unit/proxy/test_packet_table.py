"""Every case of the packet table, followed through the tables that each data plane would program."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cases.service_table import ADDRESSES, NODE, Case, Packet, read_cases

from podwire.proxy import registry
from podwire.proxy.dataplanes.iptables import shared
from podwire.proxy.tracing import open_tracing
from podwire.trace.packet import LocalAddresses, Outcome
from podwire.trace.packet import Packet as Traced

CASES = read_cases(Path(__file__).parents[2] / "cases/services/policies.yaml")
POD_OF = {address: pod for pod, pair in ADDRESSES.items() for address in pair}


MACHINE = LocalAddresses(addresses=frozenset((*NODE.addresses, "192.168.99.3")))
"""With the second address of the further scenarios."""


def tracer_of(name: str, case: Case) -> Any:
    """What a data plane would program for a case, to send packets through."""
    tracing = open_tracing(name)
    assert tracing is not None, f"{name} has no module in podwire.proxy.tracing"
    return tracing.planned(case.resolved(), case.node, MACHINE)


def divided_tracer(case: Case) -> Any:
    """What the data plane ``iptables`` would program if every chain that Services share had hundreds of rules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "MOST_RULES", 0)
        return tracer_of("iptables", case)


DATAPLANES: dict[str, Callable[[Case], Any]] = {name: partial(tracer_of, name) for name in registry.DATAPLANES}
"""By being in the registry, a data plane runs every case."""
DIVIDED = "iptables, divided"
TRACERS = {**DATAPLANES, DIVIDED: divided_tracer}


def traced(packet: Packet) -> Traced:
    return Traced(
        source=packet.client,
        destination=packet.address,
        protocol=packet.protocol,
        destination_port=packet.port,
        input="" if packet.source == "node" else packet.source,
    )


def judge(packet: Packet, outcome: Outcome) -> str:
    """The pod reached, ``refused``, ``dropped``, or where else it went."""
    if outcome.verdict == "reject" or (outcome.delivered and outcome.verdict == "accept"):
        return "refused"
    if outcome.verdict == "drop":
        return "dropped"
    return POD_OF.get(outcome.packet.destination, outcome.packet.destination)


@pytest.mark.parametrize("name", TRACERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet_table(case: Case, name: str) -> None:
    tracer = TRACERS[name](case)
    for packet in case.by(name.partition(",")[0]).packets:
        outcomes = list(tracer.outcomes(traced(packet)))
        ends = {judge(packet, outcome) for outcome in outcomes}
        if packet.refused or packet.dropped:
            assert ends == {"refused" if packet.refused else "dropped"}, f"{packet}\n{outcomes[0]}"
            continue
        assert ends == set(packet.reaches or packet.sticky), f"{packet}\n{outcomes[0]}"
        if packet.seen:
            masqueraded = {outcome.masqueraded for outcome in outcomes}
            assert masqueraded == {packet.seen == "node"}, f"{packet}\n{outcomes[0]}"


@pytest.mark.parametrize("name", DATAPLANES)
def test_affinity_remembers(name: str) -> None:
    case = next(case for case in CASES if case.name == "session affinity")
    tracer = DATAPLANES[name](case)
    packet = traced(case.packets[0])
    first = tracer.trace(packet, [1])
    assert {tracer.trace(packet, [choice]).packet.destination for choice in (0, 1, 0)} == {first.packet.destination}


@pytest.mark.parametrize("name", DATAPLANES)
@pytest.mark.parametrize("first", range(4))
def test_affinity_is_kept_for_a_port_whatever_the_way_in(name: str, first: int) -> None:
    case = next(case for case in CASES if case.name == "affinity of a port, whatever the way in")
    tracer = DATAPLANES[name](case)
    paths = [packet for packet in case.packets if packet.source == "node"]
    paths = paths[first:] + paths[:first]
    reached = {tracer.trace(traced(packet), [first % 3] * 2).packet.destination for packet in paths}
    assert len(reached) == 1
    more = msgspec.structs.replace(paths[0], target="192.168.99.1:30081")
    assert len({outcome.packet.destination for outcome in tracer.outcomes(traced(more))}) == 3
