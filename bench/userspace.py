"""The relay of the data plane ``userspace``: bytes, messages and connections, beside the kernel's own paths.

A client, a node that forwards, and a server, each in a network namespace of its own, joined by veth pairs. In turns the
same is done through a Service in mode userspace, through the same Service in mode nftables, and to the server itself
past the rules. Bulk goes for a second at a time from the client to the server, until the server has read all; a round
trip is 100 bytes there and back on one connection; a connection is made, answered with a byte and closed, one after the
other in one process. CPU and memory are those of the relay's two processes; shared memory counts in parts (PSS).

    sudo python -m bench.userspace [--quick]
"""

import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from bench.alone import run_alone
from bench.machine import cpu_s, resident_mb
from bench.service_packets import ip
from bench.services import NODE
from bench.table import Row

from podwire.kernel import netns
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.dataplanes.userspace.dataplane import UserspaceDataPlane
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort

SERVER = "10.0.2.2"
VIP = "172.16.0.10"
STREAM, BRIEF, ECHO = 8080, 8081, 8082
"""What the server does with a connection: read or echo as its first byte says, a byte and the end; with a datagram."""
PORTS = {"tcp": (STREAM, BRIEF), "udp": (ECHO,)}
CONNECTIONS = 1000
BLOCK = bytes(1 << 20)
Target = tuple[str, int]


def services() -> dict[str, tuple[ResolvedPort, ...]]:
    """One Service with every port of the server."""
    ports = tuple(
        ResolvedPort(
            service="bench/server",
            port_name=f"{protocol}-{number}",
            protocol=protocol,
            family="ip",
            port=number,
            cluster_ip=VIP,
            cluster_endpoints=(ResolvedEndpoint(SERVER, number),),
            has_endpoints=True,
            serving=frozenset((f"{SERVER}:{number}",)),
        )
        for protocol, numbers in PORTS.items()
        for number in numbers
    )
    return {"bench/server": ports}


def serve() -> None:
    """The server: a thread for each connection."""
    streams, briefs = (socket.create_server(("", port), backlog=4096) for port in (STREAM, BRIEF))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("", ECHO))

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            kind, room = connection.recv(1), bytearray(1 << 18)
            while count := connection.recv_into(room):
                if kind == b"e":
                    connection.sendall(room[:count])
            connection.sendall(b"k")

    def hasten() -> None:
        while True:
            connection, _ = briefs.accept()
            connection.send(b"k")
            connection.close()

    def echo() -> None:
        while True:
            datagrams.sendto(*datagrams.recvfrom(2048))

    for work in (hasten, echo):
        threading.Thread(target=work, daemon=True).start()
    while True:
        threading.Thread(target=answer, args=(streams.accept()[0],), daemon=True).start()


class Network:
    """Client, node and server."""

    def __init__(self) -> None:
        self.client, self.node, self.server = (
            Path(f"/run/netns/pwbench-{os.getpid()}-{name}") for name in ("client", "node", "server")
        )
        for netns_path in (self.client, self.node, self.server):
            netns.create(netns_path)
        with netns.inside(self.node):
            ip("link set lo up")
            ip(f"address add {NODE.addresses[0]}/32 dev lo")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number, netns_path in ((1, self.client), (2, self.server)):
            with netns.inside(self.node):
                ip(f"link add v{number} type veth peer name eth0 netns {netns_path.name}")
                ip(f"address add 10.0.{number}.1/24 dev v{number}")
                ip(f"link set v{number} up")
            with netns.inside(netns_path):
                ip("link set lo up")
                ip(f"address add 10.0.{number}.2/24 dev eth0")
                ip("link set eth0 up")
                ip(f"route add default via 10.0.{number}.1")
        self._server = os.fork()
        if not self._server:
            netns.enter(self.server)
            serve()
        time.sleep(0.2)

    def close(self) -> None:
        os.kill(self._server, signal.SIGKILL)
        os.waitpid(self._server, 0)
        for netns_path in (self.client, self.node, self.server):
            netns.delete(netns_path)


