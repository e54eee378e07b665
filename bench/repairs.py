"""Rules of Services that another program takes away: what it costs to write them again, by the number of Services.

Each number of Services, of two endpoints each, works in a process and a network namespace of its own. Another socket
takes something away: all rules of the chain that every connection passes, three elements of the map of Services, all
its elements, all endpoints, the whole table. What is timed is the data plane from reading the kernel's notifications
until the kernel has committed what was missing; an agent that waits begins as soon as the kernel notifies. CPU is user
and system time of this process. "Compare" reads everything afterwards. With more than 2,000 Services, a deleted table
is written by that comparison. Beside it, in turns, nft(8) replaces the same table by the text of a file, while this
process does not listen to changes.

In mode iptables (:mod:`bench.iptables_repairs`) the program iptables flushes chains and tables; what is timed begins
with its end and contains the notice, but not the comparison of everything that follows.

    sudo python -m bench.repairs [--quick]
"""

import gc
import multiprocessing
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench import iptables_repairs
from bench.alone import run_alone
from bench.services import NODE, resolved
from bench.table import Row

from podwire.kernel import netns
from podwire.kernel.nft import Nft
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.dataplanes.nftables.layout import TABLE
from podwire.state.nft import Set, Table
from podwire.state.nft_diff import DeleteElements, FlushChain, Operation, Transaction, removal

COUNTS = (10, 1_000, 10_000)
IPTABLES_COUNTS = (10, 100, 1_000)
AIMED = 1_000
AIM_MS = 20.0
PEER = "nft -f"
LOST = ("chain", "3 elements", "map of Services", "map of endpoints", "table")
Times = dict[str, list[float]]


def taking(subject: str, table: Table) -> tuple[Operation, ...]:
    """The operations of a program that takes something of the table away."""
    if subject == "table":
        return removal(table.family, TABLE).operations
    if subject == "chain":
        return (FlushChain("dispatch"),)
    declared = table.set("endpoints" if subject == "map of endpoints" else "services")
    return (_deletion(declared, 3 if subject == "3 elements" else None),)


def _deletion(declared: Set, most: int | None) -> DeleteElements:
    return DeleteElements(declared.without_elements(), dict(list(declared.elements.items())[:most]))


def timed(run: Callable[[], object], clock: Callable[[], float]) -> tuple[float, float]:
    """Wall and CPU milliseconds of a call."""
    wall, cpu = time.perf_counter(), clock()
    run()
    return (time.perf_counter() - wall) * 1000, (clock() - cpu) * 1000


def children_s() -> float:
    """CPU time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_place(count: int, turns: int) -> Times:
    """Milliseconds of each turn by name, in namespaces that are made for it."""
    netns_path, other = (Path(f"/run/netns/pwbench-{os.getpid()}-{letter}") for letter in "ab")
    netns.create(netns_path)
    netns.create(other)
    try:
        return measure(netns_path, other, count, turns)
    finally:
        netns.delete(netns_path)
        netns.delete(other)


def measure(netns_path: Path, other: Path, count: int, turns: int) -> Times:
    """Takes each thing away in turns, with nft's replacement of the table between."""
    services = {f"bench/service-{number}": resolved(number, 2) for number in range(1, count + 1)}
    plane = NftablesDataPlane(NODE, netns_path)
    plane.load(services)
    table = next(table for table in plane.desired() if table.family == "ip")
    gc.collect()
    gc.freeze()
    result: Times = {}

    def note(name: str, times: tuple[float, float]) -> None:
        for suffix, value in zip(("", ", CPU"), times, strict=True):
            result.setdefault(name + suffix, []).append(value)

    def restore() -> None:
        if not plane.disturbed() or not any(plane.restore()):
            plane.heal(services)

    with Nft(netns_path) as foreign, tempfile.NamedTemporaryFile("w", suffix=".nft") as file:
        file.write(f"table ip {TABLE}\ndelete table ip {TABLE}\n{table}\n")
        file.flush()
        for _ in range(turns):
            for subject in LOST:
                foreign.commit(Transaction("ip", TABLE, taking(subject, table)))
                note(subject, timed(restore, time.process_time))
                note("compare", timed(lambda: plane.heal(services), time.process_time))
            with plane._tables.notifications_off(), netns.inside(other):
                note(PEER, timed(lambda: subprocess.run(["nft", "-f", file.name], check=True), children_s))
    if any(plane.heal(services)):
        raise SystemExit("a repair left a difference")
    plane.close()
    return result


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` fewer turns, and without the largest number."""
    rows = []
    context = multiprocessing.get_context("spawn")
    for count in COUNTS[:2] if quick else COUNTS:
        turns = 7 if quick else 15 if count > AIMED else 31
        with ProcessPoolExecutor(1, context) as pool:
            result = pool.submit(in_place, count, turns).result()
        for subject in (*LOST, "compare"):
            for suffix in ("", ", CPU"):
                aim = AIM_MS if count <= AIMED and suffix and subject != "compare" else None
                name = f"{count:,} Services: {subject}{' taken away' if subject != 'compare' else ''}{suffix}"
                rows.append(
                    Row(name, "ms", tuple(result[subject + suffix]), ((PEER, tuple(result[PEER + suffix])),), aim)
                )
    for count in IPTABLES_COUNTS:
        rows += iptables_repairs.rows(count, 5 if quick else 15)
    return rows


if __name__ == "__main__":
    run_alone("repairs", __doc__, run)
