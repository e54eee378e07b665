"""A mesh of BIRD processes with the configuration of the backend `bgp`, and the same nodes with two reflectors.

Each node is a network namespace on one bridge, with the configuration that the backend plans for it. All processes are
started one after the other; the time ends when each of them has the pod CIDRs of all others. Hardware addresses are
written beforehand: all namespaces share one neighbour table, which real nodes do not. CPU time is that of all
processes until then, memory is RSS of one process. At the end every process reads a configuration with one node less.

    sudo python -m bench.bgp [--quick]
"""

import re
import subprocess
import tempfile
import time
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

from bench.alone import run_alone
from bench.machine import cpu_s, resident_mb
from bench.table import Row

from podwire.bgp.process import BIRD, BIRDCL
from podwire.kernel import netns
from podwire.routing.nodes import ClusterView, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.settings import parse_settings

PODS = ip_network("10.244.0.0/16")
FACTS = RoutingFacts("bgp", ("bgp",), {"bgp": {"asNumber": 64512}})
REFLECTORS: dict[str, Any] = {"mesh": False, "reflectors": {"nodes": ["node-1", "node-2"]}}
LIMIT_S = 300.0
COUNTED = ("primary", "where", "source", "=", "RTS_BGP", "count")


def address(number: int) -> str:
    return f"10.89.{number // 200}.{number % 200 + 10}"


def mac(number: int) -> str:
    return f"02:00:00:00:{number // 256:02x}:{number % 256:02x}"


def node_cidr(number: int) -> str:
    return f"10.244.{number}.0/24"


def batch(where: Path, lines: list[str]) -> None:
    with netns.inside(where):
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


class Nodes:
    """The namespaces of all nodes, and BIRD in each of them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.numbers = folder, range(1, count + 1)
        self.birds: dict[int, subprocess.Popen[bytes]] = {}
        self.fabric = folder / "fabric"
        netns.create(self.fabric)
        batch(self.fabric, ["link add br0 type bridge", "link set br0 up"])
        for number in self.numbers:
            netns.create(self.place(number))
            link = f"link add n{number} type veth peer name eth0 address {mac(number)} netns {self.place(number)}"
            batch(self.fabric, [link, f"link set n{number} master br0 up"])
            lines = ["link set lo up", "link set eth0 up", f"address add {address(number)}/16 dev eth0"]
            rest = (other for other in self.numbers if other != number)
            lines += [f"neigh add {address(o)} lladdr {mac(o)} dev eth0 nud permanent" for o in rest]
            batch(self.place(number), lines)

    def place(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def control(self, number: int) -> Path:
        return self.folder / f"run-{number}" / "bird.ctl"

    def write(self, section: dict[str, Any], known: range) -> None:
        """Writes the configuration of each node for a cluster of the ``known`` nodes."""
        backend = parse_settings({"backend": "bgp", "bgp": section}, "bench").load()["bgp"]
        peers = {
            number: Peer(
                name=f"node-{number}",
                addresses=(ip_address(address(number)),),
                pod_cidrs=(ip_network(node_cidr(number)),),
                facts=FACTS,
            )
            for number in known
        }
        for number in self.numbers:
            me = LocalNode(
                name=f"node-{number}",
                addresses=(ip_address(address(number)),),
                pod_cidrs=(ip_network(node_cidr(number)),),
                underlay=Underlay("eth0", 1500, (ip_interface(f"{address(number)}/16"),)),
                run_dir=str(self.control(number).parent),
            )
            rest = tuple(peer for other, peer in peers.items() if other != number)
            (bird,) = backend.plan(me, rest, ClusterView(rest, (PODS,))).children
            for path, content in bird.files.items():
                Path(path).parent.mkdir(exist_ok=True)
                Path(path).write_bytes(content)

    def start(self) -> None:
        for number in self.numbers:
            where = self.control(number)
            with netns.inside(self.place(number)):
                argv = (BIRD, "-f", "-c", where.with_name("bird.conf"), "-s", where)
                self.birds[number] = subprocess.Popen(argv)

    def routes(self, number: int) -> int:
        """How many networks a node has learned; -1 while BIRD does not answer."""
        argv = (BIRDCL, "-s", self.control(number), "show", "route", *COUNTED)
        output = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        result = re.search(r"^(\d+) of \d+ routes", output, re.M)
        return int(result[1]) if result else -1

    def wait(self) -> None:
        """Returns when every node has learned the networks of all others.

        Raises: TimeoutError.
        """
        end = time.perf_counter() + LIMIT_S
        for number in self.numbers:
            while self.routes(number) < len(self.numbers) - 1:
                if time.perf_counter() > end:
                    raise TimeoutError(f"node-{number} has {self.routes(number)} networks")
                time.sleep(0.05)

    def reload(self, number: int) -> float:
        """Milliseconds until a node has read its configuration, with the start of the program that asks for it."""
        begun = time.perf_counter()
        argv = (BIRDCL, "-s", self.control(number), "configure")
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        return (time.perf_counter() - begun) * 1e3

    def stop(self) -> None:
        for bird in self.birds.values():
            bird.kill()
        for bird in self.birds.values():
            bird.wait()
        self.birds.clear()

    def close(self) -> None:
        self.stop()
        for number in self.numbers:
            netns.delete(self.place(number))
        netns.delete(self.fabric)


def measure(nodes: Nodes, subject: str, section: dict[str, Any], aim: float | None) -> list[Row]:
    nodes.write(section, range(1, len(nodes.numbers) + 1))
    begun = time.perf_counter()
    nodes.start()
    nodes.wait()
    used = time.perf_counter() - begun
    pids = [bird.pid for bird in nodes.birds.values()]
    cpu = sum(cpu_s(pid) for pid in pids)
    memory = tuple(resident_mb(pid)[0] for pid in pids)
    nodes.write(section, range(1, len(nodes.numbers)))
    reloads = tuple(nodes.reload(number) for number in nodes.numbers)
    nodes.stop()
    return [
        Row(f"{subject}: all have all routes", "s", (used,), aim=aim),
        Row(f"{subject}: CPU time of all", "s", (cpu,)),
        Row(f"{subject}: memory of one", "MB", memory),
        Row(f"{subject}: read a new configuration", "ms", reloads),
    ]


def run(quick: bool) -> list[Row]:
    rows = []
    for count in (5,) if quick else (20, 50, 100):
        with tempfile.TemporaryDirectory() as folder:
            nodes = Nodes(Path(folder), count)
            try:
                rows += measure(nodes, f"mesh of {count} nodes", {}, 3.0 if count == 100 else None)
                rows += measure(nodes, f"{count} nodes, 2 reflectors", REFLECTORS, None)
            finally:
                nodes.close()
    return rows


if __name__ == "__main__":
    run_alone("bgp", __doc__, run)
