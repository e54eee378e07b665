"""The self-test of paths between nodes with real packets: healthy, silently too narrow, and with wrong checksums."""

import asyncio
import os
import select
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from tests.fakes.clock import FakeClock
from tests.kernel.checksums import checksum
from tests.kernel.routing_nodes import ECHO_SERVER, Cluster, ClusterNode, connect, inside, ip_batch

from podwire.kernel.pathprobe import ANSWER_S, PathProber
from podwire.kernel.tun import open_tun
from podwire.routing.machine import OWNER
from podwire.routing.probes import PathResult, ProbeTarget, mismatches
from podwire.routing.selftest import EVERY_S, RETRY_S, SelfTest
from podwire.routing.settings import RoutingSettings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Make = Callable[..., Cluster]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int, families: str = "4") -> Cluster:
        clusters.append(Cluster(tmp_path, count, 1, families))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


class NodeTest:
    """The self-test of a node, driven test by test."""

    def __init__(self, node: ClusterNode, answer_s: float = ANSWER_S) -> None:
        self.node = node
        self.clock = FakeClock()
        self.results: list[PathResult] = []
        self.test = SelfTest(
            PathProber(node.place, answer_s), self.clock, self.targets, self.is_plain, self.results_are
        )

    def targets(self) -> tuple[ProbeTarget, ...]:
        assert self.node.router.plan is not None
        return self.node.router.plan.targets

    def is_plain(self, device: str) -> bool:
        return device in self.node.router.own.plain_checksums

    def results_are(self, results: Iterable[PathResult]) -> None:
        self.results = list(results)

    def round(self) -> list[PathResult]:
        """Runs every test that is due."""

        async def body() -> None:
            while await self.test.test_next():
                pass

        asyncio.run(body())
        return self.results


@pytest.mark.parametrize(("backend", "families"), [("vxlan", "46"), ("vxlan", "64"), ("hostgw", "46"), ("udp", "4")])
def test_healthy_paths_pass_with_two_packets_each(make: Make, backend: str, families: str) -> None:
    cluster = make(2, families)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    tested = NodeTest(cluster.all[0], answer_s=20)
    results = tested.round()
    assert [(result.largest, result.checksums) for result in results] == [(cluster.all[0].mtu, True) for _ in families]
    assert tested.test.packets == len(families) * (2 if backend == "vxlan" else 1)
    tested.clock.spend(EVERY_S)
    assert tested.round() == results


def test_a_switch_that_drops_large_packets_silently_is_found(make: Make) -> None:
    cluster = make(3)
    cluster.settle()
    tested = NodeTest(cluster.all[0])
    inside(cluster.fabric, "ip", "link", "set", "n2", "mtu", "1494")  # and 4 bytes for a tag
    assert [result.largest for result in tested.round()] == [1448, 1450]
    assert mismatches(tested.results) == "node-2 (IPv4, 10.244.2.1): packets of 1448 bytes pass, 1450 are expected"
    spent = tested.test.packets
    tested.clock.spend(RETRY_S)
    assert mismatches(tested.round())
    assert tested.test.packets - spent <= 5, "a known result is confirmed, not searched again"
    inside(cluster.fabric, "ip", "link", "set", "n2", "mtu", "1500")
    tested.clock.spend(RETRY_S)
    assert mismatches(tested.round()) == ""


class BrokenCard(threading.Thread):
    """Joins two bridges as a network card does whose checksum offload knows no tunnels.

    A TAP device leaves checksums to its reader, as a driver does to its card. Those of outer packets are computed,
    those of packets in a tunnel are left as they are, as some virtual cards do with VXLAN.
    """

    _HEADER = struct.Struct("<BBHHHH")
    _NEEDS_CHECKSUM = 1

    def __init__(self, place: Path) -> None:
        super().__init__(daemon=True)
        self.spoiled = 0
        self._ends = [open_tun(name, place, mode="tap", vnet_header=True) for name in ("card0", "card1")]
        self._stopped = threading.Event()

    def run(self) -> None:
        poller = select.poll()
        for end in self._ends:
            poller.register(end, select.POLLIN)
        while not self._stopped.is_set():
            for end, _ in poller.poll(100):
                other = self._ends[1 - self._ends.index(end)]
                try:
                    frame = os.read(end, 70_000)
                    os.write(other, self._sent(frame))
                except OSError:
                    continue

    def _sent(self, data: bytes) -> bytes:
        flags, kind, _, _, start, offset = self._HEADER.unpack_from(data)
        frame = bytearray(data[self._HEADER.size :])
        if kind or not flags & self._NEEDS_CHECKSUM:
            return data
        if start > 34 + 8:
            self.spoiled += 1
        else:
            covered = bytes(frame[start:]) + b"\0" * ((len(frame) - start) % 2)
            frame[start + offset : start + offset + 2] = struct.pack("!H", checksum(covered) or 0xFFFF)
        return self._HEADER.pack(0, 0, 0, 0, 0, 0) + bytes(frame)

    def close(self) -> None:
        self._stopped.set()
        self.join()
        for end in self._ends:
            os.close(end)


def test_wrong_checksums_in_a_tunnel_are_found_and_mended(make: Make) -> None:
    cluster = make(2)
    fabric = cluster.fabric
    card = BrokenCard(fabric)
    ip_batch(
        fabric,
        "link add br9 type bridge",
        "link set br9 up",
        "link set n2 master br9",
        "link set card0 master br0 up",
        "link set card1 master br9 up",
    )
    card.start()
    try:
        cluster.settle()
        first, second = cluster.all
        a, b = first.pod("a"), second.pod("b")
        tested = [NodeTest(node) for node in cluster.all]
        for item in tested:
            assert [(result.largest, result.checksums) for result in item.round()] == [(1450, False)]
        assert card.spoiled
        for node in cluster.all:
            node.router.own.plain_checksums |= {"podwire-vxlan"}
        cluster.settle()
        assert "offload podwire-vxlan tx off" in str(first.router.applied.share(OWNER))
        spoiled = card.spoiled
        with b.running(ECHO_SERVER), connect(a.place, b.address, 7) as entry:
            entry.sendall(b"x" * 50_000)
            remaining = 50_000
            while remaining:
                remaining -= len(entry.recv(remaining))
        assert card.spoiled == spoiled
        first.machine.close()
        first.start_agent()
        assert first.machine.plain_checksums() == {"podwire-vxlan"}, "a new agent finds it"
    finally:
        card.close()
