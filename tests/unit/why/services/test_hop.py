"""What ``why`` states of every packet of the packet table is what the table states, by every data plane's rules."""

from functools import cache
from pathlib import Path

import msgspec
import pytest
from tests.cases.service_table import ADDRESSES, NODE, Case, Packet, parse_case, read_cases

from podwire.proxy.dataplanes.userspace.tracing import Tracer as RelayTracer
from podwire.proxy.registry import TRACERS
from podwire.proxy.servicemap import ResolvedEndpoint
from podwire.proxy.tracing import Tracing, open_tracing
from podwire.trace.iptables import Tracer as IptablesTracer
from podwire.trace.nft import Tracer as NftTracer
from podwire.trace.packet import LocalAddresses
from podwire.trace.packet import Packet as Traced
from podwire.why.answer import Hop
from podwire.why.objects import belongs
from podwire.why.services.hop import ServiceRules, ServiceWithSlices, explain_hop

FOLDER = Path(__file__).parents[3] / "cases/services"
CASES = [*read_cases(FOLDER / "policies.yaml"), *read_cases(FOLDER / "scenarios.yaml")]
POD_OF = {address: pod for pod, pair in ADDRESSES.items() for address in pair}
PODS = {"one", "two", "far"}
MACHINE = LocalAddresses(addresses=frozenset((*NODE.addresses, "192.168.99.3")))


def backed(case: Case) -> list[ServiceWithSlices]:
    return [(service, tuple(piece for piece in case.slices if belongs(piece, service))) for service in case.services]


def tracing(mode: str) -> Tracing:
    result = open_tracing(mode)
    assert result is not None
    return result


def view(case: Case, mode: str) -> ServiceRules:
    tracer = tracing(mode).planned(case.resolved(), case.node, MACHINE)
    return ServiceRules(mode=mode, facts=case.node, machine=MACHINE, planned=tracer, held=tracer)


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


@cache
def hops(name: str, mode: str) -> tuple[tuple[Packet, Hop], ...]:
    """The answers for the packets of a case; two tests read them."""
    case = case_named(name)
    here = view(case, mode)
    return tuple((packet, explain_hop(traced(packet), backed(case), here)[0]) for packet in case.by(mode).packets)


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


