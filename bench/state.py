"""`podwire state` at scale: what it costs the agent and the reader at 10, 1,000 and 10,000 Services of 10 endpoints.

One process holds the Services in a network namespace and serves its page as the agent does; other processes read it,
as text and for `--diff`. The longest pause is the longest time for which the loop of the serving process was not free
while a page was sent; "grown" is what its peak memory grew by.

    sudo python -m bench.state [--quick]
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.alone import ROOT, run_alone
from bench.services import ENDPOINTS, NODE, resolved
from bench.table import Row

from podwire.agent.statepage import StatePage
from podwire.http.fetch import fetch
from podwire.http.pages import serve_pages
from podwire.kernel import comparison, netns
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet
from podwire.state import share
from podwire.state.share import Share


def peak_mib() -> float:
    """VmHWM; getrusage would give a reader the peak of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def read(verb: str, socket: Path, netns_path: Path) -> None:
    """What a reader does; prints what it found and its peak memory."""
    lines = fetch(socket, "/state")
    result = lines if verb == "text" else comparison.compare(share.parse(lines), netns_path)
    print(sum(1 for _ in result), peak_mib())


async def measure(plane: NftablesDataPlane, socket: Path, netns_path: Path) -> dict[str, float]:
    state_page = StatePage()
    state_page.parts["proxy"] = lambda: [Share(part="proxy", desired=plane.desired())]
    tasks = TaskSet(lambda name, failure: None)
    server = asyncio.ensure_future(serve_pages(socket, {"/state": state_page.page}, tasks, SystemClock()))
    gap = 0.0

    async def watch() -> None:
        nonlocal gap
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            gap, last = max(gap, now - last), now

    result: dict[str, float] = {}
    await asyncio.sleep(0.1)
    before = peak_mib()
    for verb in ("text", "diff"):
        gap = 0.0
        watching = asyncio.ensure_future(watch())
        begun = time.perf_counter()
        command = (sys.executable, "-m", "bench.state", "--read", verb, str(socket), str(netns_path))
        reader = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
        output, _ = await reader.communicate()
        count, peak = output.split()
        result[f"{verb} s"] = time.perf_counter() - begun
        result["lines" if verb == "text" else "differences"] = int(count)
        result[f"{verb}: longest gap ms"] = gap * 1000
        result[f"{verb}: reader's peak MiB"] = float(peak)
        watching.cancel()
    result["grown MiB"] = peak_mib() - before
    server.cancel()
    return result


def in_place(count: int) -> dict[str, float]:
    """One run with its own namespace."""
    netns_path, socket = Path(f"/run/netns/pwbench-{os.getpid()}"), Path(f"/run/pwbench-{os.getpid()}.sock")
    netns.create(netns_path)
    plane = NftablesDataPlane(NODE, netns_path)
    try:
        plane.load({f"bench/service-{number}": resolved(number, ENDPOINTS) for number in range(1, count + 1)})
        return asyncio.run(measure(plane, socket, netns_path))
    finally:
        plane.close()
        netns.delete(netns_path)
        socket.unlink(missing_ok=True)


UNITS = {
    "text s": ("text, in all", "s"),
    "lines": ("lines", ""),
    "text: longest gap ms": ("text, longest pause of the agent", "ms"),
    "text: reader's peak MiB": ("text, peak memory of the reader", "MB"),
    "diff s": ("--diff, in all", "s"),
    "differences": ("differences", ""),
    "diff: longest gap ms": ("--diff, longest pause of the agent", "ms"),
    "diff: reader's peak MiB": ("--diff, peak memory of the reader", "MB"),
    "grown MiB": ("grown memory of the agent", "MB"),
}


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run of 10 and of 1,000 Services."""
    rows = []
    for count in (10, 1_000) if quick else (10, 1_000, 10_000):
        runs = [in_place(count) for _ in range(1 if quick else 3)]
        for name, (subject, unit) in UNITS.items():
            rows.append(Row(f"{count:,} Services: {subject}", unit, tuple(item[name] for item in runs)))
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        read(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        run_alone("state", __doc__, run)
