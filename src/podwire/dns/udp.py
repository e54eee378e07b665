"""UDP of the DNS server: a thread per address.

How it works: the thread blocks in ``recvfrom`` and answers repeated requests from its cache (``podwire.dns.replies``):
6 to 10 us of CPU per query instead of 45 to 58 us with asyncio's datagram protocol (measured with dnsperf on loopback).
Requests for names outside the cluster are answered from the cache of foreign names, or passed to the event loop; a
reply from that cache is ready for repeated requests as long as its TTLs stay the same: a second at most. A
reply with several addresses begins with a random one of them at each use, whether the reply is cached or not, so that
clients spread over all. A request is taken from the socket only after its reply was sent, so a process that is killed
meanwhile leaves it to the next one.
"""

import asyncio
import socket
import threading
from random import random
from time import perf_counter
from typing import Any

from podwire.dns import wire
from podwire.dns.metrics import SAMPLED
from podwire.dns.plugins.chain import ChainQuery, ReplyStream
from podwire.dns.relay import ForeignRelay
from podwire.dns.replies import CachedReply, ForeignReply, Outcome, ReplyCache
from podwire.dns.respond import Reply, UpstreamQuery, failure, udp_limit
from podwire.observe.log import Log
from podwire.runtime.supervise import failure_of

Peer = tuple[Any, ...]
"""A socket address of either family."""

_MAX_WAITING = 2000
_UNSAMPLED = SAMPLED - 1


class UdpListener:
    """One UDP socket with its thread."""

    def __init__(self, replies: ReplyCache, relay: ForeignRelay, udp_size: int) -> None:
        self.replies = replies
        self._relay = relay
        self._udp_size = udp_size
        self._waiting = 0
        self.failures = 0
        """How many requests failed by an error of the server itself."""
        self._closing = False
        self._family = "1"
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._log = Log("dns.udp")

    def open(self, bound: socket.socket) -> None:
        """Starts the thread on a bound socket; to be called on the loop."""
        self._family = "2" if bound.family == socket.AF_INET6 else "1"
        self._socket = bound
        loop = asyncio.get_running_loop()
        name = f"udp-{bound.getsockname()[0]}"
        self._thread = threading.Thread(target=self._serve, args=(bound, loop), name=name, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The bound port, for tests that bind port 0."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else 0

    async def close(self) -> None:
        """Ends the thread, then closes the socket."""
        self._closing = True
        if self._socket is not None and self._thread is not None:
            try:
                self._socket.shutdown(socket.SHUT_RD)  # This wakes the thread although it reports ENOTCONN.
            except OSError:
                pass
            await asyncio.to_thread(self._thread.join)
            self._socket.close()

    def _serve(self, link: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        receive, send, drop, replies, family = link.recvfrom, link.sendto, link.recv, self.replies, self._family
        now_s = self._relay.monotonic
        while not self._closing:
            try:
                data, peer = receive(4096, socket.MSG_PEEK)
                key = data[2:]
                entry = replies.by_request.get(key)
                if entry is None:
                    foreign = replies.foreign.get(key)
                    if foreign is None:
                        entry = replies.plain(data, family)
                    elif now_s() < foreign.until_s:
                        entry = foreign.entry
                        foreign.hits[foreign.kind] += 1
                if entry is None:
                    self._answer_contained(data, peer, loop)
                else:
                    cell = entry.cell
                    cell[0] += 1
                    if cell[0] & _UNSAMPLED:
                        send(data[:2] + (entry.rotated(random()) if entry.step else entry.tail), peer)
                    else:
                        begun_s = perf_counter()
                        send(data[:2] + (entry.rotated(random()) if entry.step else entry.tail), peer)
                        replies.sampled(entry.zone, perf_counter() - begun_s, family)
            except BlockingIOError:
                continue  # The time-out of the socket, or a full send queue.
            except OSError:
                pass
            try:
                drop(1, socket.MSG_DONTWAIT)
            except OSError:
                continue

    def _answer_contained(self, data: bytes, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        failure = failure_of(self._answer, data, peer, loop)
        if failure is not None and not isinstance(failure, OSError):
            self.failures += 1
            self._log.error("a request failed", request=data.hex(), failure=failure)

    def _answer(self, data: bytes, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        link, begun_s = self._socket, perf_counter()
        # A change of the zone replaces the dictionary, so replies of the old zone do not get into the new one.
        ready = self.replies.foreign
        again = ready.get(data[2:])
        outcome: Outcome = self._cached(again.upstream_query, data, ready) if again is not None else None
        if outcome is None:
            outcome = self.replies.respond(data, self._family, peer)
        if outcome is None or link is None or isinstance(outcome, ReplyStream):
            return
        if isinstance(outcome, UpstreamQuery):
            direct = again is None and outcome.answer is None and not isinstance(outcome, ChainQuery)
            cached = self._cached(outcome, data, ready) if direct else None
            if cached is None:
                self._hand_over(outcome, data, peer, loop)
                return
            outcome = cached
        reply = outcome.rotated(random())
        link.sendto(reply, peer)
        seconds = perf_counter() - begun_s
        self.replies.took(outcome, seconds, self._family)
        self.replies.report(data, reply, peer, seconds)

    def _cached(self, upstream_query: UpstreamQuery, data: bytes, ready: dict[bytes, ForeignReply]) -> Reply | None:
        """The reply from the cache of foreign names, counted and put into ``ready``; None: not in the cache."""
        reply = self._relay.cached(upstream_query, data, tcp=False)
        if reply is None:
            ready.pop(data[2:], None)
            return None
        cell = self.replies.count(reply, self._family, len(data))
        fresh = self._relay.fresh(upstream_query.name, data)
        if fresh is not None:
            self.replies.keep_foreign(ready, data, ForeignReply(upstream_query, CachedReply(reply, cell), fresh))
        return reply

    def _hand_over(self, ask: UpstreamQuery, data: bytes, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        link = self._socket
        if link is None:
            return

        begun_s = perf_counter()

        def send(reply: bytes) -> None:
            self._waiting -= 1
            try:
                link.sendto(reply, peer)
            except OSError:
                return
            self.replies.report(data, reply, peer, perf_counter() - begun_s)

        if self._waiting >= _MAX_WAITING:
            refused = failure(ask.query, udp_limit(ask.query, self._udp_size), wire.REFUSED)
            link.sendto(refused.data, peer)
            return
        self._waiting += 1
        loop.call_soon_threadsafe(self._relay.forward, ask, data, False, send)
