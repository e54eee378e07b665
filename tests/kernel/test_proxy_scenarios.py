"""Every case with real packets through every data plane of the registry; many clients with affinity, and its end."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cases.service_table import Case, Packet, read_cases
from tests.kernel.kernel_dataplanes import LEGACY, every_plane, opened
from tests.kernel.service_namespaces import LATE_S, TRIES, TURNS, World, failures_of, inside, path
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import netns
from podwire.proxy.dataplanes.iptables import shared
from podwire.proxy.servicemap import NodeFacts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

CASES = read_cases(Path(__file__).parents[1] / "cases/services/scenarios.yaml")
POLICIES = read_cases(Path(__file__).parents[1] / "cases/services/policies.yaml")
EVERY = (*POLICIES, *CASES)
CLIENTS = 1200
IN_TURNS = ("ipvs", "userspace")
"""The data planes that choose endpoints in turns; the others choose at random."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        inside("node", "ip", "addr", "add", "192.168.99.3/24", "dev", "outside")
        for balanced in ("203.0.113.30", "203.0.113.31"):
            inside("node", "ip", "addr", "add", f"{balanced}/32", "dev", "lo", "scope", "host")
        yield created


@pytest.fixture(scope="module", params=every_plane())
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A data plane; that of legacy iptables divides every chain that Services share, as if they were hundreds."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == LEGACY:
            patch.setattr(shared, "MOST_RULES", 0)
        service_owner = ServiceOwner(opened(request.param))
        yield service_owner
        service_owner.remove()
        service_owner.close()


def real(packet: Packet) -> Packet:
    """Packets that no rule matches get no answer in these namespaces."""
    return msgspec.structs.replace(packet, untouched=False, dropped=packet.dropped or packet.untouched)


@pytest.fixture(scope="module")
def nodes() -> dict[str, NodeFacts]:
    """The node of the last case, by data plane."""
    return {}


def load(plane: Any, case: Case, nodes: dict[str, NodeFacts]) -> None:
    """Loads a case over the last one, as a cluster changes; where the node differs, the data plane starts empty."""
    if nodes.get(plane.name, case.node) != case.node:
        plane.remove()
    nodes[plane.name] = case.node
    plane.load(case.resolved(), case.node)


def marks_of(case: Case) -> Any:
    """Most kernels lack SCTP; that of user-mode Linux has it."""
    return pytest.mark.uml if any(packet.protocol == "sctp" for packet in case.packets) else ()


@pytest.mark.parametrize("case", [pytest.param(case, marks=marks_of(case), id=case.name) for case in EVERY])
@pytest.mark.parametrize("plane", [*every_plane(), LEGACY], indirect=True, scope="module")
def test_packets_have_the_expected_outcome_and_a_restart_writes_nothing(
    world: World, plane: Any, nodes: dict[str, NodeFacts], case: Case
) -> None:
    load(plane, case, nodes)
    inside("node", "conntrack", "-F")  # a port that a client of an earlier case had would go where that one went
    packets = tuple(real(packet) for packet in case.by(plane.name).packets)
    expected = msgspec.structs.replace(case, packets=packets)
    tries = TURNS if plane.name in IN_TURNS else TRIES
    failures = failures_of(world, expected, tries)
    if failures and plane.name == "userspace":  # its worker takes orders over a moment after they are answered
        failures = failures_of(world, expected, tries)
    assert not failures
    assert not any(plane.load(case.resolved(), case.node))


def sticky(seconds: int) -> Case:
    case = next(case for case in CASES if case.name == "affinity of UDP and of Local policies")
    (service,) = case.services
    port = msgspec.structs.replace(service.spec.ports[0], protocol="TCP", port=80, node_port=30080)
    config = msgspec.convert({"clientIP": {"timeoutSeconds": seconds}}, type(service.spec.session_affinity_config))
    spec = msgspec.structs.replace(service.spec, ports=(port,), session_affinity_config=config)
    slices = tuple(
        msgspec.structs.replace(s, ports=(msgspec.structs.replace(s.ports[0], protocol="TCP"),))
        for s in case.slices
        if s.ports
    )
    return msgspec.structs.replace(case, services=(msgspec.structs.replace(service, spec=spec),), slices=slices)


