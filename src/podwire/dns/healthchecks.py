"""Asks the server's own page ``/health`` each second and measures that, as CoreDNS does; without queries each 10 s.

Why: the page is answered by the event loop that also answers TCP and upstream requests, so its duration shows whether
the process is overloaded. Cost: a connection on loopback each time, about 0.5 ms of CPU, which is more than a server
without queries needs for everything else.
"""

import asyncio
from collections.abc import Callable, Iterator

from podwire.dns.metrics import Buckets, Series
from podwire.errors import Disconnected, ProtocolError
from podwire.http.client import connect, encode_request
from podwire.runtime.clock import Clock

_EVERY_S = 1.0
_IDLE_S = 10.0
"""Seconds between two requests while no query arrives."""
_LIMIT_S = 3.0
_BOUNDS = tuple(0.00025 * 10**step for step in range(5))


class HealthPageChecks:
    """The durations and failures of the requests to one page; ``queries`` returns the number of queries so far."""

    def __init__(self, clock: Clock, queries: Callable[[], int]) -> None:
        self._clock = clock
        self._queries = queries
        self._durations = Buckets(_BOUNDS)
        self._failures = 0

    async def run(self, address: str, port: int) -> None:
        """Asks until cancelled."""
        before, waited_s = -1, 0.0
        while True:
            await self._clock.sleep(_EVERY_S)
            queries, waited_s = self._queries(), waited_s + _EVERY_S
            if queries != before or waited_s >= _IDLE_S:
                before, waited_s = queries, 0.0
                await self.check(address, port)

    async def check(self, address: str, port: int) -> None:
        """Asks once."""
        begun_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(_LIMIT_S):
                await _get(address, port)
        except (OSError, ProtocolError, Disconnected):  # TimeoutError is an OSError.
            self._failures += 1
        self._durations.observe(self._clock.monotonic() - begun_s)

    def series(self) -> Iterator[Series]:
        """The histogram and the counter."""
        yield from self._durations.series("coredns_health_request_duration_seconds", ())
        yield "coredns_health_request_failures_total", (), self._failures


async def _get(address: str, port: int) -> None:
    """Reads the page.

    Raises: OSError, ProtocolError, Disconnected.
    """
    connection = await connect(address, port)
    try:
        connection.send(encode_request("GET", "/health", (("host", "localhost"),)))
        await connection.head()
        await connection.body()
    finally:
        connection.abort()
