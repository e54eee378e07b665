"""Queries per second and CPU of the DNS server, by kind of question; load made by dnsperf.

The server runs in its own process on loopback with 10,150 Services, headless Services of 3, 10 and 50 endpoints. One
client thread, 100 queries outstanding; client and server share the machine's cores. Questions "not kept" go to a second
server that keeps 50 replies at most, so that none is there when its question comes again: each is computed, as after a
change of the zone. Beside it, in turns: the servers of :mod:`bench.dns_peers` with the same names, where they know the
kind of question, and "echo", a server on asyncio's own datagram transport that sends each question back as its answer.
External names are answered by one more process. The change of an endpoint is measured in the zone alone, in slices of
100; memory and times to load and to change: :mod:`bench.dns_size`; answers in the kernel: :mod:`bench.dns_kernel`.
Debian packages: `dnsperf` and those of the servers.

    python -m bench.dns [--quick]
"""

import asyncio
import multiprocessing
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.alone import run_alone
from bench.dns_peers import peers
from bench.dns_size import size_rows
from bench.machine import cpu_s
from bench.table import Row

from podwire.dns import replies, wire
from podwire.dns.config import DnsConfig
from podwire.dns.names import encode_name
from podwire.dns.server import DnsServer
from podwire.dns.zone import Zone, ZoneOptions
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec
from podwire.runtime.clock import SystemClock

_PORT = 15354
_ECHO_PORT = 15355
_UPSTREAM_PORT = 15357
_PEER_PORT = 15360
_FORGETFUL_PORT = 15359
_MANY = 10_000
_NOT_KEPT = ", not kept"
_AIMS = {
    "Service A (150 names)": 8.0,
    "Service AAAA, no data": 8.0,
    "headless 3 A": 8.0,
    "headless 10 A": 8.0,
    "headless 50 A (cut)": 8.0,
    "SRV": 8.0,
    "NXDOMAIN, search path": 8.0,
    "A of all 10,000 Services, not kept": 15.0,
    "PTR of all 10,000 Services, not kept": 15.0,
    "NXDOMAIN, search path, not kept": 15.0,
    "NXDOMAIN, all unique": 15.0,
    "external, cached": 15.0,
    "Service A over TCP": 20.0,
}
"""The most CPU time of a query, in microseconds."""
_SEARCH = ("default.svc.cluster.local", "svc.cluster.local", "cluster.local")


def fill(zone: Zone) -> None:
    """10,150 Services with an address and three headless ones."""
    ports = (ServicePort(name="http", port=80),)
    for name, address in addresses():
        meta = ObjectMeta(name=name, namespace="default")
        service = Service(metadata=meta, spec=ServiceSpec(cluster_ip=address, ports=ports))
        zone.index.set_service(f"default/{name}", service, 1)
    for size in (3, 10, 50):
        name = f"headless-{size}"
        meta = ObjectMeta(name=name, namespace="default")
        zone.index.set_service(f"default/{name}", Service(metadata=meta, spec=ServiceSpec(cluster_ip="None")), 1)
        labels = {"kubernetes.io/service-name": name}
        piece = EndpointSlice(
            metadata=ObjectMeta(name=name, namespace="default", labels=labels),
            endpoints=tuple(Endpoint(addresses=(f"10.244.{size}.{i}",)) for i in range(size)),
            ports=(EndpointPort(name="http", port=8080),),
        )
        zone.index.set_slice(f"default/{name}", piece, 1)
    zone.index.set_namespace("default", present=True)
    zone.index.mark_synced()


def addresses() -> list[tuple[str, str]]:
    """Name and address of the Services."""
    few = [(f"web-{index}", f"10.96.1.{index}") for index in range(150)]
    return few + [(f"svc-{index}", f"10.97.{index // 250}.{index % 250}") for index in range(_MANY)]


