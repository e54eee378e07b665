"""TCP and TLS on one address: length-prefixed requests on the event loop (RFC 1035 section 4.2.2, RFC 7766, RFC 7858).

How it works: a request that the zone answers is answered at once; one that upstream must answer does not hold up the
next request of its connection, so replies may come in another order (RFC 7766 section 6.2.1.1). Guarantees: 1. a
connection that has no request under way and sends no whole request for ``idle_s`` is closed; 2. a client that does not
read its replies stops being read, and is cut off after ``write_s``; 3. a connection has at most ``pipelined`` requests
under way; further ones wait in the kernel; 4. at most ``connections`` are open, and ``connections_per_client`` of one
address: the connection that has been idle for longest makes room for a new one, so clients that hold connections never
shut others out; 5. a client that does not finish the handshake of TLS in ``write_s`` is cut off.

Cost: 4 to 6 us of CPU a request when requests are pipelined (``python -m bench.dns``).
"""

import asyncio
import socket
import ssl
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Any, cast

from podwire.dns.metrics import SAMPLED
from podwire.dns.plugins.chain import ReplyStream
from podwire.dns.replies import OnAsk, ReplyCache
from podwire.dns.respond import UpstreamQuery
from podwire.runtime.clock import Clock

_SWEEP_S = 0.5
_BUFFER_BYTES = 16 << 10
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class TcpLimits:
    """Times in seconds, and how much clients may hold."""

    idle_s: float = 10.0
    write_s: float = 5.0
    connections: int = 1024
    connections_per_client: int = 128
    pipelined: int = 100


