"""The first packet and new connections through a Service, by mode and by the number of Services.

A client, a node that forwards, and a server, each in a network namespace of its own, joined by veth pairs; the node
holds so many Services of two endpoints. In turns one connection goes to a cluster address, whose Service is one in the
middle of the others with the server as its endpoint, and one to the server itself: the kernel's own path between two
pods, past the same rules. What is timed is connect(2), so the first packet there and its answer back. "Times direct" is
the ratio of the medians of one run. The rate is that of one process that connects and resets, half a second at a time.
Without rules on the node, not even connection tracking, the direct path is what the first rows say.

    sudo python -m bench.service_packets [--quick]
"""

import contextlib
import gc
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

from bench.alone import run_alone
from bench.services import NODE, address
from bench.table import Row

from podwire.kernel import netns
from podwire.kernel.iptables import find
from podwire.proxy.dataplanes.iptables.dataplane import IptablesDataPlane
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort

SIZES = {
    "nftables": (10, 1_000, 10_000, 30_000),
    "iptables-nft": (10, 1_000, 10_000),
    "iptables-legacy": (10, 1_000, 10_000),
}
AIM = 1.1
SERVER = "10.0.2.2"
ENDPOINT = "10.0.2.3"
"""Another address of the same server, so that the kernel never finds a port of the one in use by the other."""
PORT = 8080
RESET = struct.pack("ii", 1, 0)


def service(number: int, *ends: tuple[str, int]) -> tuple[ResolvedPort, ...]:
    """A Service with these endpoints, or two that are nobody."""
    nobody = ((address(0x0A100000, 2 * number), PORT), (address(0x0A100000, 2 * number + 1), PORT))
    port = ResolvedPort(
        service=f"bench/service-{number}",
        port_name="http",
        protocol="tcp",
        family="ip",
        port=80,
        cluster_ip=address(0xAC100000, number),
        cluster_endpoints=tuple(ResolvedEndpoint(*end) for end in ends or nobody),
        has_endpoints=True,
    )
    return (port,)


class Network:
    """Client, node and server."""

    def __init__(self) -> None:
        self.client, self.node, self.server = (
            Path(f"/run/netns/pwbench-{os.getpid()}-{name}") for name in ("client", "node", "server")
        )
        for netns_path in (self.client, self.node, self.server):
            netns.create(netns_path)
        for number, netns_path in ((1, self.client), (2, self.server)):
            with netns.inside(self.node):
                ip(f"link add v{number} type veth peer name eth0 netns {netns_path.name}")
                ip(f"address add 10.0.{number}.1/24 dev v{number}")
                ip(f"link set v{number} up")
                for path in ("ipv4/ip_forward", "netfilter/nf_conntrack_tcp_timeout_close"):
                    Path("/proc/sys/net", path).write_text("1")
            with netns.inside(netns_path):
                ip("link set lo up")
                ip(f"address add 10.0.{number}.2/24 dev eth0")
                ip("link set eth0 up")
                ip(f"route add default via 10.0.{number}.1")
        with netns.inside(self.server):
            ip(f"address add {ENDPOINT}/24 dev eth0")
            self._listener = socket.create_server(("", PORT), backlog=4096)
        self._taker = os.fork()
        if not self._taker:
            stay_on(-1)
            while True:
                self._listener.accept()[0].close()

    def close(self) -> None:
        os.kill(self._taker, signal.SIGKILL)
        os.waitpid(self._taker, 0)
        self._listener.close()
        for netns_path in (self.client, self.node, self.server):
            netns.delete(netns_path)


def ip(arguments: str) -> None:
    """Runs ip(8)."""
    subprocess.run(["ip", *arguments.split()], check=True)


def stay_on(which: int) -> None:
    """Has this process run on one processor, so that a measurement is not about its moves."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[which]})


def connect(target: tuple[str, int]) -> int:
    """Nanoseconds of one connect(2), whose connection is reset at once."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.settimeout(None)
        begun = time.perf_counter_ns()
        sock.connect(target)
        return time.perf_counter_ns() - begun


def latencies(targets: tuple[tuple[str, int], ...], count: int) -> list[list[float]]:
    """Microseconds of first packets to each target, in turns."""
    result: list[list[float]] = [[] for _ in targets]
    for _ in range(count):
        for target, values in zip(targets, result, strict=True):
            values.append(connect(target) / 1000)
    return result


def rate(target: tuple[str, int], seconds: float) -> float:
    """Connections a second."""
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        connect(target)
        done += 1
    return done / (time.perf_counter() - begun)


@contextlib.contextmanager
def programmed(mode: str, count: int, node: Path) -> Iterator[tuple[str, int]]:
    """A node with so many Services; the address and port of the one that leads to the server."""
    chosen = count // 2
    services = {f"bench/service-{number}": service(number) for number in range(count)}
    services[f"bench/service-{chosen}"] = service(chosen, (ENDPOINT, PORT))
    plane: NftablesDataPlane | IptablesDataPlane
    if mode == "nftables":
        plane = NftablesDataPlane(NODE, node)
    else:
        programs = find("nft" if mode == "iptables-nft" else "legacy")
        if programs is None:
            raise SystemExit(f"the programs of {mode} are not installed")
        plane = IptablesDataPlane(NODE, node, programs)
    with contextlib.closing(plane):
        plane.load(services)
        try:
            yield services[f"bench/service-{chosen}"][0].cluster_ip, 80
        finally:
            plane.remove()


def measure(network: Network, mode: str, count: int, *, runs: int, connections: int) -> list[Row]:
    """The rows of one mode and size."""
    direct = (SERVER, PORT)
    with programmed(mode, count, network.node) as target, netns.inside(network.client):
        latencies((direct, target), connections // 5)
        timed = [latencies((direct, target), connections) for _ in range(runs)]
        rates = [(rate(direct, 0.5), rate(target, 0.5)) for _ in range(runs)]
    beside, through = ([median(run[which]) for run in timed] for which in (0, 1))
    slow_beside, slow_through = ([quantiles(run[which], n=100)[98] for run in timed] for which in (0, 1))
    ratios = tuple(mine / other for mine, other in zip(through, beside, strict=True))
    subject = f"{mode}, {count:,} Services: "
    return [
        Row(subject + "first packet", "us", tuple(through), (("direct", tuple(beside)),)),
        Row(subject + "first packet, 99th percentile", "us", tuple(slow_through), (("direct", tuple(slow_beside)),)),
        Row(subject + "first packet, times direct", "", ratios, aim=AIM),
        Row(
            subject + "connections",
            "/s",
            tuple(item[1] for item in rates),
            (("direct", tuple(item[0] for item in rates)),),
        ),
    ]


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run with up to 1,000 Services."""
    runs, connections = (1, 500) if quick else (3, 2000)
    with contextlib.closing(Network()) as network:
        gc.disable()
        stay_on(0)
        with netns.inside(network.client):
            bare = [latencies(((SERVER, PORT),), connections)[0] for _ in range(runs)]
            rates = [rate((SERVER, PORT), 0.5) for _ in range(runs)]
        rows = [
            Row("no rules: first packet, direct", "us", tuple(median(item) for item in bare)),
            Row("no rules: connections, direct", "/s", tuple(rates)),
        ]
        for mode, sizes in SIZES.items():
            for count in sizes:
                if count <= 1_000 or not quick:
                    rows += measure(network, mode, count, runs=runs, connections=connections)
                    gc.collect()
        return rows


if __name__ == "__main__":
    run_alone("service_packets", __doc__, run)
