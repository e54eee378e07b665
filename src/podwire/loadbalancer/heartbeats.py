"""Messages between agents that say whether each one has contact to the API.

An agent without contact sends one datagram to each other agent every :data:`INTERVAL_S`: the messages tell an agent
that no other agent can take over its addresses (``liveness``). Silence counts as contact, so an agent that has contact
says so only for :data:`_TAKEN_BACK_S` after it had none. A message counts if it comes from an address of the Node that
it names. Whoever can forge messages can keep a node that is cut off from the API, and from nothing else, from giving up
its addresses. Cost: nothing while the API answers, then 4 datagrams of 60 bytes a second for each other node.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from podwire.model.node import Node
from podwire.observe.log import Log
from podwire.runtime.clock import Clock

INTERVAL_S = 0.25
PORT = 9447
_TAKEN_BACK_S = 3.0
"""How long an agent says that it has contact again; longer than a message counts (``liveness.HEARD_S``)."""


class Heartbeat(msgspec.Struct, frozen=True):
    """The message of one agent."""

    node: str
    contact: bool


class Heartbeats:
    """Sends the messages of this node, and remembers those of others."""

    def __init__(self, node: str, nodes: Callable[[], Mapping[str, Node]], clock: Clock, port: int = PORT) -> None:
        self._node = node
        self._nodes = nodes
        self._clock = clock
        self._port = port
        self._log = Log("loadbalancer")
        self.messages: dict[str, tuple[float, bool]] = {}
        """When the last message of each node came, and whether it had contact."""

    async def run(
        self, contact: Callable[[], bool], peers: Callable[[], frozenset[str]], interval_s: Callable[[], float]
    ) -> None:
        """Sends and receives until cancelled; ``peers`` are the nodes with such an agent.

        ``interval_s`` returns the pause after each look at the contact: :data:`INTERVAL_S`, or longer while there is
        nothing to tell.
        """
        loop = asyncio.get_running_loop()
        transports: list[asyncio.DatagramTransport] = []
        try:
            for address in ("0.0.0.0", "::"):
                try:
                    transport, _ = await loop.create_datagram_endpoint(
                        lambda: _Receiver(self.received), local_addr=(address, self._port)
                    )
                    transports.append(transport)
                except OSError as failure:
                    self._log.debug("cannot exchange messages in one address family", address=address, problem=failure)
            since = float("-inf")
            while True:
                has_contact, now = contact(), self._clock.monotonic()
                since = since if has_contact else now
                if now - since <= _TAKEN_BACK_S:
                    self._send(transports, has_contact, peers())
                await self._clock.sleep(interval_s())
        finally:
            for transport in transports:
                transport.close()

    def _send(self, transports: list[asyncio.DatagramTransport], contact: bool, peers: frozenset[str]) -> None:
        data = msgspec.json.encode(Heartbeat(self._node, contact))
        by_family = {":" in transport.get_extra_info("sockname")[0]: transport for transport in transports}
        for name in peers - {self._node}:
            node = self._nodes().get(name)
            address = next(iter(node.internal_ips), "") if node is not None else ""
            transport = by_family.get(":" in address)
            if address and transport is not None:
                transport.sendto(data, (address, self._port))

    def received(self, data: bytes, source: str) -> None:
        """Takes over a message from an address."""
        try:
            message = msgspec.json.decode(data, type=Heartbeat)
        except msgspec.MsgspecError:
            return
        node = self._nodes().get(message.node)
        if node is not None and source in node.addresses:
            self.messages[message.node] = (self._clock.monotonic(), message.contact)


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, str], None]) -> None:
        self._received = received

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._received(data, addr[0])
