"""Routing reports a disturbance only when others change its own objects in the kernel."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from podwire.kernel import netns, network, sysctl
from podwire.kernel.netlink import Netlink
from podwire.routing.backends.vxlan.backend import DEVICE
from podwire.routing.machine import OWNER, KernelMachine
from podwire.state.link import Link
from podwire.state.link_kinds import Vxlan
from podwire.state.network import NetworkState
from podwire.state.route import Fdb, Neighbour, Route, Sysctl

MAC = "02:00:00:00:00:0{}"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A namespace with an underlay."""
    path = tmp_path / f"watch-{os.getpid()}"
    netns.create(path)
    run(path, "ip link set lo up", "ip link add eth0 type bridge", "ip link set eth0 up")
    run(path, "ip address add 10.89.0.11/24 dev eth0")
    yield path
    netns.delete(path)


def run(place: Path, *commands: str) -> None:
    for command in commands:
        subprocess.run(["nsenter", f"--net={place}", *command.split()], check=True)


def state(peers: int) -> NetworkState:
    numbers = range(2, 2 + peers)
    return NetworkState(
        links=(Link(DEVICE, "vxlan", attributes=Vxlan(4096, 4789, "10.89.0.11", "eth0")),),
        routes=tuple(Route(f"10.244.{n}.0/24", f"10.244.{n}.1", DEVICE, onlink=True) for n in numbers),
        neighbours=tuple(Neighbour(DEVICE, f"10.244.{n}.1", MAC.format(n)) for n in numbers),
        fdb=tuple(Fdb(DEVICE, MAC.format(n), f"10.89.0.{10 + n}") for n in numbers),
    )


class Watched:
    """A machine with two peers, and the number of its disturbances."""

    def __init__(self, place: Path) -> None:
        self.machine = KernelMachine(place)
        self.times = 0

    def hold(self, peers: int) -> None:
        assert self.machine.hold(state(peers)) == []
        self.machine.watch(self._count, ("eth0", DEVICE))

    def _count(self) -> None:
        self.times += 1

    async def told(self) -> int:
        """The number of disturbances since the last call."""
        await asyncio.sleep(0.1)
        result, self.times = self.times, 0
        return result


@asynccontextmanager
async def settled(place: Path) -> AsyncIterator[Watched]:
    watched = Watched(place)
    try:
        watched.hold(2)
        await asyncio.sleep(0.2)
        watched.hold(2)
        await watched.told()
        yield watched
    finally:
        watched.machine.close()


def test_peers_that_routing_adds_cause_no_full_run(place: Path) -> None:
    async def body() -> None:
        async with settled(place) as watched:
            for peers in (5, 6, 8):
                watched.hold(peers)
                assert await watched.told() == 0

    asyncio.run(body())


def missing_steps(place: Path, network_state: NetworkState) -> str:
    """The steps that would restore the kernel."""
    with closing(Netlink(place)) as netlink:
        return str(network.plan(netlink, network_state, OWNER))


def test_peer_changes_write_only_the_difference(place: Path) -> None:
    async def body() -> None:
        async with settled(place) as watched:
            before = state(2)
            moved = replace(state(4), fdb=tuple(Fdb(DEVICE, MAC.format(n), f"10.89.0.{20 + n}") for n in range(2, 6)))
            for expected in (state(5), state(3), moved, replace(state(1), fdb=()), NetworkState(links=state(1).links)):
                assert watched.machine.follow(before, expected) == ()
                assert missing_steps(place, expected) == ""
                before = expected
            other = replace(state(2), links=(replace(before.links[0], mtu=1400),))
            assert watched.machine.follow(before, other) == []
            assert missing_steps(place, other) == ""

    asyncio.run(body())