def bulk(address: str, seconds: float, connections: int) -> float:
    """MB a second."""
    sent = [0] * connections
    begun = time.perf_counter()

    def send(index: int) -> None:
        with socket.create_connection((address, STREAM)) as sock:
            sock.sendall(b"s")
            while time.perf_counter() - begun < seconds:
                sock.sendall(BLOCK)
                sent[index] += len(BLOCK)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1)

    # A thread starts in the network namespace of the one that starts it.
    threads = [threading.Thread(target=send, args=(index,)) for index in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sent) / (time.perf_counter() - begun) / 1e6


def round_trip(address: str, count: int) -> float:
    """Microseconds of a message of 100 bytes and its echo, the median."""
    with socket.create_connection((address, STREAM)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"e")
        return _timed(sock, count)


def datagram_round_trip(address: str, count: int) -> float:
    """The same with a datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((address, ECHO))
        return _timed(sock, count)


def _timed(sock: socket.socket, count: int) -> float:
    message, times = bytes(100), []
    for _ in range(count):
        begun = time.perf_counter_ns()
        sock.send(message)
        sock.recv(100)
        times.append((time.perf_counter_ns() - begun) / 1000)
    return median(times)


def rate(address: str, seconds: float) -> float:
    """Connections a second."""
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        with socket.create_connection((address, BRIEF)) as sock:
            sock.recv(1)
        done += 1
    return done / (time.perf_counter() - begun)


@contextlib.contextmanager
def programmed(plane: NftablesDataPlane | UserspaceDataPlane) -> Iterator[None]:
    """The node in one mode."""
    with contextlib.closing(plane):
        plane.load(services())
        try:
            yield
        finally:
            plane.remove()


def relay_rows(network: Network, plane: UserspaceDataPlane, seconds: float) -> dict[str, float]:
    """What the relay takes for itself."""
    state = plane.relay()
    assert state is not None, "it runs"
    pids = (state.pid, state.keeper)

    def memory() -> float:
        return sum(resident_mb(pid)[1] for pid in pids)

    result = {"memory of the relay": memory()}
    before = cpu_s(state.pid)
    with netns.inside(network.client):
        speed = bulk(VIP, seconds, 1)
        result["CPU of the relay for a GB"] = (cpu_s(state.pid) - before) / (speed * seconds / 1000)
        with contextlib.ExitStack() as stack:
            for _ in range(CONNECTIONS):
                stack.enter_context(socket.create_connection((VIP, STREAM)))
            while (now := plane.relay()) is not None and now.connections < CONNECTIONS:
                time.sleep(0.05)
            result[f"memory of the relay with {CONNECTIONS:,} connections"] = memory()
    return result


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run."""
    runs, seconds, count = (1, 0.5, 500) if quick else (5, 1.0, 3000)
    works: dict[str, tuple[str, Callable[[str], float]]] = {
        "bulk, one connection": ("MB/s", lambda address: bulk(address, seconds, 1)),
        "bulk, eight connections": ("MB/s", lambda address: bulk(address, seconds, 8)),
        "round trip, TCP": ("us", lambda address: round_trip(address, count)),
        "round trip, UDP": ("us", lambda address: datagram_round_trip(address, count)),
        "connections": ("/s", lambda address: rate(address, seconds)),
    }
    values: dict[str, dict[str, list[float]]] = {name: {} for name in works}
    own: dict[str, list[float]] = {}
    with contextlib.closing(Network()) as network:
        for _ in range(runs):
            gc.collect()
            for mode in (UserspaceDataPlane, NftablesDataPlane):
                with programmed(plane := mode(NODE, network.node)):
                    for name, (_, work) in works.items():
                        with netns.inside(network.client):
                            values[name].setdefault(plane.name, []).append(work(VIP))
                            if mode is NftablesDataPlane:
                                values[name].setdefault("direct", []).append(work(SERVER))
                    if isinstance(plane, UserspaceDataPlane):
                        for name, value in relay_rows(network, plane, seconds).items():
                            own.setdefault(name, []).append(value)
    rows = []
    for name, (unit, _) in works.items():
        beside = tuple((peer, tuple(values[name][peer])) for peer in ("nftables", "direct"))
        rows.append(Row(name, unit, tuple(values[name]["userspace"]), beside))
    units = {name: "s" if "CPU" in name else "MB" for name in own}
    return rows + [Row(name, units[name], tuple(result)) for name, result in own.items()]


if __name__ == "__main__":
    run_alone("userspace", __doc__, run)
