"""Kernel access: a pod's wiring and large route tables, beside ip(8) in batches and pyroute2.

Each subject works in namespaces of its own, the three taking turns so that noise hits all alike. A pod here is the same
for all: veth pair across two namespaces, address, gateway and default route, neighbours both ways, host route. Taking
a pod off the network ends for podwire when no packet reaches it; the devices go together in the background, which is
measured apart.

Reading routes gives values in podwire: all objects of the namespace. Beside it ``ip -j route show`` is read by a JSON
parser, which gives routes as dictionaries, and ``ip route show`` prints lines that nobody parses. A value costs 0.6 us
more than the bytes of the kernel, and a line of text 1 us. CPU is user and system time of this process and of the
processes that it starts. As in an agent, modules are left out of searches for garbage.

    sudo python -m bench.netlink [--quick]
"""

import gc
import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyroute2
from bench.alone import run_alone
from bench.table import Row

from podwire.kernel import netns, network, pods
from podwire.kernel.netlink import Netlink
from podwire.state.changes import diff
from podwire.state.link import Link
from podwire.state.link_kinds import Vxlan
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import Address, Fdb, Neighbour, Route

OWNER = OwnerMark(113, "podwire/bench")
HOST_MAC, POD_MAC = "ee:ee:ee:ee:ee:ee", "02:00:00:00:00:01"
GATEWAY = "169.254.1.1"


