"""The table of connections fills, overflows and empties."""

import asyncio

from tests.fakes.clock import FakeClock

from podwire.kernel.conntrack import Occupancy
from podwire.proxy.occupancy import OccupancyWatch

CROWDED = "more than 90 % of 1,000 entries for tracked connections are taken; "
FULL = "all 1,000 entries for tracked connections were taken, new connections are dropped; "
REMEDY = "raise proxy.conntrack.maxPerCore or proxy.conntrack.min"


class Table:
    """The occupancy that the kernel would report."""

    def __init__(self) -> None:
        self.entries = self.dropped = 0
        self.there = True
        self.clock = FakeClock()
        self.reports: list[str] = []
        self.watch = OccupancyWatch(self.clock, self.reports.append, self.look)

    def look(self) -> Occupancy | None:
        return Occupancy(self.entries, 1000, self.dropped) if self.there else None

    def now(self, entries: int, dropped: int = 0) -> str:
        """The warning in force after a check."""
        self.entries, self.dropped = entries, dropped
        self.watch.check()
        return self.reports[-1] if self.reports else ""


def test_a_crowded_table_is_reported_once_and_cleared_late() -> None:
    table = Table()
    assert [table.now(entries) for entries in (899, 900, 950, 800, 751, 749, 899)] == [
        "", CROWDED + REMEDY, CROWDED + REMEDY, CROWDED + REMEDY, CROWDED + REMEDY, "", "",
    ]  # fmt: skip
    assert table.reports == [CROWDED + REMEDY, ""]


def test_dropped_packets_are_reported_until_a_quiet_minute() -> None:
    table = Table()
    assert table.now(1000, dropped=7) == CROWDED + REMEDY
    assert table.now(1000, dropped=8) == FULL + REMEDY
    table.clock.spend(59)
    assert table.now(10, dropped=8) == FULL + REMEDY
    table.clock.spend(2)
    assert table.now(10, dropped=8) == ""
    assert len(table.reports) == 3


def test_packets_dropped_before_the_start_are_not_reported() -> None:
    table = Table()
    assert table.now(10, dropped=500) == ""
    assert table.reports == []


def test_occupancy_is_read_every_five_seconds() -> None:
    async def main() -> None:
        table = Table()
        table.there = False
        task = asyncio.ensure_future(table.watch.run())
        await table.clock.advance(18)
        assert table.reports == [] and list(table.watch.samples()) == []
        table.there, table.entries = True, 990
        await table.clock.advance(4)
        assert len(table.reports) == 1
        task.cancel()

    asyncio.run(main())


def test_metrics() -> None:
    table = Table()
    table.now(12, dropped=3)
    result = {(sample.name, sample.kind): sample.value for sample in table.watch.samples()}
    assert result == {
        ("podwire_conntrack_entries", "gauge"): 12,
        ("podwire_conntrack_limit", "gauge"): 1000,
        ("podwire_conntrack_dropped_total", "counter"): 3,
    }
