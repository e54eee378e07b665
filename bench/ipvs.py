"""The ipvs data plane: load, restart, one change, at 1,000 and 5,000 Services of 2 endpoints; beside it ipvsadm.

Where the kernel has no ip_vs this runs in user-mode Linux, in which everything takes several times as long as on the
machine itself: compare the columns. ``ipvsadm -R`` gets the same virtual servers and nothing else, so beside it stand
our virtual servers alone; a load also binds an address for each Service and fills the sets.

    sudo python -m bench.ipvs [--quick]
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.alone import ROOT, run_alone
from bench.iptables import CHANGES, ports
from bench.services import NODE
from bench.table import Row

from podwire.kernel import netns
from podwire.kernel.features import Features
from podwire.kernel.ipvs import Ipvs
from podwire.proxy.dataplanes.ipvs.dataplane import IpvsDataPlane
from podwire.state.ipvs import VirtualServer
from podwire.state.ipvs_changes import plan

_INSIDE = "--inside"


def took_ms(work: Callable[..., object]) -> float:
    """How long the work takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def measure(count: int) -> dict[str, float]:
    """Milliseconds of each step, in a fresh namespace."""
    netns_path = Path(f"/run/netns/podwire-bench-ipvs-{os.getpid()}")
    netns.create(netns_path)
    subprocess.run(("ip", "-n", netns_path.name, "link", "set", "lo", "up"), check=True)
    try:
        services = {f"bench/service-{number}": ports(number) for number in range(count)}
        with contextlib.closing(IpvsDataPlane(NODE, netns_path)) as plane:
            durations_ms = {"cold load": took_ms(lambda: plane.load(services))}
            with contextlib.closing(IpvsDataPlane(NODE, netns_path)) as again:
                durations_ms["restart"] = took_ms(lambda: again.load(services))

            def change(number: int, generation: int) -> Callable[[], object]:
                (port,) = ports(number, generation)
                return lambda: plane.update(services, {port.service: (port,)})

            turns = range(1, CHANGES + 1)
            durations_ms["one endpoint changes"] = statistics.median(took_ms(change(7, turn)) for turn in turns)
            durations_ms["a Service comes"] = statistics.median(took_ms(change(count + turn, 0)) for turn in turns)

            def remove(turn: int) -> Callable[[], object]:
                return lambda: plane.update(services, {f"bench/service-{count + turn}": ()})

            durations_ms["a Service goes"] = statistics.median(took_ms(remove(turn)) for turn in turns)
            servers = [value for value in plane.desired() if isinstance(value, VirtualServer)]
            plane.remove()
        desired = {server.key: server for server in servers}
        with Ipvs(netns_path) as ipvs:
            durations_ms["virtual servers alone"] = took_ms(lambda: ipvs.apply(plan({}, desired)))
        command = ("ip", "netns", "exec", netns_path.name, "ipvsadm")
        subprocess.run((*command, "-C"), check=True)
        text = "".join(f"{line}\n" for server in servers for line in server.lines())
        durations_ms["ipvsadm"] = took_ms(lambda: subprocess.run((*command, "-R"), input=text, text=True, check=True))
        return durations_ms
    finally:
        netns.delete(netns_path)


def runs(quick: bool) -> dict[int, list[dict[str, float]]]:
    """The runs by number of Services."""
    return {
        count: [measure(count) for _ in range(1 if quick else 3)] for count in ((1_000,) if quick else (1_000, 5_000))
    }


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run of 1,000 Services."""
    if Features().probe("ip_vs"):
        results = runs(quick)
    else:
        command = [str(ROOT / "scripts" / "uml"), "python", "-m", "bench.ipvs", _INSIDE, *["--quick"] * quick]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        results = {int(count): runs_of_count for count, runs_of_count in json.loads(lines[-1]).items()}
    rows: list[Row] = []
    for count, runs_of_count in results.items():
        for step in runs_of_count[0]:
            if step == "ipvsadm":
                continue
            peer = (("ipvsadm -R", tuple(run["ipvsadm"] for run in runs_of_count)),) if step.endswith("alone") else ()
            rows.append(Row(f"{count:,} Services: {step}", "ms", tuple(run[step] for run in runs_of_count), peer))
    return rows


if __name__ == "__main__":
    if _INSIDE in sys.argv:
        print(json.dumps(runs("--quick" in sys.argv)))
    else:
        run_alone("ipvs", __doc__, run)
