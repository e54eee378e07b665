"""Forwards requests for names outside the cluster to upstream name servers.

How it works: a request is forwarded unchanged except for a new random ID, over the transport on which it arrived.
Guarantees: 1. a reply, or None when no server replied, within ``deadline_s``, which is shorter than the 5 s after which
resolvers give up; 2. over UDP the request is sent again, to the servers in turn, after ``resend_s``, then after twice
that time, and so on; over TCP the next server is asked after ``attempt_s``, or at once when a connection fails; a late
reply of any server counts; 3. each request is judged for itself: a name that gets no reply never keeps another name
from being asked (see :mod:`podwire.dns.upstream_health`); 4. good servers are asked before bad ones, and bad ones all
the same; 5. at most ``max_pending`` requests wait, more are refused; 6. equal requests (all bytes but the ID) that wait
at the same time are sent once; 7. a reply counts only if it comes from the asked server and has the ID and question of
the request; 8. a server in a loop is not asked, and of one question at most ``max_equal`` requests wait, so that a loop
makes few requests before it is detected (see :mod:`podwire.dns.loops`); 9. when one of the servers is to be asked over
TLS, all of them are asked over streams (:mod:`podwire.dns.streams`), their probes too; 10. a reply with a response code
of ``failover`` counts only when no server has a better one.

Cost: 120 to 170 us of CPU a request, measured on a busy machine (``python -m bench.dns``).
"""

import asyncio
import ipaddress
import random
import ssl
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from podwire.dns import wire
from podwire.dns.exchange import UdpRequest
from podwire.dns.links import Address, OnReply, UdpLinks
from podwire.dns.loops import LoopDetector
from podwire.dns.metrics import DURATION_BOUNDS, Buckets, Series
from podwire.dns.names import encode_name
from podwire.dns.streams import StreamPool
from podwire.dns.upstream_health import EVERY_S, FAILURES, UpstreamHealth, answers
from podwire.dns.wire import DnsMessage
from podwire.errors import ConfigError
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    """The times and limits of forwarding, in seconds; ``policy`` is sequential, random or round_robin.

    ``encrypted`` are the servers that are asked over TLS, with the names in their certificates. ``failover`` are
    response codes, ``probe_name`` is what a probe asks for the name servers of.
    """

    deadline_s: float = 4.5
    resend_s: float = 0.4
    attempt_s: float = 1.5
    max_pending: int = 2000
    max_equal: int = 32
    policy: str = "sequential"
    max_fails: int = FAILURES
    probe_every_s: float = EVERY_S
    probe_name: str = "."
    probe_flags: int = wire.RD
    expire_s: float = 10.0
    failover: frozenset[int] = frozenset()
    fail_fast: bool = False
    encrypted: Mapping[Address, str] = field(default_factory=dict)
    context: ssl.SSLContext | None = None


class Overloaded(Exception):
    """Too many requests wait for upstream servers."""


class Looping(Exception):
    """Every upstream server leads back to this server."""


