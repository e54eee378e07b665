"""Hosts outside of a test's cluster: one namespace on the fabric that gets every address that a test names.

The machine itself cannot be that host: it has listeners of its own, and a policy for internet addresses can only be
tested with an internet address. Such an address is assigned in a namespace to which only the cluster's nodes have a
route. The namespace is deleted with the cluster.

Each address and port to be reached has a listener that answers as the stand-in server does: one line of JSON with the
client's address for each line or datagram.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec

from podwire.kernel import netns, network
from podwire.kernel.netlink import Netlink
from podwire.local.fabric import build
from podwire.local.fabric.plan import ROUTER, SWITCH
from podwire.local.topology import Topology
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import Address, Route

NAMESPACE = "outside"
PROTOCOL = 115
"""Route protocol number of the routes to hosts outside."""
_NUMBER = 250
"""The host number of the namespace's address on the first segment."""

End = tuple[str, int, str]
"""Address, port, protocol."""


_OWNER = OwnerMark(route_protocol=PROTOCOL, alias_prefix="podwire/outside")


class Outside:
    """The outside of one cluster; it is created when it is first needed."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._namespace = Path(topology.netns(NAMESPACE))
        self._addresses: list[str] = []

    def add(self, address: str) -> None:
        """Adds an address, and a route to it on the nodes.

        Raises: KernelError.
        """
        if address in self._addresses:
            return
        if not netns.exists(self._namespace):
            netns.create(self._namespace)
        self._addresses.append(address)
        _apply(self._namespace, self._own())
        bridge = self._topology.segment(0).bridge
        _apply(Path(self._topology.netns(SWITCH)), NetworkState(links=(Link(name=NAMESPACE, master=bridge),)))
        for name in self._neighbours():
            _apply(Path(self._topology.netns(name)), NetworkState(routes=tuple(map(self._route, self._addresses))))

    def _neighbours(self) -> Iterable[str]:
        """The nodes on the first segment, and the router, which routes for the other segments."""
        if self._topology.segment_count > 1:
            yield ROUTER
        nodes = (self._topology.node(int(name.removeprefix("node-"))) for name in build.node_names(self._topology))
        yield from (node.name for node in nodes if node.segment.number == 0)

    def _route(self, address: str) -> Route:
        segment, v6 = self._topology.segment(0), ":" in address
        via = segment.network6[_NUMBER] if v6 else segment.network[_NUMBER]
        return Route(dst=f"{address}/{128 if v6 else 32}", via=str(via), link="eth0", proto=PROTOCOL)

    def _own(self) -> NetworkState:
        topology, segment = self._topology, self._topology.segment(0)
        first = topology.node(1)
        link = Link(name="eth0", kind="veth", peer=NAMESPACE, peer_netns=str(topology.netns(SWITCH)))
        own = (Address(link="lo", cidr=self._route(address).dst) for address in self._addresses)
        other_segments = topology.segments[1:]
        return NetworkState(
            links=(Link(name="lo"), link),
            addresses=(
                Address(link="eth0", cidr=f"{segment.network[_NUMBER]}/24"),
                Address(link="eth0", cidr=f"{segment.network6[_NUMBER]}/64"),
                *own,
            ),
            routes=(
                # Every node has routes to all pods.
                Route(dst="default", via=str(first.address), link="eth0", proto=PROTOCOL),
                Route(dst="::/0", via=str(first.address6), link="eth0", proto=PROTOCOL),
                *(
                    Route(dst=str(s.network), via=str(segment.router), link="eth0", proto=PROTOCOL)
                    for s in other_segments
                ),
                *(
                    Route(dst=str(s.network6), via=str(segment.router6), link="eth0", proto=PROTOCOL)
                    for s in other_segments
                ),
            ),
        )

    @asynccontextmanager
    async def answering(self, ends: Iterable[End]) -> AsyncIterator[None]:
        """Answers on each address and port until the end of the block.

        Raises: KernelError, OSError.
        """
        async with AsyncExitStack() as stack:
            for address, port, protocol in dict.fromkeys(ends):
                self.add(address)
                await stack.enter_async_context(self._answering(address, port, protocol))
            yield

    @asynccontextmanager
    async def _answering(self, address: str, port: int, protocol: str) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        with netns.inside(self._namespace):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_DGRAM if protocol == "UDP" else socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((address, port))
        if protocol == "UDP":
            transport, _ = await loop.create_datagram_endpoint(_OutsideDatagrams, sock=sock)
            try:
                yield
            finally:
                transport.close()
        else:
            async with await asyncio.start_server(_answer, sock=sock):
                yield


def _apply(namespace: Path, state: NetworkState) -> None:
    with Netlink(namespace) as sock:
        network.apply(sock, state, _OWNER).check()


def _line(client: str) -> bytes:
    return msgspec.json.encode({"client": client}) + b"\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readline()
        writer.write(_line(str(writer.get_extra_info("peername")[0])))
        await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


class _OutsideDatagrams(asyncio.DatagramProtocol):
    """Answers each datagram."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(_line(addr[0]), addr)
