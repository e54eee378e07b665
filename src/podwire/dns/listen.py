"""Sockets of the DNS server: a thread per UDP address, and TCP on the event loop.

How it works: the UDP thread blocks in ``recvfrom`` and caches its replies by the request without the ID, so a repeated
request costs a dictionary look-up: 6 to 10 us of CPU per query instead of 45 to 58 us with asyncio's datagram protocol
(measured with dnsperf on loopback). A change of the zone replaces the dictionary; a reply computed from the old zone is
then stored in the old dictionary and not used again. Requests for names outside the cluster are passed to the event
loop. A reply with several addresses begins with a random one of them at each use, whether the reply is cached or not,
so that clients spread over all.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from random import random
from typing import Any

from podwire.dns import wire
from podwire.dns.metrics import Labels, QueryCounters
from podwire.dns.respond import Reply, UpstreamQuery, failure, respond, udp_limit
from podwire.dns.zone import Zone

Peer = tuple[Any, ...]
"""A socket address of either family."""

Send = Callable[[bytes], None]
"""Sends the reply to a request that needed an upstream answer."""

OnAsk = Callable[[UpstreamQuery, bytes, bool, Send], None]
"""Called on the loop with the request, its bytes, whether it came over TCP, and the function that sends the reply."""

_CAPACITY = 20_000
_MAX_CONNECTIONS = 256
_IDLE_S = 10.0
_MAX_WAITING = 2000


class CachedReply:
    """A reply without its ID, ready to send; ``cell`` counts it."""

    __slots__ = ("_head", "_reply", "_tail", "cell", "step", "tail")

    def __init__(self, reply: Reply, cell: list[int]) -> None:
        self.cell = cell
        self.step = reply.step
        self.tail = reply.data[2:]
        self._reply = reply
        self._head = reply.data[2 : reply.start]
        self._tail = reply.data[reply.end :]

    def turned(self, fraction: float) -> bytes:
        """The reply with the address first that stands at ``fraction`` of all."""
        return self._head + self._reply.window(fraction) + self._tail


class UdpListener:
    """One UDP socket with its thread; :meth:`forget` drops the cached replies."""

    def __init__(self, zone: Zone, counters: QueryCounters, on_ask: OnAsk, *, udp_size: int) -> None:
        self._zone = zone
        self._counters = counters
        self._on_ask = on_ask
        self._udp_size = udp_size
        self._replies: dict[bytes, CachedReply] = {}
        self._waiting = 0
        self._closing = False
        self._family = "1"
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

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

    def forget(self) -> None:
        """Drops the cached replies; to be called after a change of the zone."""
        self._replies = {}

    def cached(self) -> int:
        """The number of cached replies."""
        return len(self._replies)

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
        receive, send = link.recvfrom, link.sendto
        while not self._closing:
            try:
                data, peer = receive(4096)
                entry = self._replies.get(data[2:])
                if entry is None:
                    self._answer(data, peer, loop)
                    continue
                entry.cell[0] += 1
                send(data[:2] + (entry.turned(random()) if entry.step else entry.tail), peer)
            except OSError:
                continue

    def _answer(self, data: bytes, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        link, replies = self._socket, self._replies
        outcome = respond(self._zone, data, udp_ceiling=self._udp_size)
        if outcome is None or link is None:
            return
        if isinstance(outcome, UpstreamQuery):
            self._hand_over(outcome, data, peer, loop)
            return
        cell = self._counters.cell(labels_of(outcome, "udp", self._family))
        cell[0] += 1
        link.sendto(outcome.turned(random()), peer)
        if outcome.rcode in (wire.NOERROR, wire.NXDOMAIN):
            if len(replies) >= _CAPACITY:
                replies.clear()
            replies[data[2:]] = CachedReply(outcome, cell)

    def _hand_over(self, ask: UpstreamQuery, data: bytes, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        link = self._socket
        if link is None:
            return

        def send(reply: bytes) -> None:
            self._waiting -= 1
            try:
                link.sendto(reply, peer)
            except OSError:
                return

        if self._waiting >= _MAX_WAITING:
            refused = failure(ask.query, udp_limit(ask.query, self._udp_size), wire.REFUSED)
            link.sendto(refused.data, peer)
            return
        self._waiting += 1
        loop.call_soon_threadsafe(self._on_ask, ask, data, False, send)


def labels_of(reply: Reply, protocol: str, family: str) -> Labels:
    """The metric labels of a reply."""
    qtype = wire.TYPE_NAMES.get(reply.qtype, "other")
    return (
        reply.zone if reply.zone == "." else f"{reply.zone}.",
        protocol,
        family,
        qtype,
        wire.RCODE_NAMES.get(reply.rcode, str(reply.rcode)),
    )


class TcpListener:
    """TCP on one address: length-prefixed requests, answered in order (RFC 7766)."""

    def __init__(self, zone: Zone, counters: QueryCounters, on_ask: OnAsk) -> None:
        self._zone = zone
        self._counters = counters
        self._on_ask = on_ask
        self._open = 0
        self._server: asyncio.Server | None = None

    async def open(self, bound: socket.socket) -> None:
        """Serves on a listening socket."""
        self._server = await asyncio.start_server(self._serve, sock=bound)

    async def close(self) -> None:
        """Stops accepting; open connections end with the loop."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _MAX_CONNECTIONS:
                await self._converse(reader, writer)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        family = "2" if ":" in str(writer.get_extra_info("peername")[0]) else "1"
        while True:
            async with asyncio.timeout(_IDLE_S):
                data = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
            reply = await self._reply(data, family)
            if reply is None:
                return
            writer.write(len(reply).to_bytes(2, "big") + reply)
            await writer.drain()

    async def _reply(self, data: bytes, family: str) -> bytes | None:
        outcome = respond(self._zone, data)
        if isinstance(outcome, UpstreamQuery):
            waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._on_ask(outcome, data, True, lambda reply: None if waiting.done() else waiting.set_result(reply))
            return await waiting
        if outcome is None:
            return None
        self._counters.cell(labels_of(outcome, "tcp", family))[0] += 1
        return outcome.turned(random())