def test_a_full_comparison_follows_a_failed_difference(place: Path) -> None:
    async def body() -> None:
        async with settled(place) as watched:
            run(place, f"ip link del {DEVICE}")
            assert watched.machine.follow(state(2), state(4)) == []
            assert missing_steps(place, state(4)) == ""
            run(place, "ip route add 10.244.6.0/24 dev eth0")
            (problem,) = watched.machine.follow(state(4), state(5))
            assert "10.244.6.0/24" in problem, "a route of others stays"

    asyncio.run(body())


def test_neighbours_of_the_underlay_cause_no_run(place: Path) -> None:
    async def body() -> None:
        async with settled(place) as watched:
            run(place, f"ip neigh add 10.89.0.99 lladdr {MAC.format(9)} dev eth0", "ip neigh del 10.89.0.99 dev eth0")
            assert await watched.told() == 0

    asyncio.run(body())


@pytest.mark.parametrize(
    "damage",
    [
        f"ip neigh del 10.244.2.1 dev {DEVICE}",
        f"ip neigh replace 10.244.2.1 lladdr {MAC.format(9)} dev {DEVICE}",
        f"bridge fdb del {MAC.format(2)} dev {DEVICE} dst 10.89.0.12",
        f"bridge fdb replace {MAC.format(2)} dev {DEVICE} dst 10.89.0.77",
        "ip route del 10.244.2.0/24",
        "ip route replace 10.244.2.0/24 via 10.89.0.1 dev eth0 proto static",
        "ip route replace 10.244.2.0/24 via 10.89.0.1 dev eth0 proto boot",
        f"ip link set {DEVICE} down",
        "ip address add 10.89.0.12/24 dev eth0",
    ],
)
def test_changes_of_its_objects_by_others_cause_a_run(place: Path, damage: str) -> None:
    async def body() -> None:
        async with settled(place) as watched:
            run(place, damage)
            deadline = time.monotonic() + 20
            while not await watched.told():
                assert time.monotonic() < deadline, "it is not told"
            watched.hold(2)

    asyncio.run(body())


def test_routes_that_it_held_are_taken_back_and_no_others(place: Path) -> None:
    watched = Watched(place)
    with closing(watched.machine):
        run(place, "ip route add 10.244.3.0/24 dev eth0 proto static")
        (problem,) = watched.machine.hold(state(2))
        assert "10.244.3.0/24" in problem, "a route that was there before stays"
        (problem,) = watched.machine.hold(state(2))
        run(place, "ip route replace 10.244.2.0/24 dev eth0 proto static")
        (problem,) = watched.machine.hold(state(2))
        assert "10.244.3.0/24" in problem and "10.244.2.0/24" not in missing_steps(place, state(2))
        run(place, "ip route del 10.244.3.0/24", "ip route replace 10.244.2.0/24 dev eth0 proto static")
        assert watched.machine.hold(state(1)) == [], "its own share does not have 10.244.3.0/24"
        assert "10.244.2.0/24" not in missing_steps(place, state(1))
        assert watched.machine.hold(state(0)) == []
        run(place, "ip route add 10.244.2.0/24 dev eth0 proto static")
        (problem,) = watched.machine.hold(state(2))
        assert "10.244.2.0/24" in problem, "it had given this one up"


def test_sysctls_that_differ_are_drift(place: Path) -> None:
    machine = KernelMachine(place)
    with closing(machine):
        expected = Sysctl("net/ipv6/conf/eth0/accept_ra", "0")
        assert machine.hold(NetworkState(sysctls=(expected,))) == [] and not machine.drifted()
        sysctl.write(expected.path, "2", place)
        assert machine.drifted() and machine.drifted(), "it says so until the value is back"
        assert machine.hold(NetworkState(sysctls=(expected,))) == [] and not machine.drifted()


def test_damage_during_a_write_is_reported(place: Path) -> None:
    async def body() -> None:
        async with settled(place) as watched:
            run(place, "ip route del 10.244.2.0/24")
            assert watched.times == 0, "nobody has read the socket yet"
            watched.hold(4)
            assert watched.times == 1

    asyncio.run(body())
