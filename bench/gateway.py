"""The gateway's engine (Envoy, fed by podwire) beside haproxy and nginx with the same hosts and paths.

All three forward on loopback from one worker to one nginx that answers 100 bytes; wrk asks over 64 connections that
stay open, in turns, and none writes an access log. CPU is that of the proxy alone, for each request. At a fixed load
each connection pauses for a random time before each request, so that all together send 2,000 a second. A change is
measured until the first answer shows it: the endpoint of one Service, and one more host, with few hosts and with 1,000
(nginx reloads for both, haproxy for hosts). An Ingress and an HTTPRoute with one more host are measured from their
objects on, through the API and the controllers. Under load, endpoints, hosts, certificates (over TLS) or listeners
change 100 times, and haproxy and nginx reload 100 times; answers other than 200 and broken connections are failed
requests. Hosts with a certificate are measured in an engine of their own. In a local cluster the pods of the
gateway with their engines are replaced, and its gateways killed.

    sudo python -m bench.gateway [--quick]
"""

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from bench.alone import run_alone
from bench.gateway_objects import new_objects
from bench.gateway_peers import HOST, Peer, backend, milliseconds, names, peers
from bench.gateway_replacement import replacements
from bench.machine import cpu_s, resident_mb
from bench.table import Row
from bench.wrk import Client, Load, failed_row, pauses_of
from tests.fakes.ports import free_port
from tests.kernel.gateway_engine import SETTINGS, Engine, certificate_for

from podwire.gateway.routes import (
    Certificate,
    EntryBackend,
    EntryEndpoint,
    EntryListener,
    EntryRoute,
    Forward,
    GatewayEntry,
    RequestMatch,
    Retry,
    RouteTable,
    TlsServer,
    VirtualHost,
    WeightedBackend,
)

CHANGES = 100
_FIXED = 2000
"""Requests a second of all connections together, at a fixed load."""
_CONNECTIONS = 64
_SPEEDS = {
    "requests": "/s",
    "CPU for a request": "us",
    "p99 at full load": "ms",
    f"requests at a fixed load of {_FIXED:,}/s": "/s",
    f"p99 at a fixed load of {_FIXED:,}/s": "ms",
}
Change = Callable[[int], None]


def entry(port: int, endpoints: tuple[EntryEndpoint, ...], hosts: int = 0) -> GatewayEntry:
    """The host that is asked, and more with a backend each."""
    backends = {
        f"bench/{name}:80": EntryBackend(key=f"bench/{name}:80", endpoints=endpoints if name == HOST else endpoints[:1])
        for name in names(hosts)
    }
    table = RouteTable(name="web", hosts=tuple(_host(name) for name in names(hosts)))
    listener = EntryListener(name="web", port=port, protocol="HTTP", table="web")
    return GatewayEntry(listeners=(listener,), tables={"web": table}, backends=backends)


def secure_entry(
    ports: tuple[int, ...], endpoints: tuple[EntryEndpoint, ...], certificate: Certificate
) -> GatewayEntry:
    """The same host over TLS with a certificate, at the first port; the others are plain."""
    plain = entry(ports[0], endpoints)
    server = TlsServer(names=(), certificates=(certificate.name,), table="web")
    secure = EntryListener(name="secure", port=ports[0], protocol="HTTPS", servers=(server,))
    others = tuple(EntryListener(name=f"web-{port}", port=port, protocol="HTTP", table="web") for port in ports[1:])
    return msgspec.structs.replace(plain, listeners=(secure, *others), certificates={certificate.name: certificate})


def _host(name: str) -> VirtualHost:
    forward = Forward(backends=(WeightedBackend(key=f"bench/{name}:80"),), timeout=60, retry=Retry(attempts=2))
    return VirtualHost(hosts=(name,), routes=(EntryRoute(source=name, match=RequestMatch(), action=forward),))


def asking(port: int, scheme: str = "http", connections: int = _CONNECTIONS, pauses: Path | None = None) -> Client:
    """A client of a proxy."""
    return Client(f"{scheme}://127.0.0.1:{port}/", HOST, connections, pauses)


