"""Service programming by nftables: cold load, restart, one changed endpoint, by the number of Services and endpoints.

Each run works in a process and a network namespace of its own. CPU is user and system time of this process, which
includes the kernel's work for it; a change is the median of 200 (50 with many endpoints, and of Services that come and
go) and includes resolving the Service again. A restart reads the kernel and has nothing to write. "Memory" is what the
process has in the end more than before it made the objects, resolved Services and rules. Beside it nft(8) loads the
same rules from the text of a file, and adds and deletes one element of the same map. Anybody who listens to rule
changes on the machine, in any namespace, makes loads dearer: the kernel then makes a message for each element.

    sudo python -m bench.services [--quick]
"""

import gc
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.alone import run_alone
from bench.machine import resident_mb
from bench.table import Row

from podwire.kernel import netns
from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.model.service import SERVICE_NAME_LABEL
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.resolve import resolve
from podwire.proxy.servicemap import NodeFacts, ResolvedPort
from podwire.runtime import memory
from podwire.state.nft import Table

SHAPES = ((10, 2), (1_000, 2), (10_000, 2), (30_000, 2), (1, 5_000), (5_000, 50))
"""Services, and endpoints of each."""
COLD_S = {(10_000, 2): 1.5, (30_000, 2): 5.0}
"""The most that a cold load may take."""
ENDPOINTS = 10
SLICE = 100
LARGE = 50_000
"""From so many endpoints on there are fewer runs."""
PROXY_TABLE = "podwire-proxy"

NODE = NodeFacts(name="n1", addresses=("192.168.99.1",), pod_cidrs=("10.0.0.0/9",), service_cidrs=("172.16.0.0/12",))


def address(prefix: int, number: int) -> str:
    return ".".join(str(byte) for byte in (prefix + number).to_bytes(4, "big"))


def service(number: int) -> api.Service:
    spec = api.ServiceSpec(
        type="NodePort" if number % 10 == 0 else "ClusterIP",
        cluster_ip=address(0xAC100000, number),
        cluster_ips=(address(0xAC100000, number),),
        ports=(api.ServicePort(name="http", port=80, node_port=20000 + number if number % 10 == 0 else 0),),
    )
    return api.Service(metadata=ObjectMeta(name=f"service-{number}", namespace="bench"), spec=spec)


def pieces(number: int, endpoints: int, generation: int = 0) -> tuple[api.EndpointSlice, ...]:
    """The slices of a Service, the first endpoint of this generation."""
    entries = tuple(
        api.Endpoint(
            addresses=(address(0x0A000000, number * 256 + index + (generation if index == 0 else 0)),),
            node_name="n1" if index == 0 else "n2",
        )
        for index in range(endpoints)
    )
    labels, ports = {SERVICE_NAME_LABEL: f"service-{number}"}, (api.EndpointPort(name="http", port=8080),)
    return tuple(
        api.EndpointSlice(
            metadata=ObjectMeta(name=f"service-{number}-{first}", namespace="bench", labels=labels),
            endpoints=entries[first : first + SLICE],
            ports=ports,
        )
        for first in range(0, endpoints, SLICE)
    )


def resolved(number: int, endpoints: int, generation: int = 0) -> tuple[ResolvedPort, ...]:
    return resolve(service(number), pieces(number, endpoints, generation), NODE)


class Stopwatch:
    """Wall and CPU milliseconds of what runs inside."""

    def __enter__(self) -> "Stopwatch":
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *failure: object) -> None:
        self.wall = (time.perf_counter() - self.wall) * 1000
        self.cpu = (time.process_time() - self.cpu) * 1000


def in_place(shape: tuple[int, int]) -> dict[str, float]:
    """One run in a namespace that is made for it."""
    netns_path, other = (Path(f"/run/netns/pwbench-{os.getpid()}-{letter}") for letter in "ab")
    netns.create(netns_path)
    netns.create(other)
    try:
        result, tables = measure(netns_path, *shape)
        return result | measure_nft(other, tables)
    finally:
        netns.delete(netns_path)
        netns.delete(other)


