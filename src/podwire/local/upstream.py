"""Name service of the nodes: relays queries that come over the fabric to the machine's own name servers.

A node's resolv.conf names the host's fabric address. Cluster DNS answers queries about the cluster and forwards all
others to the node's name servers. So the machine itself looks up names outside the cluster, and no routing between the
fabric and other networks is needed. Cost: two sockets; some 100 us per relayed query.
"""

import asyncio
import struct
from typing import cast

from podwire.dns import wire
from podwire.dns.forward import Forwarder, ForwardOptions, Looping, Overloaded
from podwire.errors import ProtocolError
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

_LENGTH = struct.Struct("!H")


def refusal(request: bytes) -> bytes:
    """The answer SERVFAIL to a request, with its question only; empty for a message that is not a request."""
    try:
        query = wire.parse_query(request)
    except ProtocolError:
        return b""
    flags = wire.QR | (query.flags & wire.RD) | wire.RA | wire.SERVFAIL
    return wire.encode(wire.DnsMessage(query.id, flags, query.name, query.qtype, query.qclass))


class _Datagrams(asyncio.DatagramProtocol):
    """Hands each query to the relay and sends the reply back."""

    def __init__(self, relay: "UpstreamRelay") -> None:
        self._relay = relay
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._relay.tasks.start("relay", self._answer(data, addr))

    async def _answer(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = await self._relay.answer(data, tcp=False)
        if reply and self._transport is not None:
            self._transport.sendto(reply, addr)


class UpstreamRelay:
    """Answers on one address and port, UDP and TCP, with the replies of ``upstreams``."""

    def __init__(self, address: tuple[str, int], upstreams: tuple[tuple[str, int], ...], clock: Clock) -> None:
        self._place = address
        self._log = Log("upstream")
        self.tasks = TaskSet(lambda name, failure: self._log.warning("query failed", problem=failure, task=name))
        self._forwarder = Forwarder(upstreams, clock, ForwardOptions())

    async def answer(self, request: bytes, *, tcp: bool) -> bytes:
        """The reply of a name server, or SERVFAIL when none replies; empty for a message that is not a request."""
        if not (refused := refusal(request)):
            return b""
        if self._forwarder.loops.caught(wire.parse_query(request).name):
            return refused
        try:
            return await self._forwarder.ask(request, tcp=tcp) or refused
        except (Overloaded, Looping):
            return refused

    async def serve(self) -> None:
        """Serves until cancelled.

        Raises: OSError when the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), local_addr=self._place)
        try:
            server = await asyncio.start_server(self._converse, *self._place)
            async with server:
                await server.serve_forever()
        finally:
            transport.close()
            await self.tasks.close()
            await self._forwarder.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                reply = await self.answer(await reader.readexactly(length), tcp=True)
                if not reply:
                    return
                writer.write(_LENGTH.pack(len(reply)) + reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