class Forwarder:
    """Forwards requests to the upstream name servers; without any server each request fails at once."""

    def __init__(self, upstreams: tuple[Address, ...], clock: Clock, options: ForwardOptions) -> None:
        log = Log("dns.forward")
        self._clock = clock
        self._upstreams = upstreams
        self._options = options
        self._tasks = TaskSet(lambda name, failure: log.error("task failed", task=name, failure=failure))
        self.streams = {
            server: StreamPool(
                server,
                options.context if server in options.encrypted else None,
                options.encrypted.get(server, ""),
                options.expire_s,
            )
            for server in upstreams
        }
        answering = self._answers if options.encrypted else answers
        probe = wire.encode(DnsMessage(0, options.probe_flags, encode_name(options.probe_name), wire.NS))
        self.health = UpstreamHealth(
            upstreams, clock, self._tasks, max_fails=options.max_fails, every_s=options.probe_every_s
        )
        self.health.probe_with(probe, answering)
        self._turn = 0
        self.loops = LoopDetector(upstreams, clock, self._tasks, answering)
        self._questions: dict[bytes, int] = {}
        self._waiting: dict[tuple[bool, bytes], list[tuple[bytes, OnReply]]] = {}
        self._asking: set[UdpRequest] = set()
        self._links = {server: UdpLinks(server) for server in upstreams}
        self.sent = 0
        self.failed = 0
        self.rejected = 0
        self.durations: dict[tuple[Address, str], Buckets] = {}
        """How long the replies of a server with a response code took, in seconds."""
        self.all_bad = 0
        """How often all servers were bad."""

    @property
    def pending(self) -> int:
        """The number of requests that wait for upstream servers."""
        return len(self._waiting)

    async def close(self) -> None:
        """Ends the probes, the requests under way and the idle connections."""
        for asking in tuple(self._asking):
            asking.close()
        self._asking.clear()
        await self._tasks.close()
        for pool in self.streams.values():
            pool.close()
        for links in self._links.values():
            links.close()

    def series(self) -> Iterable[Series]:
        """Counters and durations, by server."""
        for (server, rcode), buckets in self.durations.items():
            labels = (("proxy_name", "forward"), ("to", f"{server[0]}:{server[1]}"), ("rcode", rcode))
            yield from buckets.series("coredns_proxy_request_duration_seconds", labels)
        for server, pool in self.streams.items():
            protocol = "tcp-tls" if server in self._options.encrypted else "tcp"
            for name, links in ((protocol, pool), ("udp", self._links[server])):
                to = (("proxy_name", "forward"), ("to", f"{server[0]}:{server[1]}"), ("proto", name))
                yield "coredns_proxy_conn_cache_hits_total", to, links.reused
                yield "coredns_proxy_conn_cache_misses_total", to, links.opened
            failures = self.health.failures(server)
            labels = (("proxy_name", "forward"), ("to", f"{server[0]}:{server[1]}"), ("rcode", ""))
            yield "coredns_proxy_healthcheck_failures_total", labels, failures

    async def _answers(self, server: Address, request: bytes, seconds: float) -> bool:
        """Whether a server replies over a stream within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self.streams[server].ask(request)
        except (OSError, EOFError, TimeoutError):
            return False
        return True

    async def ask(self, request: bytes, *, tcp: bool) -> bytes | None:
        """The reply to ``request`` under the ID of the request, or None when no server answered.

        Raises: Overloaded, Looping.
        """
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def arrived(reply: bytes | None) -> None:
            if not future.done():
                future.set_result(reply)

        self.submit(request, arrived, tcp=tcp)
        return await future

    def submit(self, request: bytes, on_reply: OnReply, *, tcp: bool) -> None:
        """Asks as :meth:`ask`; the reply is passed to ``on_reply``, perhaps before this returns.

        Raises: Overloaded, Looping.
        """
        if self._upstreams and self.loops.looping.issuperset(self._upstreams):
            raise Looping
        key = (tcp, request[2:])
        waiting = self._waiting.get(key)
        if waiting is not None:
            self.loops.suspect(at_once=False)
            waiting.append((request[:2], on_reply))
            return
        question = wire.read_question(request).lower()
        equal = self._questions.get(question, 0)
        if equal:
            self.loops.suspect(at_once=equal >= self._options.max_equal)
        if len(self._waiting) >= self._options.max_pending or equal >= self._options.max_equal:
            self.rejected += 1
            raise Overloaded
        self._questions[question] = equal + 1
        self._waiting[key] = [(request[:2], on_reply)]
        self._start(request, key, question)

    def _start(self, request: bytes, key: tuple[bool, bytes], question: bytes) -> None:
        # Stable: in the order of the policy, good servers first.
        straight = (server for server in self._in_order() if server not in self.loops.looping)
        servers = sorted(straight, key=lambda server: not self.health.good(server))
        if servers and not self.health.good(servers[0]):
            self.all_bad += 1
            if self._options.fail_fast:
                servers = []
        if key[0] or self._options.encrypted:
            task = self._tasks.start("ask over TCP", self._ask_tcp(servers, request))
            task.add_done_callback(
                lambda done: self._arrived(key, question, None if done.cancelled() else done.result())
            )
            return

        def ended(asked: UdpRequest) -> None:
            self._asking.discard(asked)
            self.sent += asked.count
            if asked.server is not None and asked.reply is not None:
                self.health.replied(asked.server)
                self._observe(asked.server, asked.reply, begun_s)
            self._arrived(key, question, asked.reply)

        begun_s = self._clock.monotonic()
        asking = UdpRequest(
            request,
            self._links,
            ended,
            suspects=self.health.suspect,
            unwanted=self._options.failover,
            left_out=self.loops.looping,
        )
        self._asking.add(asking)
        asking.start(servers, self._options.resend_s, self._options.deadline_s)

    def _observe(self, server: Address, reply: bytes, begun_s: float) -> None:
        key = (server, wire.RCODE_NAMES.get(reply[3] & 0xF, str(reply[3] & 0xF)))
        buckets = self.durations.get(key)
        if buckets is None:
            buckets = self.durations[key] = Buckets(DURATION_BOUNDS)
        buckets.observe(self._clock.monotonic() - begun_s)

    def _arrived(self, key: tuple[bool, bytes], question: bytes, reply: bytes | None) -> None:
        rest = self._questions[question] - 1
        if rest:
            self._questions[question] = rest
        else:
            del self._questions[question]
        if reply is None:
            self.failed += 1
        waiting = self._waiting.pop(key)
        if reply is None and len(waiting) > 1:
            self.loops.suspect(at_once=True)
        for ident, on_reply in waiting:
            on_reply(None if reply is None else ident + reply[2:])

    def _in_order(self) -> Sequence[Address]:
        upstreams = self._upstreams
        match self._options.policy:
            case "random":
                return random.sample(upstreams, len(upstreams))
            case "round_robin":
                self._turn += 1
                first = self._turn % max(1, len(upstreams))
                return upstreams[first:] + upstreams[:first]
        return upstreams

    async def _ask_tcp(self, servers: list[Address], request: bytes) -> bytes | None:
        attempts: dict[asyncio.Task[bytes | None], Address] = {}
        queue = list(servers)
        begun_s = self._clock.monotonic()
        rejected: bytes | None = None
        try:
            async with asyncio.timeout(self._options.deadline_s):
                while queue or attempts:
                    if queue:
                        server = queue.pop(0)
                        self.sent += 1
                        attempts[
                            self._tasks.start("ask over TCP", _reply_or_none(self.streams[server].ask(request)))
                        ] = server
                    done, _ = await asyncio.wait(
                        attempts, timeout=self._options.attempt_s if queue else None, return_when="FIRST_COMPLETED"
                    )
                    for attempt in done:
                        server = attempts.pop(attempt)
                        if (reply := attempt.result()) is not None:
                            self.health.replied(server)
                            self._observe(server, reply, begun_s)
                            if reply[3] & 0xF not in self._options.failover:
                                return reply
                            rejected = reply
                        else:
                            self.health.suspect(server)
        except TimeoutError:
            for server in attempts.values():
                self.health.suspect(server)
        finally:
            for attempt in attempts:
                attempt.cancel()
        return rejected


async def _reply_or_none(attempt: Coroutine[None, None, bytes]) -> bytes | None:
    try:
        return await attempt
    except (OSError, EOFError):
        return None


def parse_upstream(text: str, source: str) -> tuple[str, int]:
    """Address and port of ``address``, ``address:port`` or ``[address]:port``.

    Raises: ConfigError.
    """
    host, port = text, "53"
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or "53"
    elif text.count(":") == 1:
        host, port = text.split(":")
    try:
        number = int(port)
        ipaddress.ip_address(host.partition("%")[0])
        if not 0 < number < 65536:
            raise ValueError("port out of range")
    except ValueError as failure:
        raise ConfigError(source, "upstreams", f"expected address or address:port, got {text!r}") from failure
    return host, number


def read_resolv_conf(path: str, *, loopback: bool = False) -> tuple[tuple[str, int], ...]:
    """The name servers of a resolver configuration, in order; none when the file cannot be read.

    Without ``loopback``, loopback addresses are left out: in a pod, they would lead to this server itself.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    servers = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == "nameserver":
            try:
                address = ipaddress.ip_address(fields[1].partition("%")[0])
            except ValueError:
                continue
            if loopback or not address.is_loopback:
                servers.append((fields[1], 53))
    return tuple(dict.fromkeys(servers))