@pytest.mark.parametrize("mode", TRACERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_answer_is_what_the_table_states(case: Case, mode: str) -> None:
    for packet, hop in hops(case.name, mode):
        check(packet, hop)
        assert hop.steps or hop.outcome == "untouched"


@pytest.mark.parametrize("mode", TRACERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reasons_agree_with_the_rules(case: Case, mode: str) -> None:
    for reported, (packet, hop) in zip(case.packets, hops(case.name, mode), strict=True):
        other = reported.differs.get(mode)
        ends_otherwise = other is not None and (other.refused or other.dropped)
        assert (hop.reason == "Mode") == ends_otherwise, f"{packet}: {hop.message}"
        if hop.snat is not None and not (other is not None and other.seen):
            assert hop.snat.reason != "Rules", f"{packet}: {hop.snat.message}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mode_without_tracer_is_explained_from_objects(case: Case) -> None:
    alone = ServiceRules(mode="other", facts=case.node, machine=MACHINE)
    for packet in case.packets:
        hop, _ = explain_hop(traced(packet), backed(case), alone)
        check(packet, hop)
        assert hop.steps == ()


def other(case: Case, mode: str, **services: tuple[str, ...]) -> ServiceRules:
    """A node whose kernel holds only some endpoints of Services, by the name of the Service."""
    held = {}
    for key, ports in case.resolved().items():
        remaining = services.get(key.removeprefix("default/"))
        held[key] = tuple(
            port
            if remaining is None
            else msgspec.structs.replace(
                port, cluster_endpoints=tuple(e for e in port.cluster_endpoints if POD_OF[e.address] in remaining)
            )
            for port in ports
        )
    here = view(case, mode)
    return msgspec.structs.replace(here, held=tracing(mode).planned(held, case.node, MACHINE))


@pytest.mark.parametrize("mode", TRACERS)
def test_endpoint_that_the_kernel_lacks_is_reported(mode: str) -> None:
    case = case_named("ClusterIP")
    hop, _ = explain_hop(traced(case.packets[0]), backed(case), other(case, mode, web=("two",)))
    assert (hop.outcome, hop.reason) == ("forwarded", "Drift")
    assert "to one of 2 usable endpoints" in hop.message
    assert {POD_OF[e.address]: e.reason for e in hop.endpoints} == {"one": "NotInKernel", "two": "Ready"}
    assert any(line.sign == "+" and "10.180.0.1" in line.text for line in hop.drift)
    assert all(line.where for line in hop.drift)


@pytest.mark.parametrize("mode", TRACERS)
def test_endpoint_that_only_the_kernel_has_is_reported(mode: str) -> None:
    case = case_named("terminating endpoints")
    here = other(case, mode)
    resolved = case.resolved()
    (port,) = resolved["default/some"]
    both = (*port.cluster_endpoints, ResolvedEndpoint("10.180.0.2", 8080, local=True))
    held = resolved | {"default/some": (msgspec.structs.replace(port, cluster_endpoints=both),)}
    here = msgspec.structs.replace(here, held=tracing(mode).planned(held, case.node, MACHINE))
    hop, _ = explain_hop(traced(case.packets[1]), backed(case), here)
    assert {POD_OF[e.address]: (e.used, e.reason) for e in hop.endpoints} == {
        "one": (True, "Ready"),
        "two": (True, "OnlyInKernel"),
    }
    assert any(line.sign == "-" and "10.180.0.2" in line.text for line in hop.drift)


@pytest.mark.parametrize("mode", TRACERS)
def test_kernel_without_rules_is_reported(mode: str) -> None:
    case = case_named("ClusterIP")
    nothing = NftTracer([], MACHINE) if mode == "nftables" else IptablesTracer([], MACHINE)
    here = msgspec.structs.replace(view(case, mode), held=nothing)
    hop, _ = explain_hop(traced(case.packets[0]), backed(case), here)
    assert (hop.outcome, hop.reason) == ("untouched", "Drift")
    assert {(e.used, e.reason) for e in hop.endpoints} == {(True, "Ready")}
    assert {line.sign for line in hop.drift} == {"+"}
    assert not hop.steps


@pytest.mark.parametrize("mode", TRACERS)
def test_a_remembered_client_is_no_drift(mode: str) -> None:
    case = case_named("session affinity")
    here = view(case, mode)
    tracer = tracing(mode).planned(case.resolved(), case.node, MACHINE)
    assert isinstance(tracer, NftTracer | IptablesTracer | RelayTracer)
    packet = traced(case.packets[0])
    reached = tracer.trace(packet, [1]).packet.destination
    hop, _ = explain_hop(packet, backed(case), msgspec.structs.replace(here, held=tracer))
    assert hop.affinity is not None
    assert hop.affinity.entries
    assert {e.address for e in hop.endpoints if e.used} == {reached}
    assert {e.reason for e in hop.endpoints} == {"Ready", "Affinity"}
    assert hop.drift == ()
    fresh, _ = explain_hop(packet, backed(case), here)
    assert fresh.affinity is not None
    assert fresh.affinity.entries == ()


@pytest.mark.parametrize("mode", TRACERS)
@pytest.mark.parametrize("first", ["alpha", "beta"])
def test_services_with_the_same_address(mode: str, first: str) -> None:
    document = {
        "name": "the same address",
        "services": [
            {"name": "alpha", "clusterIP": "10.96.0.10", "externalIPs": ["203.0.113.7"], "ports": [{"port": 80}]},
            {"name": "beta", "clusterIP": "10.96.0.11", "externalIPs": ["203.0.113.7"], "ports": [{"port": 80}]},
        ],
        "endpoints": {"alpha": [{"pod": "one"}], "beta": [{"pod": "two"}]},
        "packets": [{"from": "outside", "to": "203.0.113.7:80"}],
    }
    case = parse_case(document)
    resolved = case.resolved()
    second = "beta" if first == "alpha" else "alpha"
    in_turn = {key: resolved[key] for key in (f"default/{first}", f"default/{second}")}
    here = msgspec.structs.replace(view(case, mode), held=tracing(mode).planned(in_turn, case.node, MACHINE))
    hop, _ = explain_hop(traced(case.packets[0]), backed(case), here)
    assert hop.service is not None
    assert (hop.service.name, hop.service.also_claimed_by) == (first, (f"default/{second}",))
    assert [e.used for e in hop.endpoints] == [True]
    assert hop.drift == ()


def test_a_step_names_its_service() -> None:
    case = case_named("ClusterIP")
    hop, _ = explain_hop(traced(case.packets[0]), backed(case), view(case, "nftables"))
    assert "Service default/web" in {step.object for step in hop.steps}
    assert {step.layer for step in hop.steps} == {"service"}


@pytest.mark.parametrize("mode", TRACERS)
@pytest.mark.parametrize("destination", ["10.96.0.10:80", "192.168.99.1:30080"])
def test_node_cannot_send_from_loopback_to_an_endpoint(mode: str, destination: str) -> None:
    case = case_named("NodePort with policy Cluster")
    address, _, number = destination.partition(":")
    packet = Traced(source="127.0.0.1", destination=address, destination_port=int(number))
    hop, _ = explain_hop(packet, backed(case), view(case, mode))
    if mode == "userspace" and address == "192.168.99.1":
        assert hop.outcome == "forwarded", "the relay listens on the node"
        return
    assert (hop.outcome, hop.reason, hop.drift) == ("dropped", "LoopbackSource", ())


def test_loopback_source_is_routed_where_node_ports_answer_on_loopback() -> None:
    case = case_named("NodePort with policy Cluster")
    node = msgspec.structs.replace(case.node, node_port_ranges=("127.0.0.0/8", "192.168.99.0/24"))
    here = view(msgspec.structs.replace(case, node=node), "iptables")
    packet = Traced(source="127.0.0.1", destination="127.0.0.1", destination_port=30080)
    hop, _ = explain_hop(packet, backed(case), here)
    assert (hop.outcome, hop.drift) == ("forwarded", ())