def questions() -> dict[str, list[str]]:
    """Lines for dnsperf by kind of question."""
    services = [f"web-{index}.default.svc.cluster.local A" for index in range(150)]
    walk = [
        f"www.example{index}.com.{search} {kind}" for index in range(20) for search in _SEARCH for kind in ("A", "AAAA")
    ]
    return {
        "Service A (150 names)": services,
        "Service AAAA, no data": [line.replace(" A", " AAAA") for line in services],
        "headless 3 A": ["headless-3.default.svc.cluster.local A"],
        "headless 10 A": ["headless-10.default.svc.cluster.local A"],
        "headless 50 A (cut)": ["headless-50.default.svc.cluster.local A"],
        "SRV": [f"_http._tcp.web-{index}.default.svc.cluster.local SRV" for index in range(150)],
        "NXDOMAIN, search path": walk,
        "NXDOMAIN, search path, not kept": walk,
        "A of all 10,000 Services, not kept": [f"svc-{index}.default.svc.cluster.local A" for index in range(_MANY)],
        "PTR of all 10,000 Services, not kept": [
            f"{index % 250}.{index // 250}.97.10.in-addr.arpa PTR" for index in range(_MANY)
        ],
        "external, cached": [f"www{index}.example.com A" for index in range(150)],
        "external, all unique": [f"www{index}.example.org A" for index in range(200_000)],
        "Service A over TCP": services,
        "NXDOMAIN, all unique": [f"missing-{index}.default.svc.cluster.local A" for index in range(200_000)],
    }


def serve(ready: Event, port: int = _PORT) -> None:
    """The server's process."""

    async def body() -> None:
        upstreams = (f"127.0.0.1:{_UPSTREAM_PORT}",)
        server = DnsServer(DnsConfig(listen=("127.0.0.1",), port=port, upstreams=upstreams), SystemClock())
        fill(server.zone)
        await server.open()
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(body())


def serve_computed(ready: Event) -> None:
    """The process of a server that keeps so few replies that none is there when its question comes again."""
    replies.CAPACITY = 50
    serve(ready, _FORGETFUL_PORT)


