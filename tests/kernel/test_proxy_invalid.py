"""A server's segment outside of the TCP window does not end a translated connection."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.cases.service_table import ADDRESSES
from tests.kernel.checksums import checksum
from tests.kernel.kernel_dataplanes import every_plane, opened
from tests.kernel.service_namespaces import World, by_name, inside, path
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import netns
from podwire.proxy.dataplane import INVALID_DROPPED, Counting
from podwire.proxy.servicemap import ResolvedEndpoint

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

SERVER = "one"
BEYOND = 0x40000000
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ = 19, 20, 21
"""linux/tcp.h"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        inside("node", "sysctl", "-eqw", "net.netfilter.nf_conntrack_tcp_be_liberal=0")
        yield created


@pytest.fixture(params=every_plane())
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[Any]:
    service_owner = ServiceOwner(opened(request.param))
    yield service_owner
    service_owner.remove()
    service_owner.close()


def numbers(peer: socket.socket) -> tuple[int, int]:
    """The sequence numbers that a socket sends next, and expects next (which a reset has to carry to be believed)."""
    peer.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    result = []
    for queue in (2, 1):
        peer.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
        result.append(peer.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ) & 0xFFFFFFFF)
    peer.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, -1)
    return result[0], result[1]


def out_of_window(port: int, client: tuple[str, int], sent: int, received: int) -> None:
    """Sends a segment as the server, far beyond what it ``sent``; a reset in answer carries ``received``."""
    source, target = socket.inet_aton(ADDRESSES[SERVER][0]), socket.inet_aton(client[0])
    payload = b"lost"
    head = struct.pack("!HHIIBBHHH", port, client[1], sent + BEYOND & 0xFFFFFFFF, received, 5 << 4, 0x18, 1024, 0, 0)
    pseudo = source + target + struct.pack("!BBH", 0, 6, len(head) + len(payload))
    head = head[:16] + struct.pack("!H", checksum(pseudo + head + payload)) + head[18:]
    with netns.inside(path(SERVER)), socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.sendto(head + payload, (client[0], 0))


@pytest.mark.parametrize(
    ("source", "address", "port"),
    [("far", "10.96.0.10", 80), ("node", "10.96.0.10", 80), ("outside", "192.168.99.1", 30080)],
)
def test_a_lost_segment_of_the_server_does_not_reset(
    world: World, plane: Any, source: str, address: str, port: int
) -> None:
    resolved = by_name("session affinity").resolved()
    (web,) = resolved["default/web"]
    with netns.inside(path(SERVER)), socket.create_server((ADDRESSES[SERVER][0], 0)) as listener:
        served = ResolvedEndpoint(ADDRESSES[SERVER][0], listener.getsockname()[1], True)
        plane.load({"default/web": (msgspec.structs.replace(web, cluster_endpoints=(served,), affinity_s=0),)})
        with netns.inside(path(source)):
            client = socket.create_connection((address, port), 20)
        peer, observed = listener.accept()
        with client, peer:
            at = numbers(peer)
            for _ in range(3):
                out_of_window(served.port, observed, *at)
                time.sleep(0.05)
            for sender, receiver in ((peer, client), (client, peer)):
                receiver.settimeout(20)
                sender.sendall(b"still")
                assert receiver.recv(5) == b"still"


def test_drops_are_counted(world: World, plane: Any) -> None:
    (web,) = by_name("ClusterIP").resolved()["default/web"]
    with netns.inside(path(SERVER)), socket.create_server((ADDRESSES[SERVER][0], 0)) as listener:
        served = ResolvedEndpoint(ADDRESSES[SERVER][0], listener.getsockname()[1], True)
        plane.load({"default/web": (msgspec.structs.replace(web, cluster_endpoints=(served,)),)})
        before = plane.counts().packets.get(INVALID_DROPPED) if isinstance(plane, Counting) else None
        if before is None:
            pytest.skip(f"{plane.name} counts nothing, or has no rule that drops")
        for source in ("far", "node"):
            with netns.inside(path(source)):
                client = socket.create_connection(("10.96.0.10", 80), 20)
            peer, observed = listener.accept()
            with client, peer:
                out_of_window(served.port, observed, *numbers(peer))
                before += 1
                deadline = time.monotonic() + 10
                while plane.counts().packets[INVALID_DROPPED] < before:
                    assert time.monotonic() < deadline, "it is not counted"
    assert plane.counts().packets[INVALID_DROPPED] == before
    assert not any(plane.heal())
