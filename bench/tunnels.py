"""Pods of two nodes through each routing backend with a tunnel, beside plain routes over the same veth pair.

Two nodes with a pod each, all in network namespaces of this machine, so both nodes share its processors. In turns each
backend gets what it plans for these nodes, with its process where it has one. Bulk is iperf3, one connection at a time,
in Mbit/s at the receiver; a round trip is 100 bytes by TCP there and back. CPU is that of both nodes' processes of the
backend for a gigabyte.

    sudo python -m bench.tunnels [--quick]
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from statistics import median
from typing import Any

from bench.alone import run_alone
from bench.machine import cpu_s
from bench.table import Row

from podwire.kernel import netns
from podwire.routing.backend import BackendPlan
from podwire.routing.keys import KeyStore
from podwire.routing.machine import KernelMachine
from podwire.routing.nodes import ClusterView, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.settings import RoutingSettings
from podwire.runtime.children import spawn_program
from podwire.state.network import NetworkState, merge
from podwire.state.route import Sysctl

PEERS = ("vxlan", "wireguard", "hostgw")
"""What stands beside ``udp``; hostgw is the bare veth pair."""
NAMES = {"hostgw": "bare veth"}
LIMIT_S = 60.0
POD = "10.244.2.5"
"""The pod that receives."""
_PORT = 7000
_NODES = (1, 2)


def batch(where: Path, *lines: str) -> None:
    with netns.inside(where):
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


class Network:
    """Two nodes joined by a veth pair, and the pod of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for number in _NODES:
            netns.create(self.node(number))
            netns.create(self.pod(number))
        second = f"peer name eth0 address 02:00:00:00:00:02 netns {self.node(2)}"
        batch(self.node(1), f"link add eth0 address 02:00:00:00:00:01 type veth {second}")
        for number in _NODES:
            batch(
                self.node(number),
                "link set lo up",
                f"address add 10.89.0.{number}/24 dev eth0",
                "link set eth0 up",
                f"link add pod type veth peer name eth0 netns {self.pod(number)}",
                "link set pod up",
                "address add 169.254.1.1/32 dev pod scope link",
                f"route add 10.244.{number}.5 dev pod",
            )
            batch(
                self.pod(number),
                "link set lo up",
                f"address add 10.244.{number}.5/32 dev eth0",
                "link set eth0 up",
                "route add 169.254.1.1 dev eth0",
                "route add default via 169.254.1.1",
            )

    def node(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def pod(self, number: int) -> Path:
        return self.folder / f"pod-{number}"

    def close(self) -> None:
        for number in _NODES:
            netns.delete(self.pod(number))
            netns.delete(self.node(number))


class Routed:
    """The two nodes with one backend."""

    def __init__(self, network: Network, backend: str) -> None:
        self._network = network
        self._backend = RoutingSettings(backend=backend).load()[backend]
        self._machines = {number: KernelMachine(network.node(number)) for number in _NODES}
        self._locals = {number: self._local(number, backend) for number in _NODES}
        self.pids: list[int] = []
        self.mtu = 1500 - self._backend.overhead(self._locals[1])
        for number in _NODES:
            self._hold(number)
            batch(network.pod(number), f"link set eth0 mtu {self.mtu}")
            batch(network.node(number), f"link set pod mtu {self.mtu}")

    def _local(self, number: int, backend: str) -> LocalNode:
        run_dir = self._network.folder / f"run-{number}"
        run_dir.mkdir(exist_ok=True)
        return LocalNode(
            name=f"node-{number}",
            addresses=(ip_address(f"10.89.0.{number}"),),
            pod_cidrs=(ip_network(f"10.244.{number}.0/24"),),
            underlay=Underlay("eth0", 1500, (ip_interface(f"10.89.0.{number}/24"),)),
            run_dir=str(run_dir),
            keys={backend: KeyStore(self._network.folder / f"keys-{number}").keep(backend, ["0"])},
        )

    def _peer(self, me: LocalNode) -> Peer:
        facts = RoutingFacts(self._backend.name, (self._backend.name,), self._backend.announce(me))
        return Peer(name=me.name, addresses=me.addresses, pod_cidrs=me.pod_cidrs, facts=facts)

    def _hold(self, number: int) -> None:
        peer = self._peer(self._locals[3 - number])
        networks = (ip_network("10.244.0.0/16"),)
        backend_plan: BackendPlan = self._backend.plan(self._locals[number], (peer,), ClusterView((peer,), networks))
        machine = self._machines[number]
        forwarding = NetworkState(sysctls=(Sysctl(path="net/ipv4/ip_forward", value="1"),))
        failed = [*machine.hold(merge([backend_plan.network, forwarding])), *machine.hold_values(backend_plan.values)]
        assert not failed, failed
        with netns.inside(self._network.node(number)):
            self.pids += [spawn_program(child) for child in backend_plan.children]
        deadline = time.monotonic() + LIMIT_S
        while waiting := machine.hold_values((*backend_plan.values, *backend_plan.program_values)):
            assert time.monotonic() < deadline, waiting
            time.sleep(0.05)

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
        for pid in self.pids:
            os.waitpid(pid, 0)
        for machine in self._machines.values():
            machine.hold(NetworkState())
            machine.close()

    def used_s(self) -> float:
        """Processor time of the backend's processes, with their children."""
        return sum(cpu_s(pid) for pid in self._family())

    def _family(self) -> Iterator[int]:
        for pid in self.pids:
            yield pid
            yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def bulk(network: Network, seconds: float) -> float:
    """Mbit/s from the first pod to the second."""
    with netns.inside(network.pod(2)):
        server = subprocess.Popen(["iperf3", "-s"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT_S
    command = ["iperf3", "-c", POD, "-t", str(seconds), "-J"]
    try:
        with netns.inside(network.pod(1)):
            while "sum_received" not in (end := _end(command)):
                assert time.monotonic() < deadline, end
                time.sleep(0.05)
    finally:
        server.kill()
        server.wait()
    return float(end["sum_received"]["bits_per_second"]) / 1e6


def _end(command: list[str]) -> dict[str, Any]:
    """What iperf3 reports at its end; without ``sum_received`` when it could not measure."""
    output = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False).stdout
    document = json.loads(output)
    return document["end"] or {"error": document.get("error")}


def round_trip(network: Network, count: int) -> float:
    """Microseconds of a message of 100 bytes and its echo, the median."""
    with netns.inside(network.pod(2)):
        listener = socket.create_server(("", _PORT))

    def echo() -> None:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(100):
                connection.sendall(data)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    with listener, netns.inside(network.pod(1)), socket.create_connection((POD, _PORT), LIMIT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(count):
            begun = time.perf_counter_ns()
            sock.sendall(bytes(100))
            sock.recv(100)
            times.append((time.perf_counter_ns() - begun) / 1000)
    thread.join()
    return median(times)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run."""
    runs, seconds, count = (1, 1, 300) if quick else (5, 3, 2000)
    speeds: dict[str, list[float]] = {}
    trips: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Network(Path(folder))) as network:
        for _ in range(runs):
            for backend in ("udp", *PEERS):
                with contextlib.closing(Routed(network, backend)) as routed:
                    trips.setdefault(backend, []).append(round_trip(network, count))
                    before = routed.used_s()
                    speed = bulk(network, seconds)
                    speeds.setdefault(backend, []).append(speed)
                    costs.setdefault(backend, []).append((routed.used_s() - before) / (speed * seconds / 8e3))

    def row(subject: str, unit: str, values: dict[str, list[float]], peers: tuple[str, ...], aim: float | None) -> Row:
        beside = tuple((NAMES.get(peer, peer), tuple(values[peer])) for peer in peers)
        return Row(subject, unit, tuple(values["udp"]), beside, aim)

    return [
        row("bulk, one connection, Mbit", "/s", speeds, PEERS, 2000),
        row("round trip, TCP", "us", trips, PEERS, None),
        row("CPU of the processes for a GB", "s", costs, ("wireguard",), None),
    ]


if __name__ == "__main__":
    run_alone("tunnels", __doc__, run)
