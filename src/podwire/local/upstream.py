"""Name service of the nodes: relays queries that come over the fabric to the machine's own name servers.

A node's resolv.conf names the host's fabric address. Cluster DNS answers for the cluster and forwards the rest to
the node's name servers, so names outside the cluster are looked up by the machine itself, without routing between the
fabric and the world. Cost: two sockets; some 100 us a query that is relayed.
"""

import asyncio
import struct
from typing import cast

from podwire.dns.forward import Forwarder, ForwardOptions, read_resolv_conf
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

PORT = 53
_LENGTH = struct.Struct("!H")
_SERVFAIL = b"\x81\x82"
"""QR, RD, RA; response code 2."""


def refusal(request: bytes) -> bytes:
    """The answer SERVFAIL to a request, with its question and nothing else (RFC 1035 section 4.1.1)."""
    return request[:2] + _SERVFAIL + request[4:6] + bytes(6) + request[12:]


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
        reply = await self._relay.forwarder.ask(data, tcp=False)
        if self._transport is not None:
            self._transport.sendto(reply or refusal(data), addr)


class UpstreamRelay:
    """Answers on one address, UDP and TCP."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._address = address
        self._log = Log("upstream")
        self.tasks = TaskSet(lambda name, failure: self._log.warning("query failed", problem=failure, task=name))
        self.forwarder = Forwarder(read_resolv_conf("/etc/resolv.conf", loopback=True), clock, ForwardOptions())

    async def serve(self) -> None:
        """Serves until cancelled.

        Raises: OSError when the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        place = (self._address, PORT)
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), local_addr=place)
        try:
            server = await asyncio.start_server(self._converse, *place)
            async with server:
                await server.serve_forever()
        finally:
            transport.close()
            await self.tasks.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                request = await reader.readexactly(length)
                reply = await self.forwarder.ask(request, tcp=True) or refusal(request)
                writer.write(_LENGTH.pack(len(reply)) + reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
