"""Which upstream servers work: a probe of its own decides, never the fate of a single request.

How it works: a name whose own servers are dead, slow or lossy makes requests time out although the upstream server
works. So a time-out only makes :class:`UpstreamHealth` ask the server for the name servers of the root (``. NS``),
which every resolver answers. Guarantees: 1. a server is bad after ``FAILURES`` probes in a row without reply; 2. any
reply, to a probe or to a request, makes it good; 3. a bad server is probed until it replies, at first after 0.5 s, then
less often, at least every 5 s; 4. a server that was never suspected is not probed, and one that replied to a probe is
not probed again within 0.5 s.
"""

from collections.abc import Awaitable, Callable, Iterable

from podwire.dns import wire
from podwire.dns.exchange import ask_once
from podwire.dns.links import Address
from podwire.dns.wire import DnsMessage
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

Answers = Callable[[Address, bytes, float], Awaitable[bool]]
"""Whether a server replies to a request within some seconds."""

FAILURES = 2
_PROBE_S = 1.0
EVERY_S = 0.5
_PROBE = wire.encode(DnsMessage(0, wire.RD, b"\x00", wire.NS))


class UpstreamHealth:
    """The health of upstream servers; tasks run in ``tasks``."""

    def __init__(
        self,
        servers: Iterable[Address],
        clock: Clock,
        tasks: TaskSet,
        *,
        max_fails: int = FAILURES,
        every_s: float = EVERY_S,
    ) -> None:
        self._max_fails = max_fails
        self._every_s = every_s
        self._failures = dict.fromkeys(servers, 0)
        self._clock = clock
        self._tasks = tasks
        self._probing: set[Address] = set()
        self._replied_s = dict.fromkeys(self._failures, -every_s)
        self._log = Log("dns.upstream")
        self._probe_request = _PROBE
        self._answers: Answers = answers
        self._failed_probes = dict.fromkeys(self._failures, 0)

    def probe_with(self, request: bytes, answering: Answers) -> None:
        """Sets what a probe asks, and how."""
        self._probe_request = request
        self._answers = answering

    def failures(self, server: Address) -> int:
        """How many probes of a server failed."""
        return self._failed_probes[server]

    def good(self, server: Address) -> bool:
        """Whether the server replied to one of the last probes, or was never suspected."""
        return not self._max_fails or self._failures[server] < self._max_fails

    def suspect(self, server: Address) -> None:
        """Starts to probe a server that did not reply to a request."""
        fresh = self._clock.monotonic() - self._replied_s[server] < self._every_s
        if server not in self._probing and not fresh:
            self._probing.add(server)
            self._tasks.start("probe upstream", self._probe(server))

    def replied(self, server: Address) -> None:
        """Marks a server that replied as good."""
        if not self.good(server):
            self._log.info("an upstream server replies again", server=f"{server[0]}:{server[1]}")
        self._failures[server] = 0

    async def _probe(self, server: Address) -> None:
        backoff = Backoff(self._every_s, max(self._every_s, 5.0))
        try:
            while not await self._answers(server, self._probe_request, _PROBE_S):
                self._failed_probes[server] += 1
                self._failures[server] += 1
                if self._failures[server] == self._max_fails:
                    self._log.warning("an upstream server does not reply", server=f"{server[0]}:{server[1]}")
                await self._clock.sleep(backoff.next_delay_s())
            self._replied_s[server] = self._clock.monotonic()
            self.replied(server)
        finally:
            self._probing.discard(server)


async def answers(server: Address, request: bytes, seconds: float) -> bool:
    """Whether a server replies to a request over UDP within ``seconds``, with any response code."""
    return await ask_once(server, request, seconds) is not None
