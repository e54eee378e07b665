"""The programs of backends that take one more peer: the share of BIRD, and of the process of `udp`.

Each program runs in a namespace of its own with the state that the backend plans. It has no neighbours: what it does
for routes and packets is not measured. CPU is that of the programs themselves, by their CPU clocks.
"""

import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.machine import cpu_s

from podwire.bgp.process import BIRD, BIRDCL
from podwire.errors import KernelNotFound
from podwire.kernel import netns, udptunnel
from podwire.kernel.tun import create_persistent
from podwire.routing.plan import Plan
from podwire.runtime.program import Child
from podwire.state.udptunnel import UdpTunnel

Times = dict[str, list[float]]
_LIMIT_S = 60.0
SIZE = "size of BIRD's file"


@contextmanager
def running(child: Child, place: Path, ready: Callable[[], object]) -> Iterator[int]:
    """Runs the program of a child process while the body runs; gives the number of the process that does the work."""
    write(child)
    with netns.inside(place):
        process = subprocess.Popen(child.argv, env=dict(child.environment), stderr=subprocess.DEVNULL)
    try:
        wait(ready)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield int(children[0]) if children else process.pid
    finally:
        process.terminate()
        process.wait()


def wait(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit("a program does not get ready")
        time.sleep(0.05)


def write(child: Child) -> None:
    for path, content in child.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)


def bird(plans: list[Plan], place: Path) -> Times:
    """One session is new, one is gone: BIRD checks the file in a process of its own, then the running one reads it."""
    children = [child for plan in plans for child in plan.children]
    (file,), times = children[0].files, Times()
    control = children[0].argv[-1]

    def ask(*words: str) -> str:
        argv = (BIRDCL, "-s", control, *words)
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout

    with running(children[0], place, lambda: "up and running" in ask("show", "status")) as pid:
        for child in children[1:]:
            write(child)
            used = _children_s()
            subprocess.run((BIRD, "-p", "-c", file), check=True)
            times.setdefault("BIRD checks the file, CPU", []).append((_children_s() - used) * 1e3)
            used = cpu_s(pid)
            if "Reconfigur" not in (answer := ask("configure")):
                raise SystemExit(f"BIRD does not read the file: {answer}")
            wait(lambda: "up and running" in ask("show", "status"))
            times.setdefault("BIRD reads the file, CPU", []).append((cpu_s(pid) - used) * 1e3)
            times.setdefault(SIZE, []).append(len(child.files[file]) / 1024)
    return times


def udp(plans: list[Plan], place: Path) -> Times:
    """One peer is new, one is gone: the agent compares its peers with those of the process, and sends what differs."""
    tunnels = [value for plan in plans for value in plan.program_values if isinstance(value, UdpTunnel)]
    (child,), times = plans[0].children, Times()
    create_persistent(tunnels[0].device, place)
    Path(child.argv[-1]).parent.mkdir(parents=True, exist_ok=True)

    def apply(tunnel: UdpTunnel) -> bool:
        try:
            udptunnel.apply(place, tunnel)
        except KernelNotFound:
            return False
        return True

    with running(child, place, lambda: apply(tunnels[0])) as pid:
        for tunnel in tunnels[1:]:
            own, used = time.process_time(), cpu_s(pid)
            udptunnel.apply(place, tunnel)
            times.setdefault("told to the process, CPU of the agent", []).append((time.process_time() - own) * 1e3)
            times.setdefault("told to the process, CPU of the process", []).append((cpu_s(pid) - used) * 1e3)
            own = time.process_time()
            if udptunnel.apply(place, tunnel):
                raise SystemExit("the process does not hold its peers")
            times.setdefault("compared with the process, CPU of the agent", []).append(
                (time.process_time() - own) * 1e3
            )
    return times


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