def serve_upstream(ready: Event) -> None:
    """The process that answers external names: one address with a TTL of a minute, for every question."""
    record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x07"
    with socket.socket(type=socket.SOCK_DGRAM) as link:
        link.bind(("127.0.0.1", _UPSTREAM_PORT))
        ready.set()
        while True:
            data, peer = link.recvfrom(4096)
            end = data.index(b"\0", 12) + 5
            link.sendto(data[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + data[12:end] + record, peer)


def change_endpoint(rounds: int) -> Row:
    """The CPU time of one changed endpoint of a headless Service of 10,000."""
    zone, name = Zone(ZoneOptions()), "many"
    meta = ObjectMeta(name=name, namespace="default")
    zone.index.set_service(f"default/{name}", Service(metadata=meta, spec=ServiceSpec(cluster_ip="None")), 1)
    labels = {"kubernetes.io/service-name": name}

    def change(number: int, last: int) -> float:
        endpoints = tuple(Endpoint(addresses=(f"10.{number}.0.{i if i < 99 else last}",)) for i in range(100))
        meta = ObjectMeta(name=f"{name}-{number}", namespace="default", labels=labels)
        changed = EndpointSlice(metadata=meta, endpoints=endpoints)
        begun = time.thread_time()
        zone.index.set_slice(f"default/{name}-{number}", changed, 1)
        zone.look_up(encode_name(f"{name}.default.svc.cluster.local"), wire.A)
        return (time.thread_time() - begun) * 1e3

    for number in range(100):
        change(number, 99)
    values = tuple(change(number % 100, 100 + number // 100) for number in range(rounds))
    return Row("one endpoint of a headless Service of 10,000: CPU, with the next answer", "ms", values, aim=0.3)


class Echo(asyncio.DatagramProtocol):
    """Answers a query with itself, marked as an answer."""

    transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self.transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Sets the bit that makes it an answer."""
        self.transport.sendto(data[:2] + bytes([data[2] | 0x80]) + data[3:], addr)


def serve_echo(ready: Event) -> None:
    """The process that does nothing but Python's share of a datagram."""

    async def body() -> None:
        await asyncio.get_running_loop().create_datagram_endpoint(Echo, ("127.0.0.1", _ECHO_PORT))
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(body())


def all_addresses() -> list[tuple[str, str]]:
    """The names of :func:`fill` with their addresses, headless Services too."""
    headless = [(f"headless-{size}", f"10.244.{size}.{i}") for size in (3, 10, 50) for i in range(size)]
    return addresses() + headless


def _load(path: Path, seconds: int, port: int, *, tcp: bool) -> tuple[float, int, int]:
    """Queries per second, queries answered, queries lost.

    Raises: RuntimeError with the last lines of dnsperf when it fails three times; single failures are printed.
    """
    arguments = ["dnsperf", "-s", "127.0.0.1", "-p", str(port), "-d", str(path), "-l", str(seconds), "-q", "100"]
    arguments += ["-m", "tcp"] if tcp else []
    for _ in range(3):
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if not done.returncode:
            break
        problem = f"dnsperf ended with status {done.returncode} at port {port}: {done.stderr[-500:]}"
        print(f"bench.dns: {problem}", file=sys.stderr)
    else:
        raise RuntimeError(problem)
    rate = re.search(r"Queries per second:\s+([\d.]+)", done.stdout)
    answered, lost = (re.search(rf"Queries {word}:\s+(\d+)", done.stdout) for word in ("completed", "lost"))
    return float(rate[1]) if rate else 0.0, int(answered[1]) if answered else 0, int(lost[1]) if lost else 0


class Kind:
    """The measurements of one kind of question."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rates: dict[str, list[float]] = {}
        self.cpu_us: dict[str, list[float]] = {}
        self.lost = 0

    def measure(self, path: Path, seconds: int, servers: dict[str, tuple[int, int]]) -> None:
        """One run, the servers (port and process by name) in turns."""
        for name, (port, pid) in servers.items():
            before = cpu_s(pid)
            rate, answered, lost = _load(path, seconds, port, tcp="TCP" in self.name)
            self.rates.setdefault(name, []).append(rate)
            if answered:
                self.cpu_us.setdefault(name, []).append((cpu_s(pid) - before) / answered * 1e6)
            self.lost += lost if name == "podwire" else 0

    def rows(self) -> list[Row]:
        """Its rows."""
        rate_peers, cpu_peers = (
            tuple((name, tuple(values)) for name, values in table.items() if name != "podwire")
            for table in (self.rates, self.cpu_us)
        )
        return [
            Row(self.name, "/s", tuple(self.rates["podwire"]), rate_peers),
            Row(
                f"{self.name}: server CPU a query", "us", tuple(self.cpu_us["podwire"]), cpu_peers, _AIMS.get(self.name)
            ),
        ]


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one second each.

    Raises: SystemExit when dnsperf is not installed.
    """
    if shutil.which("dnsperf") is None:
        raise SystemExit("bench.dns: dnsperf is not installed (Debian package dnsperf)")
    spawn = multiprocessing.get_context("spawn")
    processes = []
    for target in (serve_upstream, serve, serve_echo, serve_computed):
        ready = spawn.Event()
        processes.append(spawn.Process(target=target, args=(ready,), daemon=True))
        processes[-1].start()
        ready.wait(60)
    rows: list[Row] = [change_endpoint(100 if quick else 1000), *size_rows()]
    lost = 0
    own = {"podwire": (_PORT, processes[1].pid or 0)}
    echo = {"echo": (_ECHO_PORT, processes[2].pid or 0)}
    computed = {"podwire": (_FORGETFUL_PORT, processes[3].pid or 0)}
    with (
        tempfile.TemporaryDirectory() as folder,
        peers(Path(folder), _PEER_PORT, _UPSTREAM_PORT, all_addresses()) as others,
    ):
        try:
            for name, lines in questions().items():
                kind, path = Kind(name), Path(folder) / "questions"
                path.write_text("\n".join(lines) + "\n")
                servers = (computed if name.endswith(_NOT_KEPT) else own) | {
                    peer.name: (peer.port, peer.process.pid)
                    for peer in others
                    if not any(word in name for word in peer.unknown)
                }
                servers |= {} if "TCP" in name else echo
                for _ in range(1 if quick else 3):
                    kind.measure(path, 1 if quick else 2, servers)
                rows += kind.rows()
                lost += kind.lost
        finally:
            for process in processes:
                process.kill()
    return [*rows, Row("queries lost, all kinds", "", (float(lost),))]


if __name__ == "__main__":
    run_alone("dns", __doc__, run)
