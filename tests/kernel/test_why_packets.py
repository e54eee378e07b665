"""``podwire why`` and real packets agree on connections that Services do not carry."""

import asyncio
import contextlib
import os
from collections.abc import Iterator

import msgspec
import pytest
from tests.cases.service_table import Case
from tests.kernel.service_namespaces import World, by_name, path
from tests.kernel.test_proxy_following import following
from tests.unit.why.services.test_hop import MACHINE, backed, tracing

from podwire.dataplane.tracing import trace_held
from podwire.model.service import PROXY_NAME_LABEL, Endpoint
from podwire.proxy.modes import open_dataplane
from podwire.trace.packet import Packet as Traced
from podwire.why.services.hop import ServiceRules, explain_hop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


def view(case: Case, mode: str) -> ServiceRules:
    """The desired state, and what the kernel holds."""
    seam = tracing(mode)
    planned = seam.planned(case.resolved(), case.node, MACHINE)
    held = trace_held(seam, path("node"), MACHINE)
    return ServiceRules(mode=mode, facts=case.node, machine=MACHINE, planned=planned, held=held)


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_connection_from_loopback_is_dropped_as_why_says(world: World, mode: str) -> None:
    case = by_name("NodePort with policy Cluster")
    with contextlib.closing(open_dataplane(mode, case.node, path("node"))) as plane:
        plane.load(case.resolved(), case.node)
        for address, port in (("10.96.0.10", 80), ("192.168.99.1", 30080)):
            assert world.connect("node", address, port)[0] in ("two", "far")
            assert world.connect("node", address, port, bound=LOOPBACK)[0] == "dropped"
            packet = Traced(source=LOOPBACK, destination=address, destination_port=port)
            hop, _ = explain_hop(packet, backed(case), view(case, mode))
            assert (hop.outcome, hop.reason, hop.drift) == ("dropped", "LoopbackSource", ())
        plane.remove()


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_slice_of_another_proxy_is_not_used_and_no_drift(world: World, mode: str) -> None:
    case = by_name("ClusterIP")
    piece = case.slices[0]
    labels = {**piece.metadata.labels, PROXY_NAME_LABEL: "other"}
    meta = msgspec.structs.replace(piece.metadata, name="of-another-proxy", labels=labels)
    other = msgspec.structs.replace(piece, metadata=meta, endpoints=(Endpoint(addresses=("10.0.9.9",)),))
    both = msgspec.structs.replace(case, slices=(*case.slices, other))
    packet = next(packet for packet in case.packets if packet.reaches)
    plane = open_dataplane(mode, case.node, path("node"))

    async def scenario() -> None:
        async with following(plane, both):
            for _ in range(12):
                reached, _ = await asyncio.to_thread(world.connect, packet.source, packet.address, packet.port)
                assert reached in packet.reaches

    with contextlib.closing(plane):
        asyncio.run(scenario())
        question = Traced(source=packet.client, destination=packet.address, destination_port=packet.port)
        hop, _ = explain_hop(question, backed(both), view(both, mode))
        assert (hop.outcome, hop.drift) == ("forwarded", ())
        assert all("10.0.9.9" not in f"{endpoint}" for endpoint in hop.endpoints)
        plane.remove()
