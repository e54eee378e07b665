"""Pods of two nodes through each routing backend, beside the same made by hand, and beside plain routes alone.

Two nodes joined by a veth pair, all in network namespaces of this machine, so both nodes share its processors. In
turns each backend gets what the router plans for these nodes, masquerade and guards included, with its process where
it has one. "By hand" is the kernel set up for the same kind of tunnel by commands of ip(8) alone, so without
masquerade, connection tracking and guards, right before or right after the backend, and "bare veth" plain routes by
hand; setups by hand with the same functions are beside the backends in ``tunnel_pairs`` and ``datagrams``. "Without
tables" is the backend without its tables of nftables (masquerade with connection tracking, guards): then the kernel
holds the same as by hand (tests/kernel/test_routing_by_hand.py). Pods use the MTU that the backend leaves. Bulk is
iperf3, one connection or flow at a time, in Mbit/s at the receiver; datagrams have 1,200 bytes, sent as fast as
possible. A round trip is 100 bytes by TCP there and back. CPU for a gigabyte is that of both iperf3 by TCP, which
contains the kernel's work on their packets, and apart from it that of both nodes' processes of the backend; on a busy
machine it says more than the rate. Two pods of one node use no backend; beside them stand two namespaces with routes
by hand.

    sudo python -m bench.tunnels [--quick]
"""

import contextlib
import json
import os
import resource
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
from podwire.routing.backend import FeatureUser
from podwire.routing.keys import KeyStore
from podwire.routing.machine import KernelMachine
from podwire.routing.nodes import Device, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.plan import plan
from podwire.routing.settings import RoutingSettings
from podwire.routing.tables import MASQUERADE
from podwire.runtime.children import spawn_program
from podwire.state.network import NetworkState
from podwire.state.nft import AbsentTable, Table

BACKENDS = ("hostgw", "bgp", "bridge", "vxlan", "udp", "ovs", "wireguard")
"""In the order of the table; those that the kernel lacks are left out."""
BARE = "bare veth"
AIMS = {"udp": 2000.0}
"""The least Mbit/s of one connection."""
LIMIT_S = 60.0
POD, NEAR_POD = "10.244.2.5", "10.244.1.6"
"""The pod that receives, on the other node and on the same one."""
_PORT = 7000
_NODES = (1, 2)