class TcpListener:
    """The TCP connections of one address."""

    def __init__(self, replies: ReplyCache, on_ask: OnAsk, clock: Clock, limits: TcpLimits | None = None) -> None:
        self.replies = replies
        self.on_ask = on_ask
        self.clock = clock
        self.limits = limits or TcpLimits()
        self.cut_for_room = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._connections: OrderedDict[_Connection, str] = OrderedDict()
        self._clients: dict[str, int] = {}

    async def open(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serves on a listening socket; with ``tls`` over DNS over TLS."""
        loop = asyncio.get_running_loop()
        limit_s = self.limits.write_s if tls is not None else None
        self._server = await loop.create_server(
            lambda: _Connection(self), sock=bound, backlog=_BACKLOG, ssl=tls,
            ssl_handshake_timeout=limit_s, ssl_shutdown_timeout=limit_s,
        )  # fmt: skip
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    async def close(self) -> None:
        """Stops accepting, and closes the connections; a client that does not read loses what it was sent."""
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in tuple(self._connections):
            connection.close()
        await self.clock.sleep(0)
        for connection in tuple(self._connections):
            connection.cut()

    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def add(self, connection: "_Connection", client: str) -> None:
        """Counts a new connection; makes room for it first."""
        if self._clients.get(client, 0) >= self.limits.connections_per_client:
            self._make_room(client)
        elif len(self._connections) >= self.limits.connections:
            self._make_room("")
        self._connections[connection] = client
        self._clients[client] = self._clients.get(client, 0) + 1

    def _make_room(self, client: str) -> None:
        """Cuts off the connection that has been idle for longest, of one client or ("") of all."""
        candidates = [c for c, owner in self._connections.items() if not client or owner == client]
        victim = next((c for c in candidates if c.idle), candidates[0])
        self.cut_for_room += 1
        victim.cut()

    def remove(self, connection: "_Connection") -> None:
        """Forgets a connection that has ended."""
        client = self._connections.pop(connection, None)
        if client is None:
            return
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]

    def touch(self, connection: "_Connection") -> None:
        """Marks a connection as the one that was used last."""
        if connection in self._connections:
            self._connections.move_to_end(connection)

    def _sweep(self) -> None:
        now_s = self.clock.monotonic()
        for connection in tuple(self._connections):
            if connection.stuck(now_s, self.limits.write_s):
                connection.cut()
            elif connection.idle and now_s - connection.used_s > self.limits.idle_s:
                connection.close()
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)


class _Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, listener: TcpListener) -> None:
        self._listener = listener
        self._received = b""
        self._family = "1"
        self._encrypted = False
        self._peer: tuple[Any, ...] = ("", 0)
        self._transport: asyncio.Transport | None = None
        self._full_s = -1.0
        self._arrived_s = 0.0
        self._asking = 0
        self._answering = False
        self.used_s = listener.clock.monotonic()

    @property
    def idle(self) -> bool:
        """Whether no request waits for upstream; a client that does not read counts as idle."""
        return not self._asking or self._full_s >= 0

    def stuck(self, now_s: float, write_s: float) -> bool:
        """Whether the client has not read for ``write_s``."""
        return self._full_s >= 0 and now_s - self._full_s > write_s

    def close(self) -> None:
        """Closes the connection when its replies are sent."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Ends the connection at once."""
        self._listener.remove(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts the connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._peer = transport.get_extra_info("peername") or ("", 0)
        self._encrypted = transport.get_extra_info("ssl_object") is not None
        client = str(self._peer[0])
        self._family = "2" if ":" in client else "1"
        self._listener.add(self, client)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._listener.remove(self)
        self._transport = None

    def pause_writing(self) -> None:
        """The client does not read: reads no more of its requests."""
        self._full_s = self._listener.clock.monotonic()
        self._pause_or_resume()

    def resume_writing(self) -> None:
        """The client has read: answers what it had sent meanwhile."""
        self._full_s = -1.0
        if not self._answering:
            self._answer()

    def eof_received(self) -> bool:
        """Keeps the connection open while replies are under way; TLS ends in both directions at once."""
        return self._asking > 0 and not self._encrypted

    def data_received(self, data: bytes) -> None:
        """Answers the requests that are complete."""
        self._arrived_s = self._listener.clock.monotonic()
        self._received = self._received + data if self._received else data
        self._answer()

    @property
    def _blocked(self) -> bool:
        return self._full_s >= 0 or self._asking >= self._listener.limits.pipelined

    def _answer(self) -> None:
        data, offset = self._received, 0
        self._answering = True
        while len(data) - offset > 2 and not self._blocked:
            end = offset + 2 + int.from_bytes(data[offset : offset + 2], "big")
            if end > len(data):
                break
            request = data[offset + 2 : end]
            offset = end
            if not self._respond(request):
                self.close()
                return
        self._answering = False
        if offset:
            self._received = data[offset:]
            self.used_s = self._listener.clock.monotonic()
            self._listener.touch(self)
        self._pause_or_resume()

    def _respond(self, request: bytes) -> bool:
        """Answers a request or asks upstream; False for what is no request."""
        replies = self._listener.replies
        entry = replies.by_request.get(request[2:]) or replies.plain(request, self._family)
        if entry is not None:
            entry.cell[0] += 1
            if not entry.cell[0] % SAMPLED:
                replies.sampled(entry.zone, self._listener.clock.monotonic() - self._arrived_s, self._family)
            self._write(request[:2] + (entry.rotated(random()) if entry.step else entry.tail))
            return True
        outcome = self._listener.replies.respond(request, self._family, self._peer)
        if outcome is None:
            return False
        if isinstance(outcome, ReplyStream):
            for message in outcome.messages:
                self._write(message)
            return True
        if isinstance(outcome, UpstreamQuery):
            self._asking += 1
            self._listener.on_ask(outcome, request, True, partial(self._write_late, request, self._arrived_s))
        else:
            reply = outcome.rotated(random())
            self._write(reply)
            seconds = self._listener.clock.monotonic() - self._arrived_s
            replies.took(outcome, seconds, self._family)
            replies.report(request, reply, self._peer, seconds)
        return True

    def _write(self, reply: bytes) -> None:
        if self._transport is not None:
            self._transport.write(len(reply).to_bytes(2, "big") + reply)

    def _write_late(self, request: bytes, arrived_s: float, reply: bytes) -> None:
        self._asking -= 1
        self.used_s = self._listener.clock.monotonic()
        self._listener.replies.report(request, reply, self._peer, self.used_s - arrived_s)
        self._write(reply)
        # A reply from the cache of foreign names arrives while the requests are read.
        if not self._answering:
            self._answer()

    def _pause_or_resume(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._blocked:
            transport.pause_reading()
        else:
            transport.resume_reading()
