"""Events of the runner reach health, metrics and health checks, and never too early."""

import asyncio

from tests.fakes.clock import FakeClock

from podwire.errors import KernelError
from podwire.proxy.health import PATIENCE_S, Pulse
from podwire.proxy.metrics import ProxyMetrics
from podwire.proxy.report import ProxyReport
from podwire.proxy.servicemap import ServiceMap


class Checks:
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[ServiceMap, bool]] = []

    def update(self, changed: ServiceMap, *, moved: bool = False) -> None:
        self.calls.append((changed, moved))


class Bench:
    def __init__(self) -> None:
        self.clock, self.checks = FakeClock(), Checks()
        self.pulse = Pulse(self.clock)
        self.failed: list[str] = []
        metrics = ProxyMetrics("nftables", self.clock)
        self.report = ProxyReport(self.pulse, metrics, self.checks, self.clock, self.failed.append)

    async def later(self) -> bool:
        await self.clock.advance(PATIENCE_S)
        return self.pulse.healthy


def test_health_follows_commits() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.report.service_changed()
        bench.report.begin()
        bench.report.committed({"a/b": ()}, full=False)
        assert bench.checks.calls == [({"a/b": ()}, False)]
        assert await bench.later()
        bench.report.service_changed()
        bench.report.begin()
        bench.report.refused(KernelError("nft", "add element", 12))
        assert bench.failed == ["nft add element: errno 12; Services stay as they were, and it is tried again"]
        assert len(bench.checks.calls) == 1
        assert not await bench.later()

    asyncio.run(scenario())


def test_changes_during_a_commit_stay_pending() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.report.begin()
        bench.report.service_changed()
        bench.report.committed({}, full=True)
        assert not await bench.later()

    asyncio.run(scenario())
