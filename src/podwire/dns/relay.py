"""Answers to requests that need names outside the cluster: from the caches, or of upstream servers.

How it works: ``cached`` is called by any thread and never waits; ``forward`` runs on the event loop and sends the reply
when it arrives. With plugins, the steps of a request (:class:`~podwire.dns.plugins.chain.ChainQuery`) continue with
each reply of an upstream server until they end.
"""

import asyncio
from collections.abc import Iterable
from random import random

import msgspec

from podwire.dns import wire
from podwire.dns.config import DnsConfig
from podwire.dns.foreign import ForeignCaches, FreshReply
from podwire.dns.forward import Looping, Overloaded
from podwire.dns.metrics import QueryCounters, Series
from podwire.dns.plugins.chain import ChainOutcome, ChainQuery, PluginChain, cache_key, request_bytes
from podwire.dns.plugins.plugin import UpstreamAsk
from podwire.dns.replies import Send, labels_of
from podwire.dns.respond import Reply, UpstreamQuery, failure, merge, udp_limit
from podwire.dns.routes import ForwardRoute, ForwardRoutes
from podwire.dns.wire import DnsMessage, Edns
from podwire.errors import ProtocolError
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet


class ForeignRelay:
    """The upstream servers and the caches of a configuration; ``chain`` are its plugins, or None."""

    def __init__(self, config: DnsConfig, clock: Clock, counters: QueryCounters) -> None:
        log = Log("dns")
        self._config = config
        self._clock = clock
        self.monotonic = clock.monotonic
        """The clock of the caches."""
        self._counters = counters
        self.caches = ForeignCaches(config)
        self.routes = ForwardRoutes(config, clock)
        self.chain: PluginChain | None = None
        self._asking = TaskSet(lambda name, error: log.error("task failed", task=name, failure=error))
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Looks for loops of upstream servers; to be called on the loop when the server answers."""
        self._loop = asyncio.get_running_loop()
        self.routes.start()

    def series(self) -> Iterable[Series]:
        """The counters of plugins."""
        server = ("server", self._counters.server)
        for view, plugin in self.chain.counted() if self.chain is not None else ():
            for name, labels, value in plugin.series():
                # CoreDNS' counter of autopath has no view.
                label = () if name.startswith("coredns_autopath") else (("view", view),)
                yield name, (server, *label, *labels), value

    async def close(self) -> None:
        """Ends the waiting requests."""
        await self._asking.close()
        await self.routes.close()

    def cached(self, upstream_query: UpstreamQuery, data: bytes, *, tcp: bool) -> Reply | None:
        """The cached reply to a request for a foreign name, or None."""
        name = upstream_query.name
        cache, now_s = self.caches.choose(name), self._clock.monotonic()
        reply = cache.get(data, tcp=tcp, now_s=now_s)
        if reply is not None:
            if cache.prefetches_names and cache.due(data, tcp=tcp, now_s=now_s):
                self._refresh(name, "", data, data, tcp)
            return _marked(upstream_query, reply)
        if cache.config.serve_stale_seconds and not cache.config.serve_stale_verify:
            reply = cache.stale(data, tcp=tcp, now_s=now_s)
            if reply is not None:
                self._refresh(name, "", data, data, tcp)
        return reply

    def fresh(self, name: bytes, data: bytes) -> FreshReply | None:
        """For how long the reply over UDP that :meth:`cached` has just returned can be sent again as it is."""
        return self.caches.choose(name).fresh(data, tcp=False, now_s=self._clock.monotonic())

    def look_up(self, ask: UpstreamAsk, view: str, tcp: bool) -> bytes | None:  # noqa: FBT001
        """The cached reply to a question of a plugin, or None."""
        name, key = ask.query.name, cache_key(ask, view)
        cache, now_s = self.caches.choose(name), self._clock.monotonic()
        reply = cache.get(key, tcp=tcp, now_s=now_s)
        fresh = reply is not None
        if reply is None and cache.config.serve_stale_seconds and not cache.config.serve_stale_verify:
            reply = cache.stale(key, tcp=tcp, now_s=now_s)
        if reply is None:
            return None
        if not fresh or (cache.prefetches_names and cache.due(key, tcp=tcp, now_s=now_s)):
            self._refresh(name, view, request_bytes(ask), key, tcp)
        return reply.data

    def _refresh(self, name: bytes, view: str, request: bytes, key: bytes, tcp: bool) -> None:  # noqa: FBT001
        """Asks upstream in the background, for the cache."""
        if self._loop is not None:
            asking = (name, view, request, key, tcp)
            self._loop.call_soon_threadsafe(lambda: self._asking.start("refresh", self._refreshed(*asking)))

    async def _refreshed(self, name: bytes, view: str, request: bytes, key: bytes, tcp: bool) -> None:  # noqa: FBT001
        try:
            reply = await self.routes.choose(name, view).ask(request, tcp=tcp)
        except (Overloaded, Looping):
            return
        if reply is not None:
            self.caches.choose(name).put(key, reply, tcp=tcp, now_s=self._clock.monotonic())

    def forward(self, upstream_query: UpstreamQuery, data: bytes, tcp: bool, send: Send) -> None:  # noqa: FBT001
        """Starts asking upstream, or (TCP) answers from the cache of foreign names; runs on the loop."""
        if self.routes.caught(upstream_query.name) or self.routes.caught(upstream_query.query.name):
            send(failure(upstream_query.query, self._limit(upstream_query, tcp=tcp), wire.REFUSED).data)
            return
        if isinstance(upstream_query, ChainQuery):
            self._asking.start("plugins", self._run_chain(upstream_query, len(data), tcp, send))
            return
        if tcp and upstream_query.answer is None:
            reply = self.cached(upstream_query, data, tcp=tcp)
            if reply is not None:
                self._count(reply, tcp, len(data), self._clock.monotonic())
                send(reply.rotated(random()))
                return
        route = self.routes.choose(upstream_query.name)
        if not tcp and upstream_query.answer is None and route.plain_udp:
            self._submit(route, upstream_query, data, send)
            return
        self._asking.start("forward", self._forward(upstream_query, data, tcp, send))

    def _submit(self, route: ForwardRoute, upstream_query: UpstreamQuery, data: bytes, send: Send) -> None:
        """Asks over UDP without a task of its own, as most requests are."""

        def arrived(raw: bytes | None) -> None:
            reply = self._received(upstream_query, data, False, raw)
            self._count(reply, False, len(data), begun_s)
            send(reply.rotated(random()))

        begun_s = self._clock.monotonic()
        try:
            route.forwarder.submit(data, arrived, tcp=False)
        except (Overloaded, Looping):
            reply = failure(upstream_query.query, self._limit(upstream_query, tcp=False), wire.REFUSED)
            self._count(reply, False, len(data), begun_s)
            send(reply.data)

    def _limit(self, upstream_query: UpstreamQuery, *, tcp: bool) -> int:
        return 65535 if tcp else udp_limit(upstream_query.query, self._config.udp_size)

    async def _run_chain(self, waiting: ChainQuery, size: int, tcp: bool, send: Send) -> None:  # noqa: FBT001
        outcome: ChainOutcome = waiting
        begun_s = self._clock.monotonic()
        try:
            while isinstance(outcome, ChainQuery) and self.chain is not None:
                outcome = self.chain.go_on(outcome, await self._ask(outcome, tcp=tcp))
        except (Overloaded, Looping):
            outcome = failure(waiting.query, waiting.limit, wire.REFUSED)
        except asyncio.CancelledError:
            send(failure(waiting.query, waiting.limit).data)
            raise
        if not isinstance(outcome, Reply):
            # A client that waits for upstream gets one reply: transfers and dropped requests are decided before that.
            outcome = failure(waiting.query, waiting.limit, wire.REFUSED)
        self._count(msgspec.structs.replace(outcome, view=waiting.view), tcp, size, begun_s)
        send(outcome.rotated(random()))

    async def _ask(self, waiting: ChainQuery, *, tcp: bool) -> bytes | None:
        """The reply of an upstream server to the question that the steps wait for.

        Raises: Overloaded, Looping.
        """
        ask = waiting.ask
        if ask is None:
            return None
        name, key = ask.query.name, cache_key(ask, waiting.view)
        cache = self.caches.choose(name)
        reply = await self.routes.choose(name, waiting.view).ask(request_bytes(ask), tcp=tcp)
        now_s = self._clock.monotonic()
        if reply is None:
            stale = cache.stale(key, tcp=tcp, now_s=now_s)
            return None if stale is None else stale.data
        cache.put(key, reply, tcp=tcp, now_s=now_s)
        return reply

    async def _forward(self, upstream_query: UpstreamQuery, data: bytes, tcp: bool, send: Send) -> None:  # noqa: FBT001
        limit, begun_s = self._limit(upstream_query, tcp=tcp), self._clock.monotonic()
        try:
            reply = await (
                self._relay(upstream_query, data, tcp)
                if upstream_query.answer is None
                else self._chase(upstream_query, tcp, limit)
            )
        except (Overloaded, Looping):
            reply = failure(upstream_query.query, limit, wire.REFUSED)
        except asyncio.CancelledError:
            send(failure(upstream_query.query, limit).data)
            raise
        self._count(reply, tcp, len(data), begun_s)
        send(reply.rotated(random()))

    async def _relay(self, upstream_query: UpstreamQuery, data: bytes, tcp: bool) -> Reply:  # noqa: FBT001
        raw = await self.routes.choose(upstream_query.name).ask(data, tcp=tcp)
        return self._received(upstream_query, data, tcp, raw)

    def _received(self, upstream_query: UpstreamQuery, data: bytes, tcp: bool, raw: bytes | None) -> Reply:  # noqa: FBT001
        """The reply to a request, from what an upstream server has sent (None: nothing); it is cached."""
        cache, now_s = self.caches.choose(upstream_query.name), self._clock.monotonic()
        limit = self._limit(upstream_query, tcp=tcp)
        if raw is None:
            return cache.stale(data, tcp=tcp, now_s=now_s) or failure(upstream_query.query, limit)
        if len(raw) > limit:
            # An upstream that ignores the size asked for: the client must come again over TCP.
            return _truncated(upstream_query, limit)
        cache.put(data, raw, tcp=tcp, now_s=now_s)
        return _marked(upstream_query, Reply(raw, upstream_query.query.qtype, raw[3] & 0xF))

    async def _chase(self, upstream_query: UpstreamQuery, tcp: bool, limit: int) -> Reply:  # noqa: FBT001
        """The reply for an alias whose target is foreign."""
        edns = Edns(size=self._config.udp_size)
        request = wire.encode(DnsMessage(0, wire.RD, upstream_query.name, upstream_query.query.qtype, edns=edns))
        now_s = self._clock.monotonic()
        cache = self.caches.choose(upstream_query.name)
        cached = cache.get(request, tcp=tcp, now_s=now_s)
        reply = None if cached is None else cached.data
        if reply is None:
            reply = await self.routes.choose(upstream_query.name).ask(request, tcp=tcp)
            if reply is None:
                return failure(upstream_query.query, limit)
            cache.put(request, reply, tcp=tcp, now_s=now_s)
        try:
            return merge(upstream_query, wire.parse_message(reply), limit)
        except ProtocolError:
            return failure(upstream_query.query, limit)

    def _count(self, reply: Reply, tcp: bool, size: int, begun_s: float) -> None:  # noqa: FBT001
        """Counts a reply to a request of ``size`` bytes."""
        labels = labels_of(reply, "tcp" if tcp else "udp", "1")
        self._counters.cell(labels, "loop", size, len(reply.data))[0] += 1
        self._counters.took(labels, self._clock.monotonic() - begun_s, "loop")


def _marked(upstream_query: UpstreamQuery, reply: Reply) -> Reply:
    """The reply with the flag DO of its request, for metrics."""
    edns = upstream_query.query.edns
    return msgspec.structs.replace(reply, dnssec_ok=True) if edns is not None and edns.dnssec_ok else reply


def _truncated(upstream_query: UpstreamQuery, limit: int) -> Reply:
    reply = failure(upstream_query.query, limit, wire.NOERROR)
    data = bytearray(reply.data)
    data[2] |= wire.TC >> 8
    return Reply(bytes(data), reply.qtype, reply.rcode)
