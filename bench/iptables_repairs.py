"""Rules of Services in iptables that another program takes away: what it costs to write them again.

Each number of Services, of two endpoints each, works in a network namespace of its own, with each kind of iptables. The
program iptables deletes one rule of the chain that every connection passes, flushes this chain, the chain of one
Service, the kernel's chain that leads there, the table of translations, and the table of filters. What is timed is from
the end of that program, through the notice of it, until all that was lost is in the kernel again; the comparison of
everything that follows is not in it. CPU is user and system time of this process and of the programs that it starts.
Beside it, in turns: the kernel's own tool, iptables-restore, with the text of what is missing after the same loss. The
aim of 20 ms is for rules and chains. With the kind legacy it is for up to 100 Services: the kernel itself takes longer
to read and to replace the table of 1,000 (docs/adr/0026).
"""

import os
import resource
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.services import NODE, resolved
from bench.table import Row

from podwire.kernel import netns
from podwire.kernel.iptables import Iptables, Kind, find
from podwire.proxy.dataplanes.iptables.dataplane import IptablesDataPlane
from podwire.proxy.dataplanes.iptables.restore import split_repair
from podwire.proxy.servicemap import ServiceMap
from podwire.state.chain_marks import PROXY_IPTABLES
from podwire.state.iptables import parse_save
from podwire.state.iptables_diff import repair

AIM_MS = 20.0
KINDS: tuple[Kind, ...] = ("nft", "legacy")
PEER = "iptables-restore"
_SERVICE = "the chain of a Service"
LOST = {
    "-t nat -D KUBE-SERVICES 1": ("-t", "nat", "-D", "KUBE-SERVICES", "1"),
    _SERVICE: ("-t", "nat", "-F"),
    "-t nat -F KUBE-SERVICES": ("-t", "nat", "-F", "KUBE-SERVICES"),
    "-t nat -F PREROUTING": ("-t", "nat", "-F", "PREROUTING"),
    "-t nat -F": ("-t", "nat", "-F"),
    "-F": ("-F",),
}
_REST_S = 0.3
"""Repairs that follow one another wait for each other; this pause is longer than the first wait."""
_KNOWN_S = 1.5
"""After this time without changes the data plane has the rules of legacy tables that it puts back."""
_WHOLE = ("-t nat -F", "-F")


def rows(count: int, turns: int) -> Iterator[Row]:
    """The rows for a number of Services."""
    services = {f"bench/service-{number}": resolved(number, 2) for number in range(1, count + 1)}
    for kind in KINDS:
        netns_path = Path(f"/run/netns/pwbench-{os.getpid()}-{kind}")
        netns.create(netns_path)
        try:
            programs = find(kind)
            with closing(IptablesDataPlane(NODE, netns_path, programs)) as plane:
                plane.load(services)
                _wait(plane)
                yield from _measured(plane, netns_path, services, turns)
        finally:
            netns.delete(netns_path)


def _measured(plane: IptablesDataPlane, netns_path: Path, services: ServiceMap, turns: int) -> Iterator[Row]:
    for name, arguments in LOST.items():
        own, tool = _Times(), _Times()
        if name == _SERVICE:
            chains = next(ruleset.chains for ruleset in plane.desired() if ruleset.table == "nat")
            arguments = (*arguments, next(chain for chain in chains if chain.startswith("KUBE-SVC-")))
        for _ in range(turns):
            _take_away(plane, netns_path, arguments)
            with own.measured():
                while not plane.disturbed():
                    select.select([plane.fileno()], [], [])
                plane.repair()
            _settle(plane, services, name)
            _take_away(plane, netns_path, arguments)
            texts = _missing(plane, netns_path)
            with netns.inside(netns_path), tool.measured():
                for text in texts:
                    subprocess.run([plane.programs.restore["ip"], "--noflush"], input=text.encode(), check=True)
            _settle(plane, services, name)
        title = f"{len(services):,} Services, iptables ({plane.programs.kind}): {name}"
        slow = plane.programs.kind == "legacy" and len(services) >= 1_000
        aim = None if slow or name in _WHOLE else AIM_MS
        yield Row(title, "ms", tuple(own.walls_ms), ((PEER, tuple(tool.walls_ms)),), aim)
        yield Row(f"{title}, CPU", "ms", tuple(own.cpus_ms), ((PEER, tuple(tool.cpus_ms)),), aim)


def _wait(plane: IptablesDataPlane) -> None:
    """Waits as an agent does, without changes by others."""
    until = time.monotonic() + _KNOWN_S
    while time.monotonic() < until:
        select.select([plane.fileno()], [], [], 0.1)
        plane.disturbed()


class _Times:
    """Wall and CPU milliseconds of each turn."""

    def __init__(self) -> None:
        self.walls_ms: list[float] = []
        self.cpus_ms: list[float] = []

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measures a block."""
        wall, cpu = time.perf_counter(), _cpu_ms()
        yield
        self.walls_ms.append((time.perf_counter() - wall) * 1000)
        self.cpus_ms.append(_cpu_ms() - cpu)


def _take_away(plane: IptablesDataPlane, netns_path: Path, arguments: tuple[str, ...]) -> None:
    with netns.inside(netns_path):
        subprocess.run([f"iptables-{plane.programs.kind}", *arguments], check=True)


def _missing(plane: IptablesDataPlane, netns_path: Path) -> tuple[str, ...]:
    """What is missing of IPv4, as texts for iptables-restore."""
    with Iptables("ip", plane.programs, netns_path) as tool:
        saved = parse_save(tool.save())
    desired = tuple(ruleset for ruleset in plane.desired() if ruleset.family == "ip")
    if plane.programs.kind == "nft":
        return tuple(split_repair(saved, desired))
    return (repair(saved, desired, PROXY_IPTABLES),)


def _settle(plane: IptablesDataPlane, services: ServiceMap, name: str) -> None:
    """Compares everything, and forgets the notices so far."""
    plane.disturbed()
    if any(plane.load(services)):
        raise SystemExit(f"{name}: a repair left a difference")
    plane.disturbed()
    time.sleep(_REST_S)


def _cpu_ms() -> float:
    usages = (resource.getrusage(user) for user in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) * 1000
