"""Every case of the packet table, followed through the tables that each data plane would program."""

from pathlib import Path

import pytest

from podwire.proxy.dataplanes.nftables.contents import Contents
from podwire.proxy.dataplanes.nftables.layout import Layout
from podwire.state.nft import Table
from podwire.testing.servicecases import ADDRESSES, NODE, Case, Packet, read_cases
from podwire.trace.nft import Tracer
from podwire.trace.packet import Machine, Outcome
from podwire.trace.packet import Packet as Traced

CASES = read_cases(Path(__file__).parents[2] / "cases/services/policies.yaml")
POD_OF = {address: pod for pod, pair in ADDRESSES.items() for address in pair}


def nftables(case: Case) -> list[Table]:
    tables = []
    for family in ("ip", "ip6"):
        contents = Contents(Layout(family, NODE))
        resolved = case.resolved()
        contents.change({key: tuple(p for p in ports if p.family == family) for key, ports in resolved.items()})
        tables.append(contents.table())
    return tables


DATAPLANES = {"nftables": nftables}


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


@pytest.mark.parametrize("name", DATAPLANES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet_table(case: Case, name: str) -> None:
    tracer = Tracer(DATAPLANES[name](case), Machine(addresses=frozenset(NODE.addresses)))
    for packet in case.packets:
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
    tracer = Tracer(DATAPLANES[name](case), Machine(addresses=frozenset(NODE.addresses)))
    packet = traced(case.packets[0])
    first = tracer.trace(packet, [1])
    assert {tracer.trace(packet, [choice]).packet.destination for choice in (0, 1, 0)} == {first.packet.destination}