def measure(netns_path: Path, count: int, endpoints: int) -> tuple[dict[str, float], tuple[Table, ...]]:
    """Milliseconds by name, and the tables that the kernel held in the end."""
    result: dict[str, float] = {}
    before, _ = resident_mb(os.getpid())
    with Stopwatch() as watch:
        services = {f"bench/service-{number}": resolved(number, endpoints) for number in range(1, count + 1)}
    result["resolve"] = watch.wall
    gc.freeze()
    plane = NftablesDataPlane(NODE, netns_path)
    with Stopwatch() as watch:
        plane.load(services)
    result["cold load"], result["cold load, CPU"] = watch.wall, watch.cpu
    turns = 200 if endpoints < SLICE else 50
    for name in ("replace an endpoint", "add or remove an endpoint"):
        walls, touched = [], set()
        for step in range(turns):
            number, round_ = step * 7 % count + 1, step // count
            size, generation = (endpoints, 100 + round_) if name[0] == "r" else (endpoints + 1 - round_ % 2, 0)
            touched.add(f"bench/service-{number}")
            with Stopwatch() as watch:
                plane.update(services, {f"bench/service-{number}": resolved(number, size, generation)})
            walls.append(watch.wall)
        result[name] = statistics.median(walls)
        plane.update(services, {key: services[key] for key in touched})
    memory.settle()
    result["memory"] = max(0.0, resident_mb(os.getpid())[0] - before)
    for name in ("a Service comes", "a Service goes"):
        walls = []
        for number in range(count + 1, count + 51):
            with Stopwatch() as watch:
                ports = resolved(number, endpoints) if name == "a Service comes" else ()
                plane.update(services, {f"bench/service-{number}": ports})
            walls.append(watch.wall)
        result[name] = statistics.median(walls)
    plane.load(services)
    tables = plane.desired()
    plane.close()
    plane = NftablesDataPlane(NODE, netns_path)
    with Stopwatch() as watch:
        written = plane.load(services)
    assert not any(written), "a restart must not write"
    result["restart, nothing to write"] = watch.wall
    plane.close()
    return result, tables


def measure_nft(netns_path: Path, tables: tuple[Table, ...]) -> dict[str, float]:
    """The same with nft(8): all of it from a file, then one element."""
    result: dict[str, float] = {}
    with netns.inside(netns_path), tempfile.NamedTemporaryFile("w", suffix=".nft") as file:
        file.write("\n".join(str(table) for table in tables))
        file.flush()
        with Stopwatch() as watch:
            nft("-f", file.name)
        result["nft: cold load"] = watch.wall
        element = f"element ip {PROXY_TABLE} cluster-ips {{ 172.31.255.254 }}"
        walls = []
        for _ in range(5):
            with Stopwatch() as watch:
                nft("add", *element.split())
            walls.append(watch.wall)
            nft("delete", *element.split())
        result["nft: add or remove an endpoint"] = statistics.median(walls)
    return result


def nft(*arguments: str) -> None:
    """Runs nft(8)."""
    subprocess.run(["nft", *arguments], check=True)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run of 10 and of 1,000 Services."""
    rows = []
    context = multiprocessing.get_context("spawn")
    for shape in SHAPES[:2] if quick else SHAPES:
        runs = 1 if quick else 3 if shape[0] * shape[1] < LARGE else 2
        with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
            item = list(pool.map(in_place, [shape] * runs))
        value = {name: tuple(entry[name] for entry in item) for name in item[0]}
        for name, values in value.items():
            if name.startswith("nft: "):
                continue
            beside = value.get(f"nft: {name}")
            subject = f"{shape[0]:,} x {shape[1]:,}: {name}"
            aim = COLD_S.get(shape, 0) * 1000 if name == "cold load" else 0
            unit = "MB" if name == "memory" else "ms"
            rows.append(Row(subject, unit, values, (("nft", beside),) if beside else (), aim or None))
    return rows


if __name__ == "__main__":
    run_alone("services", __doc__, run)
