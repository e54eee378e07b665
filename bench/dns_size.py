"""Memory of the DNS server with many objects, the time to load them, and how soon an answer follows a change.

A process of its own loads 10,000 Services with one slice each, and 100,000 endpoints in 1,000 slices of 100, as the
informers hand them over (reduced objects, recorded in the snapshot), and answers on loopback. Memory is that of the
process, of its keeper (pages of both count once) and of the snapshot.
"""

import asyncio
import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path

from bench.machine import resident_mb
from bench.table import Row

from podwire.dns import wire
from podwire.dns.config import DnsConfig
from podwire.dns.names import encode_name
from podwire.dns.server import DnsServer
from podwire.dns.snapshot import Snapshot
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec
from podwire.runtime.clock import SystemClock
from podwire.runtime.keeper import keep_worker

_PORT = 15370
_CHANGES = 200
_HTTP = (ServicePort(name="http", port=80),)
_PORTS = (EndpointPort(name="http", port=8080),)


def _service(number: int) -> Service:
    meta = ObjectMeta(name=f"svc-{number}", namespace="default")
    return Service(metadata=meta, spec=ServiceSpec(cluster_ip=f"10.97.{number // 250}.{number % 250}", ports=_HTTP))


def _slice(owner: str, number: int, count: int) -> EndpointSlice:
    labels = {"kubernetes.io/service-name": owner}
    first = f"10.{128 + number // 250}.{number % 250}"
    return EndpointSlice(
        metadata=ObjectMeta(name=f"{owner}-{number}", namespace="default", labels=labels),
        address_type="IPv4",
        endpoints=tuple(Endpoint(addresses=(f"{first}.{i}",)) for i in range(count)),
        ports=_PORTS,
    )


def load(server: DnsServer, snapshot: Snapshot, endpoints: int) -> float:
    """Loads the objects; the seconds that this took."""
    begun = time.perf_counter()
    index = server.zone.index
    for number in range(10_000):
        service, piece = _service(number), _slice(f"svc-{number}", number, 1)
        for plural, key, item in (("services", service.metadata.name, service), ("endpointslices", piece.metadata.name,
                                  piece)):  # fmt: skip
            snapshot.record(plural, f"default/{key}", item)
        index.set_service(f"default/{service.metadata.name}", service, 1)
        index.set_slice(f"default/{piece.metadata.name}", piece, 1)
    for number in range(endpoints // 100):
        piece = _slice(f"svc-{number % 10}", 20_000 + number, 100)
        snapshot.record("endpointslices", f"default/{piece.metadata.name}", piece)
        index.set_slice(f"default/{piece.metadata.name}", piece, 1)
    index.set_namespace("default", present=True)
    index.mark_synced()
    return time.perf_counter() - begun


def _serve(link: Connection, endpoints: int) -> None:
    snapshot = Snapshot()
    keep_worker()

    async def body() -> None:
        server = DnsServer(DnsConfig(listen=("127.0.0.1",), port=_PORT), SystemClock())
        seconds = load(server, snapshot, endpoints)
        await server.open()
        link.send((seconds, os.getpid()))
        for number in range(_CHANGES):
            await asyncio.to_thread(link.recv)
            changed = Service(
                metadata=ObjectMeta(name="svc-1", namespace="default"),
                spec=ServiceSpec(cluster_ip=f"10.98.0.{number}", ports=_HTTP),
            )
            link.send(time.monotonic())
            snapshot.record("services", "default/svc-1", changed)
            server.zone.index.set_service("default/svc-1", changed, 2)
            server.forget()
        await asyncio.to_thread(link.recv)
        await server.close()

    asyncio.run(body())


def _until_answered(link: socket.socket, address: bytes) -> float:
    """When the first reply with an address arrived, by the monotonic clock."""
    request = wire.encode(wire.DnsMessage(7, wire.RD, encode_name("svc-1.default.svc.cluster.local"), wire.A))
    while True:
        link.send(request)
        if link.recv(512).endswith(address):
            return time.monotonic()


def snapshot_mb(pid: int) -> float:
    """The size of the snapshot, whose pages belong to no process, in MiB."""
    files = (
        file for file in Path(f"/proc/{pid}/fd").iterdir() if str(file.readlink()).startswith("/memfd:podwire-dns")
    )
    return sum(file.stat().st_size for file in files) / (1 << 20)


def measure(endpoints: int) -> tuple[float, float, list[float]]:
    """Seconds to load, memory in MiB, and the times from a change to its answer in ms."""
    spawn = multiprocessing.get_context("spawn")
    own, other = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(other, endpoints), daemon=True)
    process.start()
    seconds, pid = own.recv()
    memory = resident_mb(pid)[1] + resident_mb(process.pid or 0)[1] + snapshot_mb(pid)
    times = []
    with socket.socket(type=socket.SOCK_DGRAM) as link:
        link.settimeout(5)
        link.connect(("127.0.0.1", _PORT))
        for number in range(_CHANGES):
            own.send(number)
            changed_s = own.recv()
            times.append((_until_answered(link, bytes([10, 98, 0, number])) - changed_s) * 1e3)
    own.send(None)
    process.join(10)
    process.kill()
    return seconds, memory, times


def size_rows() -> list[Row]:
    """The rows."""
    rows = []
    for endpoints, what in ((0, "10,000 Services"), (100_000, "10,000 Services and 100,000 endpoints")):
        seconds, memory, times = measure(endpoints)
        rows += [
            Row(f"memory with {what}", "MB", (memory,), aim=100.0 if not endpoints else None),
            Row(f"time to load {what}", "s", (seconds,)),
            Row(f"change of a Service to its answer, {what}", "ms", tuple(times), aim=5.0),
        ]
    return rows


if __name__ == "__main__":
    for row in size_rows():
        print(row)