class Beside:
    """The engine on one port, its peers, and two endpoints that all may use."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        first, second = free_port(), free_port()
        self.ports = (first, second)
        stack.enter_context(backend(folder, self.ports))
        self.endpoints = tuple(EntryEndpoint(address="127.0.0.1", port=number) for number in self.ports)
        self.engine = Engine(folder, msgspec.structs.replace(SETTINGS, access_log=""))
        stack.callback(self.engine.close)
        self.port = free_port()
        self.engine.serve(entry(self.port, self.endpoints[:1]))
        self.peers: list[Peer] = stack.enter_context(peers(folder, first))

    def row(self, what: str, unit: str, values: dict[str, list[float]]) -> Row:
        """A row with the values of the engine, and those of its peers beside them."""
        beside = tuple((peer.name, tuple(values[peer.name])) for peer in self.peers if peer.name in values)
        return Row(what, unit, tuple(values["envoy"]), beside)

    def memory(self, hosts: int) -> Row:
        """The memory of the processes that serve."""
        values = {"envoy": [resident_mb(self.engine.pid)[0]]}
        values |= {peer.name: [resident_mb(peer.proxy.worker)[0]] for peer in self.peers}
        return self.row(f"memory of the proxy, {hosts} hosts", "MB", values)

    def speed(self, runs: int, seconds: int, pauses: Path) -> list[Row]:
        """Rate, CPU and latency of each proxy, in turns."""
        proxies = {"envoy": (self.port, self.engine.pid)}
        proxies |= {peer.name: (peer.proxy.port, peer.proxy.worker) for peer in self.peers}
        values: dict[str, dict[str, list[float]]] = {what: {name: [] for name in proxies} for what in _SPEEDS}
        for _ in range(runs):
            for name, (port, pid) in proxies.items():
                before = cpu_s(pid)
                load = asking(port).ask(seconds)
                used = (cpu_s(pid) - before) / load.requests * 1e6
                fixed = asking(port, pauses=pauses).ask(seconds)
                numbers = (load.rate, used, load.p99_ms, fixed.rate, fixed.p99_ms)
                for what, number in zip(_SPEEDS, numbers, strict=True):
                    values[what][name].append(number)
        return [self.row(what, unit, values[what]) for what, unit in _SPEEDS.items()]

    def effects(self, hosts: int, runs: int) -> list[Row]:
        """From a change to the first answer that shows it, with so many hosts."""
        engine, port = self.engine, self.port
        engine.serve(entry(port, self.endpoints[:1], hosts - 1))
        for peer in self.peers:
            peer.serve(hosts - 1, self.ports[0])
        shown: dict[str, list[float]] = {name: [] for name in ("envoy", *(peer.name for peer in self.peers))}
        added: dict[str, list[float]] = {name: [] for name in shown}
        for number in range(1, runs + 1):
            used, more = number % 2, hosts - 1 + number
            wanted, new = self.ports[used], names(more)[-1]
            ends = self.endpoints[used : used + 1]

            def publish(ends: tuple[EntryEndpoint, ...] = ends) -> None:
                engine.serve_endpoints(entry(port, ends).backends)

            def add(ends: tuple[EntryEndpoint, ...] = ends, more: int = more) -> None:
                engine.serve(entry(port, ends, more))

            shown["envoy"].append(milliseconds(publish, port, HOST, wanted))
            added["envoy"].append(milliseconds(add, port, new, wanted))
            for peer in self.peers:
                peer_port = peer.proxy.port
                change = lambda peer=peer, wanted=wanted: peer.set_endpoint(wanted)  # noqa: E731
                shown[peer.name].append(milliseconds(change, peer_port, HOST, wanted))
                serve = lambda peer=peer, more=more, wanted=wanted: peer.serve(more, wanted)  # noqa: E731
                added[peer.name].append(milliseconds(serve, peer_port, new, wanted))
        return [
            self.row(f"a new endpoint to its first answer, {hosts} hosts", "ms", shown),
            self.row(f"a new host to its first answer, {hosts} hosts", "ms", added),
            self.memory(hosts),
        ]

    def losses(self, seconds: int) -> list[Row]:
        """Failed requests while the configuration changes."""
        engine, ends = self.engine, self.endpoints
        certificates = [msgspec.structs.replace(certificate_for("web", (HOST,)), name="web") for _ in range(2)]
        secure, more = free_port(), free_port()
        plain, over_tls = (self.port, "http"), (secure, "https")
        changes: tuple[tuple[str, Change, tuple[int, str]], ...] = (
            ("endpoints", lambda n: engine.serve(entry(self.port, ends[n % 2 : n % 2 + 1])), plain),
            ("hosts", lambda n: engine.serve(entry(self.port, ends[:1], n % 10)), plain),
            ("certificates", lambda n: engine.serve(secure_entry((secure,), ends[:1], certificates[n % 2])), over_tls),
            (
                "listeners",
                lambda n: engine.serve(secure_entry((secure, more)[: 1 + n % 2], ends[:1], certificates[0])),
                over_tls,
            ),
        )
        rows = []
        for what, change, (port, scheme) in changes:
            change(0)
            load = _failures(port, change, seconds, scheme)
            rows.append(failed_row(f"{what} change {CHANGES} times", load, aim=0))
        for peer in self.peers:
            peer.serve(0, self.ports[0])
            load = _failures(peer.proxy.port, lambda _number, peer=peer: peer.proxy.reload(), seconds)  # type: ignore[misc]
            rows.append(failed_row(f"{peer.name} reloads {CHANGES} times", load))
        return rows


def _failures(port: int, change: Change, seconds: int, scheme: str = "http") -> Load:
    """What becomes of requests while changes are made, evenly over so many seconds."""

    def work() -> None:
        for number in range(CHANGES):
            begun = time.monotonic()
            change(number)
            time.sleep(max(0.0, seconds / CHANGES - (time.monotonic() - begun)))

    return asking(port, scheme, 32).ask_during(work)


def certificates(hosts: int, runs: int) -> list[Row]:
    """Hosts with a certificate in an engine of their own, where each has its own chain of filters.

    What one adds to the memory of the engine, and how long one more takes until it answers.
    """
    with TemporaryDirectory(prefix="gateway") as folder, ExitStack() as stack:
        engine = Engine(Path(folder), msgspec.structs.replace(SETTINGS, access_log=""))
        stack.callback(engine.close)
        port, used = free_port(), []
        certificate = msgspec.structs.replace(certificate_for("web", (HOST,)), name="web")
        plain = secure_entry((port,), (), certificate)

        def serve(count: int) -> None:
            servers = tuple(TlsServer(names=(name,), certificates=("web",), table="web") for name in names(count - 1))
            listener = EntryListener(name="secure", port=port, protocol="HTTPS", servers=servers)
            engine.serve(msgspec.structs.replace(plain, listeners=(listener,)))

        for count in (1, hosts + 1):
            serve(count)
            time.sleep(2)  # The engine frees what was before.
            used.append(resident_mb(engine.pid)[0])
        added = (used[1] - used[0]) / hosts * 1024
        times, spent = [], []
        for number in range(runs):
            begun, before = time.perf_counter(), cpu_s(engine.pid)
            serve(hosts + 2 + number)
            _handshake(port, names(hosts + 1 + number)[-1])
            times.append((time.perf_counter() - begun) * 1000)
            time.sleep(1)
            spent.append((cpu_s(engine.pid) - before) * 1000)
    return [
        Row(f"memory for a host with a certificate, {hosts} hosts", "KB", (added,)),
        Row(f"a new host with a certificate to its first handshake, {hosts} hosts", "ms", tuple(times)),
        Row(f"CPU of the engine for a new host with a certificate, {hosts} hosts", "ms", tuple(spent)),
    ]


def _handshake(port: int, name: str) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        context.wrap_socket(connection, server_hostname=name).close()


def run(quick: bool) -> list[Row]:
    """All measurements."""
    runs, seconds, changes = (2, 2, 4) if quick else (5, 4, 20)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="gateway")))
        beside = Beside(stack, folder)
        rows = beside.speed(runs, seconds, pauses_of(folder, _FIXED, _CONNECTIONS))
        for hosts in (10, 100) if quick else (10, 1000):
            rows += beside.effects(hosts, changes)
            times = new_objects(beside.engine, beside.ports[0], hosts, changes)
            rows += [
                Row(f"a new {kind} to its first answer, {hosts} hosts", "ms", tuple(t)) for kind, t in times.items()
            ]
        rows += beside.losses(5 if quick else 20)
    rows += certificates(100 if quick else 1000, 2 if quick else 10)
    with TemporaryDirectory(prefix="gateway") as name:
        return rows + replacements(Path(name), *((1, 3) if quick else (5, 20)))


if __name__ == "__main__":
    run_alone("gateway", __doc__, run)
