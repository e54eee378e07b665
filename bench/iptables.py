"""The iptables data plane: cold load, restart, one change, at 100, 1,000, 5,000 and 10,000 Services of 2 endpoints.

Each run works in a network namespace of its own, with both kinds of iptables. CPU is user and system time of this
process and of the programs that it starts, for both families; a change is the median of five.

    sudo python -m bench.iptables [--quick]
"""

import contextlib
import os
import resource
import statistics
from collections.abc import Callable
from pathlib import Path

from bench.alone import run_alone
from bench.services import NODE, address
from bench.table import Row

from podwire.kernel import netns
from podwire.kernel.iptables import Kind, find
from podwire.proxy.dataplanes.iptables.dataplane import IptablesDataPlane
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort

KINDS: tuple[Kind, ...] = ("nft", "legacy")
CHANGES = 5


def ports(number: int, generation: int = 0) -> tuple[ResolvedPort, ...]:
    """A Service with two endpoints, one of them of this generation."""
    ends = (
        ResolvedEndpoint(address(0x0A000000, 4 * number), 8080),
        ResolvedEndpoint(address(0x0A100000, number + generation), 8080),
    )
    port = ResolvedPort(
        service=f"bench/service-{number}",
        port_name="http",
        protocol="tcp",
        family="ip",
        port=80,
        cluster_ip=address(0xAC100000, number),
        cluster_endpoints=ends,
        has_endpoints=True,
    )
    return (port,)


def spent_ms(work: Callable[..., object]) -> float:
    """CPU that the work takes here and in the programs it starts."""

    def now() -> float:
        usages = (resource.getrusage(user) for user in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages) * 1000

    before = now()
    work()
    return now() - before


def measure(kind: Kind, count: int) -> dict[str, float]:
    """CPU in milliseconds of each step, in a fresh namespace."""
    programs = find(kind)
    if programs is None:
        raise SystemExit(f"the programs of iptables-{kind} are not installed")
    netns_path = Path(f"/run/netns/podwire-bench-iptables-{os.getpid()}")
    netns.create(netns_path)
    try:
        services = {f"bench/service-{number}": ports(number) for number in range(count)}
        with contextlib.closing(IptablesDataPlane(NODE, netns_path, programs)) as plane:
            spent = {"cold load": spent_ms(lambda: plane.load(services))}
            with contextlib.closing(IptablesDataPlane(NODE, netns_path, programs)) as again:
                spent["restart"] = spent_ms(lambda: again.load(services))

            def change(number: int, generation: int) -> Callable[[], object]:
                (port,) = ports(number, generation)
                return lambda: plane.update(services, {port.service: (port,)})

            turns = range(1, CHANGES + 1)
            spent["one endpoint changes"] = statistics.median(spent_ms(change(7, turn)) for turn in turns)
            spent["a Service comes"] = statistics.median(spent_ms(change(count + turn, 0)) for turn in turns)

            def remove(turn: int) -> Callable[[], object]:
                return lambda: plane.update(services, {f"bench/service-{count + turn}": ()})

            spent["a Service goes"] = statistics.median(spent_ms(remove(turn)) for turn in turns)
        return spent
    finally:
        netns.delete(netns_path)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run of 100 and of 1,000 Services."""
    rows: list[Row] = []
    for count in (100, 1_000) if quick else (100, 1_000, 5_000, 10_000):
        for kind in KINDS:
            runs = [measure(kind, count) for _ in range(1 if quick else 3)]
            rows += [
                Row(f"{count:,} Services, {kind}: {subject}", "ms", tuple(item[subject] for item in runs))
                for subject in runs[0]
            ]
    return rows


if __name__ == "__main__":
    run_alone("iptables", __doc__, run)
