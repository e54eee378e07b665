"""Queries per second and CPU per query of the DNS server, by kind of question; load made by dnsperf.

The server runs in its own process on loopback with 150 Services, headless Services of 3, 10 and 50 endpoints.
Medians of three runs, one client thread, 100 queries outstanding. Needs the Debian package ``dnsperf``.

    python -m bench.dns [--seconds 3]
"""

import argparse
import asyncio
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from podwire.dns.config import DnsConfig
from podwire.dns.server import DnsServer
from podwire.dns.zone import Zone
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec
from podwire.runtime.clock import SystemClock

_PORT = 15354
_RUNS = 3
_SEARCH = ("default.svc.cluster.local", "svc.cluster.local", "cluster.local")


def fill(zone: Zone) -> None:
    """150 Services with an address and three headless ones."""
    for index in range(150):
        meta = ObjectMeta(name=f"web-{index}", namespace="default")
        ports = (ServicePort(name="http", port=80),)
        service = Service(metadata=meta, spec=ServiceSpec(cluster_ip=f"10.96.1.{index}", ports=ports))
        zone.set_service(f"default/web-{index}", service, 1)
    for size in (3, 10, 50):
        name = f"headless-{size}"
        meta = ObjectMeta(name=name, namespace="default")
        zone.set_service(f"default/{name}", Service(metadata=meta, spec=ServiceSpec(cluster_ip="None")), 1)
        labels = {"kubernetes.io/service-name": name}
        piece = EndpointSlice(
            metadata=ObjectMeta(name=name, namespace="default", labels=labels),
            endpoints=tuple(Endpoint(addresses=(f"10.244.{size}.{i}",)) for i in range(size)),
            ports=(EndpointPort(name="http", port=8080),),
        )
        zone.set_slice(f"default/{name}", piece, 1)
    zone.set_namespace("default", present=True)
    zone.mark_synced()


def questions() -> dict[str, list[str]]:
    """Lines for dnsperf by kind of question."""
    services = [f"web-{index}.default.svc.cluster.local A" for index in range(150)]
    walk = [
        f"www.example{index}.com.{search} {kind}"
        for index in range(20)
        for search in _SEARCH
        for kind in ("A", "AAAA")
    ]
    return {
        "Service A (150 names)": services,
        "Service AAAA, no data": [line.replace(" A", " AAAA") for line in services],
        "headless 3 A": ["headless-3.default.svc.cluster.local A"],
        "headless 10 A": ["headless-10.default.svc.cluster.local A"],
        "headless 50 A (cut)": ["headless-50.default.svc.cluster.local A"],
        "SRV": [f"_http._tcp.web-{index}.default.svc.cluster.local SRV" for index in range(150)],
        "NXDOMAIN, search path": walk,
        "NXDOMAIN, all unique": [f"missing-{index}.default.svc.cluster.local A" for index in range(200_000)],
    }


def serve(ready: Event) -> None:
    """The server's process."""

    async def body() -> None:
        server = DnsServer(DnsConfig(listen=("127.0.0.1",), port=_PORT), SystemClock())
        fill(server.zone)
        await server.open()
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(body())


def _load(path: Path, seconds: int) -> tuple[float, int, float]:
    """Queries per second, queries lost, mean latency in microseconds."""
    words = ["dnsperf", "-s", "127.0.0.1", "-p", str(_PORT), "-d", str(path), "-l", str(seconds), "-q", "100"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = {
        key: re.search(pattern, text)
        for key, pattern in (
            ("rate", r"Queries per second:\s+([\d.]+)"),
            ("lost", r"Queries lost:\s+(\d+)"),
            ("latency", r"Average Latency \(s\):\s+([\d.]+)"),
        )
    }
    rate, lost, latency = (float(match[1]) if match else 0.0 for match in found.values())
    return rate, int(lost), latency * 1e6


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Prints the table; 1 when dnsperf is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=int, default=3, help="length of one run")
    seconds = parser.parse_args().seconds
    if shutil.which("dnsperf") is None:
        print("dnsperf is not installed (Debian package dnsperf)", file=sys.stderr)
        return 1
    ready = multiprocessing.Event()
    process = multiprocessing.Process(target=serve, args=(ready,), daemon=True)
    process.start()
    ready.wait(10)
    print("| question | queries/s | server CPU, us a query | mean latency, us | lost |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind, lines in questions().items():
            path = Path(folder) / "questions"
            path.write_text("\n".join(lines) + "\n")
            rates, costs, latencies, lost = [], [], [], 0
            for _ in range(_RUNS):
                before, started = _cpu_seconds(process.pid or 0), time.monotonic()
                rate, missing, latency = _load(path, seconds)
                elapsed = time.monotonic() - started
                rates.append(rate)
                costs.append((_cpu_seconds(process.pid or 0) - before) / (rate * min(elapsed, seconds)) * 1e6)
                latencies.append(latency)
                lost += missing
            middle = statistics.median
            print(f"| {kind} | {middle(rates):,.0f} | {middle(costs):.1f} | {middle(latencies):.0f} | {lost} |")
    process.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
