"""Service programming: cold load, restart, one changed endpoint, at 10, 1,000 and 10,000 Services.

    sudo .venv/bin/python bench/services.py [--services 10 1000 10000] [--endpoints 10] [--runs 3]

Each run works in a network namespace of its own. Times are medians of wall and CPU (user + system of this process,
which includes the kernel's work for it); an update is the median of 200 and includes resolving the Service again.
A restart reads the kernel and has nothing to write. Anybody who listens to rule changes on the machine, in any
namespace, makes loads dearer: the kernel then makes a message for each element.
"""

import argparse
import gc
import os
import statistics
import time
from pathlib import Path

from podwire.kernel import netns
from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.resolve import SERVICE_NAME_LABEL, resolve
from podwire.proxy.servicemap import NodeFacts, ServicePort

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


def run(count: int, endpoints: int) -> dict[str, float]:
    place = Path(f"/run/netns/pwbench-{os.getpid()}")
    netns.create(place)
    try:
        return measure(place, count, endpoints)
    finally:
        netns.delete(place)


def measure(place: Path, count: int, endpoints: int) -> dict[str, float]:
    found: dict[str, float] = {}

    def note(name: str, watch: Stopwatch) -> None:
        found[f"{name} ms"], found[f"{name} cpu"] = watch.wall, watch.cpu

    with Stopwatch() as watch:
        services = {f"bench/service-{number}": resolved(number, endpoints) for number in range(1, count + 1)}
    note("resolve", watch)
    gc.freeze()
    plane = NftablesDataPlane(NODE, place)
    with Stopwatch() as watch:
        plane.load(services)
    note("cold load", watch)
    for name, size in (("replace endpoint", endpoints), ("add endpoint", endpoints + 1)):
        walls, cpus = [], []
        for step in range(200):
            number = step * 7 % count + 1
            generation = 100 + step // count if name == "replace endpoint" else 0
            with Stopwatch() as watch:
                plane.update({f"bench/service-{number}": resolved(number, size, generation)})
            walls.append(watch.wall)
            cpus.append(watch.cpu)
        found[f"{name} ms"], found[f"{name} cpu"] = statistics.median(walls), statistics.median(cpus)
    plane.load(services)
    plane.close()
    plane = NftablesDataPlane(NODE, place)
    with Stopwatch() as watch:
        written = plane.load(services)
    assert not any(written), "a restart must not write"
    note("restart", watch)
    plane.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, nargs="+", default=[10, 1000, 10000])
    parser.add_argument("--endpoints", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    columns = {}
    for count in options.services:
        runs = [run(count, options.endpoints) for _ in range(options.runs)]
        columns[count] = {name: statistics.median(one[name] for one in runs) for name in runs[0]}
    print(f"| {options.endpoints} endpoints each | " + " | ".join(f"{count} Services" for count in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name in next(iter(columns.values())):
        print(f"| {name} | " + " | ".join(f"{column[name]:.2f}" for column in columns.values()) + " |")


if __name__ == "__main__":
    main()