def timed(action: Callable[..., object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e3


def cpu_s() -> float:
    """User and system time of this process and of those that it has started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class Task:
    """The measurements of one task."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.ms: dict[str, list[float]] = {"podwire": [], "ip -batch": [], "pyroute2": []}
        self.cpu_ms: dict[str, list[float]] = {"podwire": []}

    def note(self, user: str, action: Callable[..., object]) -> None:
        """Measures one run."""
        began = cpu_s()
        self.ms.setdefault(user, []).append(timed(action))
        self.cpu_ms.setdefault(user, []).append((cpu_s() - began) * 1e3)

    def row(self) -> Row:
        """Its row; peers that were not measured are left out."""
        return self._row(self.task, self.ms)

    def rows(self) -> list[Row]:
        """Its row and that of its CPU time."""
        return [self.row(), self._row(f"{self.task}, CPU", self.cpu_ms)]

    def _row(self, title: str, ms: dict[str, list[float]]) -> Row:
        peers = tuple((name, tuple(values)) for name, values in ms.items() if name != "podwire" and values)
        return Row(title, "ms", tuple(ms["podwire"]), peers)


def pod_states(number: int, netns_path: Path) -> tuple[NetworkState, NetworkState]:
    name, ip = f"pod{number}", f"10.244.{number // 250}.{number % 250 + 1}"
    node = NetworkState(
        links=(Link(name, "veth", mac=HOST_MAC, peer="eth0", peer_netns=str(netns_path)),),
        routes=(Route(f"{ip}/32", link=name),),
        neighbours=(Neighbour(name, ip, POD_MAC),),
    )
    pod = NetworkState(
        links=(Link("lo"), Link("eth0", mac=POD_MAC)),
        addresses=(Address("eth0", f"{ip}/32"),),
        routes=(Route(f"{GATEWAY}/32", link="eth0"), Route("default", GATEWAY, "eth0", onlink=True)),
        neighbours=(Neighbour("eth0", GATEWAY, HOST_MAC),),
    )
    return node, pod


def wire_with_ip(node: Path, netns_path: Path, number: int) -> None:
    """Two processes with a batch each, which is the best that ip(8) can do."""
    host, _pod = pod_states(number, netns_path)
    name, ip = host.links[0].name, host.neighbours[0].ip
    for path, lines in (
        (
            node,
            f"link add {name} address {HOST_MAC} type veth peer name eth0 address {POD_MAC} netns {netns_path}\n"
            f"link set {name} up\nroute add {ip} dev {name}\nneigh add {ip} lladdr {POD_MAC} dev {name}\n",
        ),
        (
            netns_path,
            f"link set lo up\nlink set eth0 up\naddress add {ip}/32 dev eth0\nroute add {GATEWAY} dev eth0\n"
            f"route add default via {GATEWAY} dev eth0 onlink\nneigh add {GATEWAY} lladdr {HOST_MAC} dev eth0\n",
        ),
    ):
        batch(path, lines)


def batch(netns_path: Path, lines: str) -> None:
    with netns.inside(netns_path):
        subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True, stdout=subprocess.DEVNULL)


def wire_with_pyroute2(oracle: pyroute2.IPRoute, netns_path: Path, number: int) -> None:
    host, _pod = pod_states(number, netns_path)
    name, ip = host.links[0].name, host.neighbours[0].ip
    peer = {"ifname": "eth0", "address": POD_MAC, "net_ns_fd": str(netns_path)}
    oracle.link("add", ifname=name, kind="veth", address=HOST_MAC, peer=peer, state="up")
    index = oracle.link_lookup(ifname=name)[0]
    oracle.route("add", dst=f"{ip}/32", oif=index)
    oracle.neigh("add", dst=ip, lladdr=POD_MAC, ifindex=index, state=128)
    with pyroute2.IPRoute(netns=str(netns_path)) as pod:
        eth0 = pod.link_lookup(ifname="eth0")[0]
        pod.link("set", index=1, state="up")
        pod.link("set", index=eth0, state="up")
        pod.addr("add", index=eth0, address=ip, prefixlen=32)
        pod.route("add", dst=f"{GATEWAY}/32", oif=eth0, scope=253)
        pod.route("add", dst="default", gateway=GATEWAY, oif=eth0, flags=4)
        pod.neigh("add", dst=GATEWAY, lladdr=HOST_MAC, ifindex=eth0, state=128)


def measure_pods(folder: Path, count: int) -> list[Row]:
    row, away = Task("wire a pod"), Task("take a pod off the network")
    nodes = [folder / f"node{i}" for i in range(3)]
    netns_paths = [folder / f"pod{i}" for i in range(count * 3)]
    for path in (*nodes, *netns_paths):
        netns.create(path)
    with Netlink(nodes[0]) as own, pyroute2.IPRoute(netns=str(nodes[2])) as oracle:
        for number in range(count):
            node, pod = (OWNER.stamp(x) for x in pod_states(number, netns_paths[number]))
            row.ms["podwire"].append(timed(lambda n=number, a=node, b=pod: pods.wire(own, netns_paths[n], a, b)))
            row.ms["ip -batch"].append(timed(lambda n=number: wire_with_ip(nodes[1], netns_paths[count + n], n)))
            row.ms["pyroute2"].append(timed(lambda n=number: wire_with_pyroute2(oracle, netns_paths[2 * count + n], n)))
        for number in range(count):
            node = OWNER.stamp(pod_states(number, netns_paths[number])[0])
            away.ms["podwire"].append(timed(lambda a=node: pods.unwire(own, [a])))
            away.ms["ip -batch"].append(timed(lambda n=number: batch(nodes[1], f"link del pod{n}\n")))
            away.ms["pyroute2"].append(timed(lambda n=number: oracle.link("del", ifname=f"pod{n}")))
        swept = timed(lambda: pods.sweep(nodes[0]))
    for path in (*nodes, *netns_paths):
        netns.delete(path)
    return [row.row(), away.row(), Row(f"in the background: delete the {count} devices", "ms", (swept,))]


def with_uplink(path: Path) -> Netlink:
    netns.create(path)
    netlink = Netlink(path)
    state = NetworkState((Link("eth0", "bridge"),), (Address("eth0", "10.89.0.1/24"),))
    network.apply(netlink, state, OwnerMark(114)).check()
    return netlink


def measure_routes(folder: Path, count: int) -> list[Row]:
    gc.collect()
    gc.freeze()
    row, again, read = Task(f"add {count:,} routes"), Task("apply them again"), Task("read them")
    routes = [f"{10 + i // 65536}.{i // 256 % 256}.{i % 256}.0/24" for i in range(count)]
    state = NetworkState(routes=tuple(Route(dst, "10.89.0.2", "eth0") for dst in routes))
    lines = "".join(f"route add {dst} via 10.89.0.2 dev eth0\n" for dst in routes)
    netns_paths: list[Path] = []
    for attempt in range(5):
        paths = [folder / f"routes{attempt}{i}" for i in range(3)]
        own, _other, third = [with_uplink(path) for path in paths]
        row.note("podwire", lambda own=own: network.apply(own, state, OWNER).check())
        row.note("ip -batch", lambda path=paths[1]: batch(path, lines))
        again.note("podwire", lambda own=own: network.apply(own, state, OWNER).check())
        for _ in range(3):
            read.note("podwire", lambda own=own: network.read(own))
            read.note("ip -j, parsed", lambda path=paths[1]: read_json(path))
            read.note("ip, text", lambda path=paths[1]: batch(path, "route show\n"))
        index = network.read_link(third, "eth0").index
        with pyroute2.IPRoute(netns=str(paths[2])) as oracle:
            if attempt == 0:
                row.note("pyroute2", lambda o=oracle, i=index: add_routes(o, routes, i))
                read.note("pyroute2", lambda o=oracle: list(o.get_routes(family=2)))
        netns_paths += paths
    for path in netns_paths:  # at the end: the kernel takes devices down for a while, under the lock of all writes
        netns.delete(path)
    return [*row.rows(), *again.rows(), *read.rows()]


def read_json(netns_path: Path) -> list[dict[str, object]]:
    """The routes as ip(8) gives them to programs."""
    with netns.inside(netns_path):
        done = subprocess.run(["ip", "-j", "route", "show"], check=True, capture_output=True)
    routes: list[dict[str, object]] = json.loads(done.stdout)
    return routes


def add_routes(oracle: pyroute2.IPRoute, routes: list[str], index: int) -> None:
    for dst in routes:
        oracle.route("add", dst=dst, gateway="10.89.0.2", oif=index)


def measure_peers(folder: Path, count: int) -> list[Row]:
    """VXLAN: route, neighbour and forwarding entry of each peer."""
    path = folder / "peers"
    row, again, one_row = Task(f"{count:,} vxlan peers"), Task("apply all of them again"), Task("one peer more")
    with with_uplink(path) as netlink:
        link = Link("vx", "vxlan", attributes=Vxlan(1, local="10.89.0.1", device="eth0"))
        peers = [peer_state(i) for i in range(count + 1)]
        want = OWNER.stamp(
            NetworkState(
                (link,),
                (Address("vx", "10.244.0.0/32"),),
                tuple(x.routes[0] for x in peers[:-1]),
                tuple(x.neighbours[0] for x in peers[:-1]),
                tuple(x.fdb[0] for x in peers[:-1]),
            )
        )
        row.ms["podwire"].append(timed(lambda: network.apply(netlink, want, OWNER).check()))
        again.ms["podwire"] += [timed(lambda: network.apply(netlink, want, OWNER).check()) for _ in range(3)]
        last = OWNER.stamp(peers[-1])
        one_row.ms["podwire"].append(timed(lambda: network.add(netlink, last).check()))
        commands = [line.split(" ", 1) for line in str(diff(NetworkState(), last)).splitlines()]
        one_row.ms["ip -batch"].append(timed(lambda: run_each(path, commands)))
    netns.delete(path)
    return [item.row() for item in (row, again, one_row)]


def run_each(path: Path, commands: list[list[str]]) -> None:
    with netns.inside(path):
        for tool, arguments in commands:
            subprocess.run([tool, *arguments.split()], check=False, capture_output=True)


def peer_state(number: int) -> NetworkState:
    ip, mac = f"10.{100 + number // 250}.{number % 250}.0", f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"
    return NetworkState(
        routes=(Route(f"{ip}/24", ip, "vx", onlink=True),),
        neighbours=(Neighbour("vx", ip, mac),),
        fdb=(Fdb("vx", mac, f"10.89.{1 + number // 250}.{number % 250 + 1}"),),
    )


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` a tenth of everything."""
    pods_, routes, peers = (10, 1_000, 100) if quick else (60, 10_000, 1_000)
    folder = Path(tempfile.mkdtemp(prefix=f"podwire-bench-{os.getpid()}-", dir="/run"))
    try:
        return [*measure_pods(folder, pods_), *measure_routes(folder, routes), *measure_peers(folder, peers)]
    finally:
        for path in folder.iterdir():
            netns.delete(path)
        folder.rmdir()


if __name__ == "__main__":
    run_alone("netlink", __doc__, run)