def batch(where: Path, *lines: str) -> None:
    with netns.inside(where):
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def nft(where: Path, rules: str) -> None:
    with netns.inside(where):
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


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
            lines = ("link set lo up", f"address add 10.89.0.{number}/24 dev eth0", "link set eth0 up")
            batch(self.node(number), *lines)
            with netns.inside(self.node(number)):
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            self._join(self.node(number), self.pod(number), "pod", f"10.244.{number}.5")
        netns.create(self.near_pod)
        self._join(self.node(1), self.near_pod, "near", NEAR_POD)

    def _join(self, node: Path, pod: Path, name: str, address: str) -> None:
        """Gives a pod an address, and a route from its node."""
        batch(
            node,
            f"link add {name} type veth peer name eth0 netns {pod}",
            f"link set {name} up",
            f"address add 169.254.1.1/32 dev {name} scope link",
            f"route add {address} dev {name}",
        )
        batch(
            pod,
            "link set lo up",
            f"address add {address}/32 dev eth0",
            "link set eth0 up",
            "route add 169.254.1.1 dev eth0",
            "route add default via 169.254.1.1",
        )

    @property
    def near_pod(self) -> Path:
        """A second pod of the first node."""
        return self.folder / "pod-near"

    def use_mtu(self, mtu: int) -> None:
        """Gives the pods an MTU."""
        for pod, node, name in (
            (self.pod(1), self.node(1), "pod"),
            (self.pod(2), self.node(2), "pod"),
            (self.near_pod, self.node(1), "near"),
        ):
            batch(pod, f"link set eth0 mtu {mtu}")
            batch(node, f"link set {name} mtu {mtu}")

    def node(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def pod(self, number: int) -> Path:
        return self.folder / f"pod-{number}"

    def close(self) -> None:
        netns.delete(self.near_pod)
        for number in _NODES:
            netns.delete(self.pod(number))
            netns.delete(self.node(number))


ROUTES = ("route add 10.244.{other}.0/24 via 10.89.0.{other} dev eth0",)
BY_HAND: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    BARE: (1500, ROUTES, ("route del 10.244.{other}.0/24",)),
    "vxlan": (
        1450,
        (
            "link add hand address 02:00:00:00:01:0{me} mtu 1450 type vxlan id 9 local 10.89.0.{me} dev eth0 "
            "dstport 4789 nolearning",
            "link set hand up",
            "address add 10.244.{me}.1/32 dev hand",
            "neigh add 10.244.{other}.1 lladdr 02:00:00:00:01:0{other} dev hand nud permanent",
            "route add 10.244.{other}.0/24 via 10.244.{other}.1 dev hand onlink",
        ),
        ("link del hand",),
    ),
    "bridge": (
        1500,
        (
            "link add hand address 02:00:00:00:02:0{me} type bridge",
            "link add link eth0 name hand-port address 02:00:00:00:02:0{me} type macvlan mode private",
            "link set hand-port master hand",
            "link set hand-port up",
            "link set hand up",
            "address add 10.244.{me}.1/32 dev hand",
            "neigh add 10.244.{other}.1 lladdr 02:00:00:00:02:0{other} dev hand nud permanent",
            "route add 10.244.{other}.0/24 via 10.244.{other}.1 dev hand onlink",
        ),
        ("link del hand-port", "link del hand"),
    ),
}
"""By name: the MTU of pods, the commands of ip(8) for the node ``me``, and those that undo them."""
RULES = """\
table ip hand {
    chain forward {
        type filter hook forward priority filter
        ip saddr 10.244.0.0/16 accept
        ip daddr 10.244.0.0/16 accept
    }
    chain postrouting {
        type nat hook postrouting priority srcnat
        ip saddr OWN ip daddr 10.244.0.0/16 return
        ip saddr 10.244.0.0/16 ip daddr OWN return
        ip saddr != 10.244.0.0/16 ip daddr OWN return
        ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
        ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
    }
}
"""
"""What flanneld does with nftables: masquerade, and acceptance of packets of pods where another program refuses."""
ALONE = ("hostgw", "vxlan")
"""The backends that are measured without their tables, too."""
LIKE = {"hostgw": BARE, "bgp": BARE, "bridge": "bridge", "vxlan": "vxlan"}
"""What is made by hand beside a backend; nothing beside those with a process."""


class HandMade:
    """The two nodes set up by hand; with ``rules`` they have :data:`RULES` and loose reverse-path filters, too."""

    def __init__(self, network: Network, name: str, *, rules: bool = False) -> None:
        self._network = network
        self._has_rules = rules
        mtu, commands, self._undo = BY_HAND[name]
        self._each(commands)
        if rules:
            for number in _NODES:
                nft(network.node(number), RULES.replace("OWN", f"10.244.{number}.0/24"))
                for device in ("eth0", "hand") if name != BARE else ("eth0",):
                    with netns.inside(network.node(number)):
                        Path(f"/proc/sys/net/ipv4/conf/{device}/rp_filter").write_text("2")
        if name == "vxlan":
            for number in _NODES:
                entry = f"02:00:00:00:01:0{3 - number} dev hand dst 10.89.0.{3 - number}"
                with netns.inside(network.node(number)):
                    subprocess.run(["bridge", "fdb", "append", *entry.split()], check=True)
        network.use_mtu(mtu)

    def _each(self, commands: tuple[str, ...]) -> None:
        for number in _NODES:
            batch(self._network.node(number), *(line.format(me=number, other=3 - number) for line in commands))

    def used_s(self) -> float:
        """No process carries packets."""
        return 0.0

    def close(self) -> None:
        self._each(self._undo)
        for number in _NODES if self._has_rules else ():
            nft(self._network.node(number), "delete table ip hand\n")


