"""Finds upstream servers that send requests back to this server, directly or through other servers.

How it works: a probe is a request for a random name of two labels and type HINFO, which no client asks for. When a
request for that name arrives here while the probe is under way, the server that was probed leads back. Guarantees:
1. each server is probed at the start; 2. it is probed again when requests for one question wait at the same time, as in
a loop: at most every 5 s, or at once when there are very many or no reply came; 3. a server in a loop is not asked any
more, is reported once, and is probed every 30 s until the loop is gone.
"""

import secrets
from collections.abc import Iterable

from podwire.dns import wire
from podwire.dns.links import Address
from podwire.dns.names import encode_name
from podwire.dns.upstream_health import Answers, answers
from podwire.dns.wire import DnsMessage
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

_PROBE_S = 2.0
_SUSPECT_EVERY_S = 5.0
_RECHECK_S = 30.0


class LoopDetector:
    """The loops of upstream servers; tasks run in ``tasks``."""

    def __init__(self, servers: Iterable[Address], clock: Clock, tasks: TaskSet, answering: Answers = answers) -> None:
        self._answers = answering
        self._probed_s = dict.fromkeys(servers, -_SUSPECT_EVERY_S)
        self._clock = clock
        self._tasks = tasks
        self._names: dict[bytes, Address] = {}
        self._returned: set[bytes] = set()
        self._log = Log("dns.loop")
        self.looping: set[Address] = set()
        """The servers that lead back to this one."""

    def start(self) -> None:
        """Probes every server."""
        self.suspect(at_once=True)

    def suspect(self, *, at_once: bool) -> None:
        """Probes the servers because requests repeat; without ``at_once`` those that were not probed for a while."""
        now_s = self._clock.monotonic()
        for server, probed_s in self._probed_s.items():
            due = at_once or now_s - probed_s >= _SUSPECT_EVERY_S
            if server not in self.looping and server not in self._names.values() and due:
                self._probed_s[server] = now_s
                name = encode_name(f"{secrets.randbits(63)}.{secrets.randbits(63)}")
                self._names[name] = server
                self._tasks.start("probe for a loop", self._probe(server, name))

    def caught(self, name: bytes) -> bool:
        """Whether a request that arrived here is a probe; its server is then in a loop."""
        server = self._names.get(name.lower()) if self._names else None
        if server is None:
            return False
        self._returned.add(name.lower())
        if server not in self.looping:
            self.looping.add(server)
            self._log.error(
                "an upstream server sends queries back to this server, so it gets no more queries",
                server=f"{server[0]}:{server[1]}",
                probed_again_s=_RECHECK_S,
            )
        return True

    async def _probe(self, server: Address, name: bytes) -> None:
        request = wire.encode(DnsMessage(0, wire.RD, name, wire.HINFO))
        try:
            while True:
                self._returned.discard(name)
                await self._answers(server, request, _PROBE_S)
                if name not in self._returned:
                    break
                await self._clock.sleep(_RECHECK_S)
        finally:
            del self._names[name]
            self._returned.discard(name)
        if server in self.looping:
            self.looping.discard(server)
            self._log.info("an upstream server sends no requests back any more", server=f"{server[0]}:{server[1]}")
