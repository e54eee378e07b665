"""Latency of CNI ADD and DEL, one after the other and eight at a time, against the reference plugin ptp.

Both in the same run, in turns, in a node namespace of their own: the plugin is executed as a container runtime does
it, for a namespace that exists already. podwire is measured with its compiled program and with the one in Python; the
agent's CNI part runs in a process of its own with the address ledger on disk (``synchronous=FULL``). ptp comes with
host-local from Debian's package ``containernetworking-plugins``; without it the row is left out and says so.

    sudo python -m bench.cni [--pods 64] [--plugins /usr/lib/cni]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from multiprocessing.synchronize import Event
from pathlib import Path

from podwire.cni import program
from podwire.cni.service import CniService, Settings
from podwire.cni.wiring import Node
from podwire.kernel import netns
from podwire.runtime.clock import SystemClock

_WIDTH = 8
_SHIM = Path(program.__file__).with_name("shim.py")


class Plugin:
    """What is measured: a command line, a configuration, an environment."""

    def __init__(self, name: str, command: list[str], conf: dict[str, object], env: dict[str, str]) -> None:
        self.name = name
        self.command = command
        self.conf = json.dumps(conf).encode()
        self.env = env

    def call(self, verb: str, container: str, place: Path) -> float:
        """Milliseconds of one execution."""
        environment = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": str(place),
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME={container}",
            **self.env,
        }
        started = time.perf_counter()
        done = subprocess.run(self.command, input=self.conf, env=environment, capture_output=True, check=False,
                              close_fds=False)
        if done.returncode:
            raise SystemExit(f"{self.name} {verb}: {done.stdout.decode()}{done.stderr.decode()}")
        return (time.perf_counter() - started) * 1000


def serve(node: Path, root: Path, ready: Event) -> None:
    """The CNI part of an agent, in the node's namespace."""
    netns.enter(node)

    async def body() -> None:
        service = CniService(Settings(socket=root / "cni.sock", database=root / "ipam.db"), SystemClock())
        service.recover()
        service.set_node(Node(cidrs=("10.244.0.0/16",)))
        async with asyncio.TaskGroup() as group:
            group.create_task(service.run())
            group.create_task(service.bury())
            await asyncio.sleep(0.05)
            ready.set()

    asyncio.run(body())


def measure(plugin: Plugin, places: list[Path]) -> dict[str, float]:
    """Medians in milliseconds and rates per second of one plugin."""
    found: dict[str, float] = {}
    for width, label in ((1, "1 by 1"), (_WIDTH, f"{_WIDTH} at a time")):
        for verb in ("ADD", "DEL"):
            names = [f"{width}-{place.name}" for place in places]
            started = time.perf_counter()
            with ThreadPoolExecutor(width) as threads:
                taken = list(threads.map(plugin.call, repeat(verb), names, places))
            found[f"{verb} {label}, ms"] = statistics.median(taken)
            found[f"{verb} {label}, p99 ms"] = sorted(taken)[int(len(taken) * 0.99) - 1]
            found[f"{verb} {label}, per s"] = len(places) / (time.perf_counter() - started)
        time.sleep(0.2)
    return found


def plugins_of(root: Path, directory: Path) -> list[Plugin]:
    """The rows of the table."""
    own = {"cniVersion": "1.0.0", "name": "podwire", "type": "podwire-cni"}
    env = {"PODWIRE_CNI_SOCKET": str(root / "cni.sock")}
    rows = [
        Plugin("podwire", [str(program.path())], own, env),
        Plugin("podwire, program in Python", ["/usr/bin/python3", "-I", "-S", str(_SHIM)], own, env),
    ]
    if not (directory / "ptp").exists():
        print(f"no ptp in {directory}: install containernetworking-plugins, or give --plugins", file=sys.stderr)
        return rows
    ipam = {"type": "host-local", "subnet": "10.245.0.0/16", "dataDir": str(root / "host-local")}
    reference = {"cniVersion": "1.0.0", "name": "reference", "type": "ptp", "ipam": ipam}
    rows.append(Plugin("ptp + host-local", [str(directory / "ptp")], reference, {"CNI_PATH": str(directory)}))
    return rows


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plugins", type=Path, default=Path("/usr/lib/cni"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="podwire-bench-") as folder:
        root = Path(folder)
        node = root / "node"
        netns.create(node)
        places = [root / "pods" / f"p{number}" for number in range(options.pods)]
        for place in places:
            netns.create(place)
        ready = multiprocessing.get_context("spawn").Event()
        agent = multiprocessing.get_context("spawn").Process(target=serve, args=(node, root, ready), daemon=True)
        agent.start()
        netns.enter(node)
        try:
            if not ready.wait(20):
                raise SystemExit("the agent did not start")
            rows = plugins_of(root, options.plugins)
            runs = [[measure(row, places) for row in rows] for _ in range(options.runs)]
        finally:
            agent.kill()
            agent.join()
            for place in (*places, node):
                netns.delete(place)
    print_table([row.name for row in rows], runs)


def print_table(names: list[str], runs: list[list[dict[str, float]]]) -> None:
    """Medians over the runs, a column a plugin."""
    print(f"| {os.cpu_count()} CPUs | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for label in runs[0][0]:
        cells = [statistics.median(run[column][label] for run in runs) for column in range(len(names))]
        print(f"| {label} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