@pytest.mark.parametrize("plane", ["nftables"], indirect=True)
def test_each_of_many_clients_keeps_its_endpoint(world: World, plane: Any) -> None:
    plane.load(sticky(600).resolved())
    inside("outside", "ip", "route", "add", "local", "172.20.0.0/16", "dev", "lo")
    inside("node", "ip", "route", "add", "172.20.0.0/16", "via", "192.168.99.2")
    try:
        first = [asked_by(f"172.20.{n // 250}.{n % 250 + 1}") for n in range(CLIENTS)]
        again = [asked_by(f"172.20.{n // 250}.{n % 250 + 1}") for n in range(CLIENTS)]
    finally:
        inside("outside", "ip", "route", "del", "local", "172.20.0.0/16", "dev", "lo")
        inside("node", "ip", "route", "del", "172.20.0.0/16")
    assert first == again
    assert set(first) == {"one", "two"}


def asked_by(address: str) -> str:
    with netns.inside(path("outside")), socket.socket() as sock:
        sock.settimeout(20)
        sock.bind((address, 0))
        sock.connect(("192.168.99.1", 30080))
        return sock.recv(100).decode().split()[0]


def test_all_addresses_of_one_port_share_its_affinity(world: World, plane: Any) -> None:
    if plane.name == "ipvs":
        pytest.skip("IPVS remembers the clients of each virtual server by itself, in Kubernetes too")
    case = next(case for case in POLICIES if case.name == "affinity of a port, whatever the way in")
    plane.load(case.resolved())
    paths = [where(packet.target) for packet in case.packets if packet.source == "node"]

    def ask(address: str, port: int) -> str:
        """Waits for a second SYN: a pod may still hold a port of an earlier case in TIME_WAIT; conntrack forgot it."""
        return world.connect("node", address, port, patience_s=LATE_S)[0]

    apart = set()
    for _ in range(12):
        reached = {ask(*way) for way in (*paths, *paths)}
        assert len(reached) == 1 and reached <= {"one", "two", "far"}, reached
        apart.add((*reached, ask("192.168.99.1", 30081)))
        plane.remove()
        plane.load(case.resolved())
    assert any(item != other for item, other in apart)


def where(target: str) -> tuple[str, int]:
    address, _, port = target.rpartition(":")
    return address, int(port)


def test_affinity_ends_with_its_timeout_and_with_the_setting(world: World, plane: Any) -> None:
    plane.load(sticky(1).resolved())

    def ask() -> str:
        return world.connect("node", "10.96.0.10", 80)[0]

    def ask_in_a_row() -> set[str]:
        """The answers to twelve connections without a pause that ends the affinity, however slow the machine is."""
        answers, last = list[str](), time.monotonic()
        while len(answers) < 12:
            answers.append(ask())
            now = time.monotonic()
            if now - last > 0.8:
                answers = answers[-1:]
            last = now
        return set(answers)

    (first,) = ask_in_a_row()
    if plane.name != "ipvs":  # IPVS remembers a client at least as long as its connections, closed ones for two minutes
        for _ in range(12):
            time.sleep(1.2)
            if ask() != first:
                break
        else:
            pytest.fail(f"{first} still answers after {12 * 1.2} s of pauses that end the affinity")
    off = {
        key: tuple(msgspec.structs.replace(port, affinity_s=0) for port in ports)
        for key, ports in sticky(1).resolved().items()
    }
    plane.update(off)
    assert {ask() for _ in range(24)} == {"one", "two", "far"}
    plane.update(sticky(600).resolved())
    assert len({ask() for _ in range(12)}) == 1
