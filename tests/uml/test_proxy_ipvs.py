"""The ``ipvs`` data plane with real packets: every case of the packet table, restart, healing."""

import socket
from collections.abc import Iterator

import msgspec
import pytest
from tests.kernel.serviceworld import CASES, World, failures_of, inside, path
from tests.kernel.test_proxy_scenarios import CASES as SCENARIOS
from tests.kernel.test_proxy_scenarios import real

from podwire.proxy.dataplanes.ipvs.dataplane import IpvsDataPlane
from podwire.testing.servicecases import NODE, Case


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    socket.socket(socket.AF_INET6).close()  # which makes the kernel load IPv6
    with World() as made:
        inside("node", "ip", "addr", "add", "192.168.99.3/24", "dev", "outside")
        yield made


@pytest.fixture
def plane(world: World) -> Iterator[IpvsDataPlane]:
    made = IpvsDataPlane(NODE, path("node"))
    yield made
    made.remove()
    made.close()


@pytest.mark.parametrize("case", (*CASES, *SCENARIOS), ids=lambda case: case.name)
def test_packet_table(world: World, plane: IpvsDataPlane, case: Case) -> None:
    plane.load(case.resolved(), case.node)
    packets = tuple(real(packet) for packet in case.by(plane.name).packets)
    assert not failures_of(world, msgspec.structs.replace(case, packets=packets))


@pytest.mark.parametrize("case", (*CASES, *SCENARIOS), ids=lambda case: case.name)
def test_a_restart_writes_nothing(plane: IpvsDataPlane, case: Case) -> None:
    plane.load(case.resolved(), case.node)
    assert not any(plane.load(case.resolved(), case.node))
