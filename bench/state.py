"""`podwire state` at scale: what it costs the agent and the reader at 10, 1,000 and 10,000 Services.

    sudo .venv/bin/python bench/state.py [--services 10 1000 10000] [--endpoints 10]

One process holds the Services in a network namespace and serves its page as the agent does; other processes read it,
as text and for `--diff`. `longest gap` is the longest time for which the loop of the serving process was not free
while a page was sent, `grown` what its peak memory grew by.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from podwire.agent import comparison
from podwire.agent.holdings import Holdings
from podwire.kernel import netns
from podwire.observe.fetch import fetch
from podwire.observe.pages import Pages
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.state import share
from podwire.state.share import Share
from services import NODE, resolved


def peak_mib() -> float:
    """VmHWM; getrusage would give a reader the peak of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def read(verb: str, socket: Path, place: Path) -> None:
    """What a reader does; prints what it found and its peak memory."""
    lines = fetch(socket, "/state")
    found = lines if verb == "text" else comparison.compare(share.parse(lines), place)
    print(sum(1 for _ in found), peak_mib())


async def measure(plane: NftablesDataPlane, socket: Path, place: Path) -> dict[str, float]:
    holdings = Holdings()
    holdings.parts["proxy"] = lambda: [Share(part="proxy", tables=plane.desired())]
    server = asyncio.ensure_future(Pages(socket, {"/state": holdings.page}, lambda: asyncio.sleep(0)).serve())
    gap = 0.0

    async def watch() -> None:
        nonlocal gap
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            gap, last = max(gap, now - last), now

    found: dict[str, float] = {}
    await asyncio.sleep(0.1)
    before = peak_mib()
    for verb in ("text", "diff"):
        gap = 0.0
        watching = asyncio.ensure_future(watch())
        begun = time.perf_counter()
        command = (sys.executable, __file__, "--read", verb, str(socket), str(place))
        reader = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        output, _ = await reader.communicate()
        count, peak = output.split()
        found[f"{verb} s"] = time.perf_counter() - begun
        found["lines" if verb == "text" else "differences"] = int(count)
        found[f"{verb}: longest gap ms"] = gap * 1000
        found[f"{verb}: reader's peak MiB"] = float(peak)
        watching.cancel()
    found["grown MiB"] = peak_mib() - before
    server.cancel()
    return found


def run(count: int, endpoints: int) -> dict[str, float]:
    place, socket = Path(f"/run/netns/pwbench-{os.getpid()}"), Path(f"/run/pwbench-{os.getpid()}.sock")
    netns.create(place)
    plane = NftablesDataPlane(NODE, place)
    try:
        plane.load({f"bench/service-{number}": resolved(number, endpoints) for number in range(1, count + 1)})
        return asyncio.run(measure(plane, socket, place))
    finally:
        plane.close()
        netns.delete(place)
        socket.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, nargs="+", default=[10, 1000, 10000])
    parser.add_argument("--endpoints", type=int, default=10)
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.read[0], Path(options.read[1]), Path(options.read[2]))
        return
    columns = {count: run(count, options.endpoints) for count in options.services}
    print(f"| {options.endpoints} endpoints each | " + " | ".join(f"{count} Services" for count in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name in next(iter(columns.values())):
        print(f"| {name} | " + " | ".join(f"{column[name]:.1f}" for column in columns.values()) + " |")


if __name__ == "__main__":
    main()
