"""The self-test: its order, its number of packets, and what it concludes from the answers."""

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace
from tests.fakes.clock import FakeClock

from podwire.errors import KernelError
from podwire.routing.probes import PathResult, ProbeTarget, mismatches
from podwire.routing.selftest import EVERY_S, GAP_S, RETRY_S, SelfTest

NEAR = ProbeTarget(
    peer="node-2", version=4, source="10.244.1.1", address="10.244.2.1", mtu=1450, device="podwire-vxlan"
)
FAR = replace(NEAR, peer="node-3", address="10.244.3.1")


class Network:
    """A network of paths with their sizes; it sends nothing, and counts."""

    def __init__(self) -> None:
        self.carries = {NEAR.address: 9000, FAR.address: 9000}
        self.lost, self.failure = 0, ""
        self.answers_datagrams = True
        self.spoils: set[str] = set()
        self.sent: list[str] = []

    async def echo(self, source: str, address: str, size: int) -> bool:
        if self.failure:
            raise KernelError("open", "raw socket", 1, self.failure)
        self.sent.append(f"{address} {size}")
        if self.lost:
            self.lost -= 1
            return False
        return size <= self.carries[address]

    async def datagram(self, source: str, address: str, *, offload: bool) -> bool:
        self.sent.append(f"{address} {'offload' if offload else 'software'}")
        return self.answers_datagrams and not (offload and address in self.spoils)


class Lab:
    def __init__(self, *targets: ProbeTarget) -> None:
        self.network, self.clock, self.targets = Network(), FakeClock(), list(targets)
        self.plain: set[str] = set()
        self.results: dict[str, PathResult] = {}
        self.reports = 0
        self.test = SelfTest(self.network, self.clock, lambda: self.targets, self.plain.__contains__, self._take)

    def _take(self, results: Iterable[PathResult]) -> None:
        self.results = {result.target.peer: result for result in results}
        self.reports += 1

    def round(self, after_s: float = 0.0) -> list[str]:
        """Runs all tests that are due; returns what was sent."""

        async def body() -> None:
            while await self.test.test_next():
                pass

        self.clock.spend(after_s)
        self.network.sent.clear()
        asyncio.run(body())
        return self.network.sent


def test_a_healthy_target_costs_two_packets_in_each_round() -> None:
    lab = Lab(NEAR, FAR)
    first = lab.round()
    assert first == ["10.244.2.1 1450", "10.244.2.1 offload", "10.244.3.1 1450", "10.244.3.1 offload"]
    assert lab.round(EVERY_S / 2) == [] and lab.reports == 2
    assert len(lab.round(EVERY_S / 2)) == 4 and lab.reports == 2, "nothing new to report"
    lab.plain.add("podwire-vxlan")
    assert lab.round(EVERY_S) == ["10.244.2.1 1450", "10.244.3.1 1450"]
    lab.targets[0] = replace(NEAR, mtu=1350)
    assert lab.round() == ["10.244.2.1 1350"], "a new MTU is tested at once"
    lab.targets.pop()
    lab.round()
    assert list(lab.results) == ["node-2"]


def test_tests_run_one_after_the_other() -> None:
    async def body() -> None:
        lab = Lab(NEAR, FAR)
        running = asyncio.ensure_future(lab.test.run())
        await lab.clock.advance(GAP_S)
        assert list(lab.results) == ["node-2"]
        await lab.clock.advance(GAP_S)
        assert list(lab.results) == ["node-2", "node-3"]
        running.cancel()

    asyncio.run(body())


def test_a_narrow_path_is_measured_and_cleared() -> None:
    lab = Lab(NEAR, FAR)
    lab.network.carries[NEAR.address] = 1400
    sent = lab.round()
    assert len(sent) <= 34
    assert (
        mismatches(lab.results.values()) == "node-2 (IPv4, 10.244.2.1): packets of 1400 bytes pass, 1450 are expected"
    )
    assert len(lab.round(RETRY_S)) == 5
    lab.network.carries[NEAR.address] = 1300
    lab.round(RETRY_S)
    assert lab.results["node-2"].largest == 1300
    lab.network.carries[NEAR.address] = 1450
    assert lab.round(RETRY_S) == ["10.244.2.1 1450", "10.244.2.1 offload"]
    assert mismatches(lab.results.values()) == ""


def test_lost_packets_and_silent_peers_are_no_mismatch() -> None:
    lab = Lab(NEAR)
    lab.network.lost = 2
    lab.round()
    assert lab.results["node-2"].largest == 1450
    lab.network.carries[NEAR.address] = 0
    lab.round(EVERY_S)
    assert lab.results["node-2"].largest == 1450, "the last result stays"
    silent = Lab(NEAR)
    silent.network.carries[NEAR.address] = 0
    assert len(silent.round()) == 6
    assert silent.results["node-2"] == PathResult(target=NEAR) and mismatches(silent.results.values()) == ""
    lab.network.carries[NEAR.address] = 1400
    lab.network.lost = 0
    lab.round(RETRY_S)
    lab.network.carries[NEAR.address] = 0
    lab.round(RETRY_S)
    assert "1400" in mismatches(lab.results.values()), "so does a mismatch"


def test_wrong_checksums_need_the_other_datagram_as_proof() -> None:
    lab = Lab(NEAR, FAR)
    lab.network.spoils = {FAR.address}
    lab.round()
    assert [result.checksums for result in lab.results.values()] == [True, False]
    silent = Lab(NEAR)
    silent.network.answers_datagrams = False
    assert silent.round() == ["10.244.2.1 1450", *["10.244.2.1 offload"] * 3, *["10.244.2.1 software"] * 3]
    assert silent.results["node-2"].checksums, "a firewall drops both"
    plain = Lab(replace(NEAR, device=""))
    assert plain.round() == ["10.244.2.1 1450"]


def test_a_missing_privilege_is_no_mismatch() -> None:
    lab = Lab(NEAR)
    lab.network.failure = "Operation not permitted"
    lab.round()
    assert lab.results["node-2"].largest == 0
    lab.network.failure = ""
    lab.round(RETRY_S)
    assert lab.results["node-2"].largest == 1450
