"""Watches the kernel's connection tracking table and warns before it is full.

When the table is full, the kernel drops the first packet of every new connection, also of connections without a
Service; tracked connections continue. The kernel itself reports this only in its log. The limit of the machine applies
to each network namespace separately.

Guarantees: 1. ``report`` is called once when more than 90 % of the entries are used, once when packets were dropped,
and once with an empty text when less than 75 % are used and no packet was dropped for a minute; 2. the table is checked
every five seconds, which takes 0.1 ms.
"""

from collections.abc import Callable, Iterator

from podwire.kernel.conntrack import Occupancy, occupancy
from podwire.observe.health import Sample
from podwire.runtime.clock import Clock

_EVERY_S = 5.0
_CROWDED, _EASY = 0.9, 0.75
_CALM_S = 60.0
_REMEDY = "raise proxy.conntrack.maxPerCore or proxy.conntrack.min"


class OccupancyWatch:
    """Watches the table of this process's network namespace; ``read`` reads its occupancy."""

    def __init__(
        self,
        clock: Clock,
        report: Callable[[str], None],
        read: Callable[[], Occupancy | None] = occupancy,
    ) -> None:
        self._clock = clock
        self._report = report
        self._read = read
        self._reported = ""
        self._dropped: int | None = None
        self._dropped_at = -_CALM_S

    async def run(self) -> None:
        """Checks the table every five seconds until cancelled."""
        while True:
            self.check()
            await self._clock.sleep(_EVERY_S)

    def check(self) -> None:
        """Checks the table once."""
        current = self._read()
        if current is None:
            return
        text = self._warning(current)
        if text != self._reported:
            self._reported = text
            self._report(text)

    def _warning(self, current: Occupancy) -> str:
        now = self._clock.monotonic()
        before, self._dropped = self._dropped, current.dropped
        if before is not None and current.dropped > before:
            self._dropped_at = now
            full = f"all {current.limit:,} entries for tracked connections were taken"
            return f"{full}, new connections are dropped; {_REMEDY}"
        if self._reported and (current.entries >= _EASY * current.limit or now - self._dropped_at < _CALM_S):
            return self._reported
        if current.entries >= _CROWDED * current.limit:
            return f"more than 90 % of {current.limit:,} entries for tracked connections are taken; {_REMEDY}"
        return ""

    def samples(self) -> Iterator[Sample]:
        """The table as metrics."""
        current = self._read()
        if current is not None:
            yield Sample("podwire_conntrack_entries", "Tracked connections of the node.", current.entries)
            yield Sample("podwire_conntrack_limit", "The maximum number of tracked connections.", current.limit)
            yield Sample(
                "podwire_conntrack_dropped_total",
                "First packets that were dropped because the table was full.",
                current.dropped,
                kind="counter",
            )
