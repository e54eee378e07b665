"""Service programming: cold load, restart, one changed endpoint, at 10, 1,000 and 10,000 Services of 10 endpoints.

Each run works in a network namespace of its own. CPU is user and system time of this process, which includes the
kernel's work for it; an update is the median of 200 and includes resolving the Service again. A restart reads the
kernel and has nothing to write. Beside it nft(8) loads the same rules from the text of a file, and adds and deletes one
element of the same map. Anybody who listens to rule changes on the machine, in any namespace, makes loads dearer: the
kernel then makes a message for each element.

    sudo python -m bench.services [--quick]
"""

import gc
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench.alone import run_alone
from bench.table import Row

from podwire.kernel import netns
from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.resolve import SERVICE_NAME_LABEL, resolve
from podwire.proxy.servicemap import NodeFacts, ServicePort
from podwire.state.nft import Table

ENDPOINTS = 10
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
    entries = tuple(
        api.Endpoint(
            addresses=(address(0x0A000000, number * 256 + index + (generation if index == 0 else 0)),),
            node_name="n1" if index == 0 else "n2",
        )
        for index in range(endpoints)
    )
    labels = {SERVICE_NAME_LABEL: f"service-{number}"}
    meta = ObjectMeta(name=f"service-{number}-0", namespace="bench", labels=labels)
    return (api.EndpointSlice(metadata=meta, endpoints=entries, ports=(api.EndpointPort(name="http", port=8080),)),)


def resolved(number: int, endpoints: int, generation: int = 0) -> tuple[ServicePort, ...]:
    return resolve(service(number), pieces(number, endpoints, generation), NODE)


class Stopwatch:
    """Wall and CPU milliseconds of what runs inside."""

    def __enter__(self) -> "Stopwatch":
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *failure: object) -> None:
        self.wall = (time.perf_counter() - self.wall) * 1000
        self.cpu = (time.process_time() - self.cpu) * 1000


def in_place(count: int) -> dict[str, float]:
    """One run in a namespace that is made for it."""
    place, other = (Path(f"/run/netns/pwbench-{os.getpid()}-{letter}") for letter in "ab")
    netns.create(place)
    netns.create(other)
    try:
        found, tables = measure(place, count)
        return found | measure_nft(other, tables)
    finally:
        netns.delete(place)
        netns.delete(other)


def measure(place: Path, count: int) -> tuple[dict[str, float], tuple[Table, ...]]:
    """Milliseconds by name, and the tables that the kernel held in the end."""
    found: dict[str, float] = {}

    with Stopwatch() as watch:
        services = {f"bench/service-{number}": resolved(number, ENDPOINTS) for number in range(1, count + 1)}
    found["resolve"] = watch.wall
    gc.freeze()
    plane = NftablesDataPlane(NODE, place)
    with Stopwatch() as watch:
        plane.load(services)
    found["cold load"], found["cold load, CPU"] = watch.wall, watch.cpu
    for name, size in (("replace an endpoint", ENDPOINTS), ("add an endpoint", ENDPOINTS + 1)):
        walls = []
        for step in range(200):
            number = step * 7 % count + 1
            generation = 100 + step // count if name == "replace an endpoint" else 0
            with Stopwatch() as watch:
                plane.update({f"bench/service-{number}": resolved(number, size, generation)})
            walls.append(watch.wall)
        found[name] = statistics.median(walls)
    plane.load(services)
    tables = plane.desired()
    plane.close()
    plane = NftablesDataPlane(NODE, place)
    with Stopwatch() as watch:
        written = plane.load(services)
    assert not any(written), "a restart must not write"
    found["restart, nothing to write"] = watch.wall
    plane.close()
    return found, tables


def measure_nft(place: Path, tables: tuple[Table, ...]) -> dict[str, float]:
    """The same with nft(8): all of it from a file, then one element."""
    found: dict[str, float] = {}
    with netns.inside(place), tempfile.NamedTemporaryFile("w", suffix=".nft") as file:
        file.write("\n".join(str(table) for table in tables))
        file.flush()
        with Stopwatch() as watch:
            nft("-f", file.name)
        found["nft: cold load"] = watch.wall
        element = f"element ip {PROXY_TABLE} cluster-ips {{ 172.31.255.254 }}"
        walls = []
        for _ in range(5):
            with Stopwatch() as watch:
                nft("add", *element.split())
            walls.append(watch.wall)
            nft("delete", *element.split())
        found["nft: add an endpoint"] = statistics.median(walls)
    return found


def nft(*words: str) -> None:
    """Runs nft(8)."""
    subprocess.run(["nft", *words], check=True)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run of 10 and of 1,000 Services."""
    rows = []
    for count in (10, 1_000) if quick else (10, 1_000, 10_000):
        runs = [in_place(count) for _ in range(1 if quick else 5)]
        value = {name: tuple(one[name] for one in runs) for name in runs[0]}
        for name, values in value.items():
            if not name.startswith("nft: "):
                beside = value.get(f"nft: {name}")
                rows.append(Row(f"{count:,} Services: {name}", "ms", values, (("nft", beside),) if beside else ()))
    return rows


if __name__ == "__main__":
    run_alone("services", __doc__, run)
