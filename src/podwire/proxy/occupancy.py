"""Watches how full the kernel's table of tracked connections is, and says so while there is still room.

A full table drops the first packet of every new connection, through a Service or not; connections that are tracked go
on. Nothing but the kernel's log tells it, on the node. The machine's limit counts for each network namespace by itself.

Guarantees: 1. ``tell`` is called once when more than nine tenths are taken, once when packets were dropped, and once
with an empty text when less than three quarters are taken and nothing was dropped for a minute; 2. there is a look
every five seconds, of 0.1 ms.
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
    """Looks at the table of this process's namespace; ``look`` is how."""

    def __init__(
        self,
        clock: Clock,
        tell: Callable[[str], None],
        look: Callable[[], Occupancy | None] = occupancy,
    ) -> None:
        self._clock = clock
        self._tell = tell
        self._look = look
        self._said = ""
        self._dropped: int | None = None
        self._dropped_at = -_CALM_S

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            self.check()
            await self._clock.sleep(_EVERY_S)

    def check(self) -> None:
        """Looks once."""
        seen = self._look()
        if seen is None:
            return
        text = self._judge(seen)
        if text != self._said:
            self._said = text
            self._tell(text)

    def _judge(self, seen: Occupancy) -> str:
        now = self._clock.monotonic()
        before, self._dropped = self._dropped, seen.dropped
        if before is not None and seen.dropped > before:
            self._dropped_at = now
            return (
                f"all {seen.limit:,} entries for tracked connections were taken, new connections are dropped; {_REMEDY}"
            )
        if self._said and (seen.entries >= _EASY * seen.limit or now - self._dropped_at < _CALM_S):
            return self._said
        if seen.entries >= _CROWDED * seen.limit:
            return f"more than 90 % of {seen.limit:,} entries for tracked connections are taken; {_REMEDY}"
        return ""

    def samples(self) -> Iterator[Sample]:
        """The table as metrics."""
        seen = self._look()
        if seen is not None:
            yield Sample("podwire_conntrack_entries", "Tracked connections of the node.", seen.entries)
            yield Sample("podwire_conntrack_limit", "Tracked connections that there may be.", seen.limit)
            yield Sample(
                "podwire_conntrack_dropped_total",
                "First packets that were dropped for want of room.",
                seen.dropped,
                kind="counter",
            )