class Routed:
    """The two nodes with one backend."""

    def __init__(self, network: Network, backend: str, *, tables: bool = True) -> None:
        self._network = network
        self._with_tables = tables
        self._settings = RoutingSettings(backend=backend)
        self._backends = {name: item for name, item in self._settings.load().items() if name == backend}
        self._machines = {number: KernelMachine(network.node(number)) for number in _NODES}
        self._locals = {number: self._local(number, backend) for number in _NODES}
        self.pids: list[int] = []
        for number in _NODES:
            self._hold(number)

    def _local(self, number: int, backend: str) -> LocalNode:
        run_dir = self._network.folder / f"run-{number}"
        run_dir.mkdir(exist_ok=True)
        return LocalNode(
            name=f"node-{number}",
            addresses=(ip_address(f"10.89.0.{number}"),),
            pod_cidrs=(ip_network(f"10.244.{number}.0/24"),),
            underlay=Underlay("eth0", 1500, (ip_interface(f"10.89.0.{number}/24"),), {"eth0": Device(1500)}),
            run_dir=str(run_dir),
            keys={backend: KeyStore(self._network.folder / f"keys-{number}").keep(backend, ["0"])},
            features=self._features(number),
        )

    def _features(self, number: int) -> frozenset[str]:
        named = {name for item in self._backends.values() if isinstance(item, FeatureUser) for name in item.features}
        return frozenset(name for name in named if not self._machines[number].lacks(name))

    def _peer(self, me: LocalNode) -> Peer:
        (backend,) = self._backends.values()
        facts = RoutingFacts(backend.name, (backend.name,), backend.announce(me))
        return Peer(name=me.name, addresses=me.addresses, pod_cidrs=me.pod_cidrs, facts=facts)

    def _hold(self, number: int) -> None:
        networks = (ip_network("10.244.0.0/16"),)
        peer = self._peer(self._locals[3 - number])
        planned = plan(self._locals[number], (peer,), self._settings, self._backends, networks)
        assert not planned.problems, planned.problems
        self._network.use_mtu(planned.pod_mtu)
        machine = self._machines[number]
        values = [value for value in planned.values if self._with_tables or not isinstance(value, Table)]
        failed = [*machine.hold(planned.state), *machine.hold_values(values)]
        assert not failed, failed
        for path, content in (file for child in planned.children for file in child.files.items()):
            Path(path).write_bytes(content)
        with netns.inside(self._network.node(number)):
            self.pids += [spawn_program(child) for child in planned.children]
        deadline = time.monotonic() + LIMIT_S
        while waiting := machine.hold_values((*values, *planned.program_values)):
            assert time.monotonic() < deadline, waiting
            time.sleep(0.05)

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
        for pid in self.pids:
            os.waitpid(pid, 0)
        for machine in self._machines.values():
            tables = tuple(AbsentTable("inet", name) for name in (MASQUERADE, *self._tables))
            machine.hold(NetworkState())
            machine.hold_values(tables)
            machine.close()

    @property
    def _tables(self) -> tuple[str, ...]:
        return tuple(name for backend in self._backends.values() for name in backend.tables)

    def used_s(self) -> float:
        """Processor time of the backend's processes, with their children."""
        return sum(cpu_s(pid) for pid in self._family())

    def _family(self) -> Iterator[int]:
        for pid in self.pids:
            yield pid
            yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def bulk(source: Path, target: Path, address: str, seconds: float, *arguments: str) -> float:
    """Mbit/s from one namespace to another, at the receiver; ``arguments`` are further options of iperf3."""
    with netns.inside(target):
        server = subprocess.Popen(["iperf3", "-s"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT_S
    command = ["iperf3", "-c", address, "-t", str(seconds), "-J", *arguments]
    try:
        with netns.inside(source):
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


def round_trip(source: Path, target: Path, address: str, count: int) -> float:
    """Microseconds of a message of 100 bytes and its echo, the median."""
    with netns.inside(target):
        listener = socket.create_server(("", _PORT))

    def echo() -> None:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(100):
                connection.sendall(data)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    with listener, netns.inside(source), socket.create_connection((address, _PORT), LIMIT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(count):
            begun = time.perf_counter_ns()
            sock.sendall(bytes(100))
            sock.recv(100)
            times.append((time.perf_counter_ns() - begun) / 1000)
    thread.join()
    return median(times)


def _ended_s() -> float:
    """User and system time of the processes that this one has started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


class Measurements:
    """The values of every subject: TCP and UDP in Mbit/s, round trips in us, CPU seconds for a GB."""

    def __init__(self, seconds: float, count: int) -> None:
        self._seconds, self._count = seconds, count
        self.values: dict[tuple[str, str], list[float]] = {}

    def take(self, name: str, ends: tuple[Path, Path, str], setup: Routed | HandMade) -> None:
        """Measures one subject between two pods once."""
        self._keep(name, "round trip", round_trip(*ends, self._count))
        before, ended = setup.used_s(), _ended_s()
        speed = bulk(*ends, self._seconds)
        gigabytes = speed * self._seconds / 8e3
        self._keep(name, "TCP", speed)
        self._keep(name, "iperf3", (_ended_s() - ended) / gigabytes)
        self._keep(name, "CPU", (setup.used_s() - before) / gigabytes)
        self._keep(name, "UDP", bulk(*ends, self._seconds, "-u", "-b", "0", "-l", "1200"))

    def _keep(self, name: str, kind: str, value: float) -> None:
        self.values.setdefault((name, kind), []).append(value)

    def row(self, value: str, name: str, kind: str, beside: dict[str, str], aim: float | None = None) -> Row:
        """A row; ``beside`` are the names of columns with the subjects in them."""
        unit = {"TCP": "/s", "UDP": "/s", "round trip": "us"}.get(kind, "s")
        peers = tuple((column, tuple(self.values[subject, kind])) for column, subject in beside.items())
        return Row(value, unit, tuple(self.values[name, kind]), peers, aim)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run."""
    runs, seconds, count = (1, 1, 300) if quick else (5, 2, 2000)
    measured = Measurements(seconds, count)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Network(Path(folder))) as network:
        features = RoutingSettings().load()
        machine = KernelMachine(network.node(1))
        usable = [name for name in BACKENDS if not (features[name].feature and machine.lacks(features[name].feature))]
        machine.close()
        across, near = (network.pod(1), network.pod(2), POD), (network.pod(1), network.near_pod, NEAR_POD)
        for number in range(runs):
            for name in usable:
                subjects = [
                    name,
                    *([f"{name} by hand"] if name in LIKE else []),
                    *([_alone(name)] if name in ALONE else []),
                ]
                for subject in subjects if number % 2 else reversed(subjects):
                    with contextlib.closing(_setup(network, name, subject)) as setup:
                        measured.take(subject, across, setup)
                        if name == "hostgw" and subject != _alone(name):
                            measured.take(f"near {subject}", near, setup)
    return _rows(measured, usable)


def _alone(name: str) -> str:
    return f"{name} without tables"


def _setup(network: Network, name: str, subject: str) -> Routed | HandMade:
    if subject.endswith("by hand"):
        return HandMade(network, LIKE[name])
    return Routed(network, name, tables=subject == name)


def _rows(measured: Measurements, usable: list[str]) -> list[Row]:
    bare = {BARE: "hostgw by hand"}
    rows = []
    titles = {
        "TCP": "TCP, Mbit",
        "iperf3": "TCP, CPU for a GB",
        "UDP": "UDP, Mbit",
        "round trip": "round trip, TCP",
    }
    for kind, title in titles.items():
        for name in usable:
            own = {"by hand": f"{name} by hand"} if name in LIKE else {}
            for subject in (name, _alone(name)) if name in ALONE else (name,):
                aim = AIMS.get(name) if kind == "TCP" else None
                rows.append(measured.row(f"{subject}: {title}", subject, kind, own | bare, aim))
        beside = {BARE: "near hostgw by hand"}
        rows.append(measured.row(f"two pods of one node: {title}", "near hostgw", kind, beside))
    with_processes = [name for name in usable if name not in LIKE]
    return rows + [measured.row(f"{name}: CPU of the processes for a GB", name, "CPU", {}) for name in with_processes]


if __name__ == "__main__":
    run_alone("tunnels", __doc__, run)
