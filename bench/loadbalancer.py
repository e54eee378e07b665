"""Addresses for Services of type LoadBalancer, and how long nobody answers for one.

Allocation is that of the pure allocator, with addresses from a /16; then with the whole controller in a local cluster,
from the moment when the pool exists until every Service shows its address (node ports are off). The choice of nodes is
that of each agent, for all addresses at once, first and when one node has died. An outage is the time in which a
connection from this machine to the address fails: the link of the node that answers is cut, or the node gets the label
that excludes it. The endpoints are on other nodes, since connections to pods of a node that is cut fail in any case.

    sudo python -m bench.loadbalancer [--quick]
"""

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from bench.alone import run_alone
from bench.table import Row

from podwire.kube.client import Client
from podwire.kube.config import load
from podwire.kube.resources import IPADDRESSPOOLS, LEASES, SERVICES
from podwire.loadbalancer.advertisements import L2Scope
from podwire.loadbalancer.allocation import Allocator
from podwire.loadbalancer.election import Elector, L2Facts, Serving
from podwire.loadbalancer.pools import BalancerPool, BalancerPools
from podwire.loadbalancer.ranges import parse_range
from podwire.loadbalancer.request import AddressRequest
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.model.service import LoadBalancerIngress, LoadBalancerStatus, Service, ServiceSpec, ServiceStatus
from podwire.runtime.clock import SystemClock

PODWIRE = str(Path(sys.executable).with_name("podwire"))
NAME = "bench-balancer"
NODES = ("node-1", "node-2", "node-3")
EXCLUDE = "node.kubernetes.io/exclude-from-external-load-balancers"
POOLS = BalancerPools({"p": BalancerPool(name="p", ranges=(parse_range("p", "", "10.64.0.0/16"),))})


def seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def allocate(count: int) -> list[Row]:
    """The pure allocator: all Services, then one more."""
    allocator = Allocator()
    allocator.configure(POOLS, {})
    requests = [AddressRequest(key=f"shop/s{n}", namespace="shop", families=(4,)) for n in range(count + 1)]

    def take(request: AddressRequest) -> None:
        allocator.hold(request.key, allocator.allocate(request).addresses, request)

    def take_all() -> None:
        for request in requests[:count]:
            take(request)

    whole = seconds(take_all)
    single = seconds(lambda: take(requests[count]))
    return [
        Row(f"allocate {count:,} Services", "s", (whole,), aim=5.0),
        Row(f"one more at {count:,} Services", "us", (single * 1e6,)),
    ]


def elect(count: int, node_count: int) -> list[Row]:
    """The choice of nodes for all addresses."""
    names = [f"node-{number}" for number in range(node_count)]
    services = {
        f"shop/s{n}": Service(
            metadata=ObjectMeta(name=f"s{n}", namespace="shop", annotations={"metallb.io/ip-allocated-from-pool": "p"}),
            spec=ServiceSpec(type="LoadBalancer"),
            status=ServiceStatus(
                load_balancer=LoadBalancerStatus((LoadBalancerIngress(ip=str(ip_address("10.64.0.0") + n)),))
            ),
        )
        for n in range(count)
    }
    elector, serving = Elector(), Serving(frozenset(names), anywhere=True)

    def choose(alive: list[str]) -> None:
        elector.choose(
            L2Facts(
                services=services,
                endpoints=dict.fromkeys(services, serving),
                pools=POOLS,
                scopes={"all": L2Scope(name="all")},
                nodes={name: Node(metadata=ObjectMeta(name=name)) for name in names},
                alive=frozenset(alive),
            )
        )

    subject = f"{count:,} addresses, {node_count} nodes: choose"
    return [
        Row(subject, "s", (seconds(lambda: choose(names)),)),
        Row(f"{subject} again, nothing has changed", "s", (seconds(lambda: choose(names)),)),
        Row(f"{subject} when a node has died", "s", (seconds(lambda: choose(names[1:])),)),
    ]


class Outage(threading.Thread):
    """Connects to an address again and again; ``worst`` is the longest time between two that succeeded."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address, self._ends = address, threading.Event()
        self.worst = 0.0

    def run(self) -> None:
        last = time.monotonic()
        while not self._ends.wait(0.01):
            with socket.socket() as client:
                client.settimeout(0.25)
                try:
                    client.connect((self._address, 80))
                except OSError:
                    continue
            now = time.monotonic()
            self.worst = max(self.worst, now - last)
            last = now

    def end(self) -> float:
        self._ends.set()
        self.join()
        return self.worst


class Local:
    """A local cluster and its API."""

    def __init__(self) -> None:
        self.podwire("up", "--name", NAME, "--nodes", "3")
        self.kubeconfig = self.podwire("kubeconfig", "--name", NAME).strip()

    def podwire(self, *arguments: str) -> str:
        return subprocess.run([PODWIRE, *arguments], check=True, capture_output=True, text=True).stdout

    def run(self, work: "Callable[[Client], Any]") -> Any:
        async def body() -> Any:
            client = Client(load(self.kubeconfig, os.environ), SystemClock())
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(body())

    def until(self, work: "Callable[[Client], Any]") -> Any:
        """The first true answer within a minute."""

        async def body(client: Client) -> Any:
            async with asyncio.timeout(60):
                while not (answer := await work(client)):
                    await client.clock.sleep(0.05)
                return answer

        return self.run(body)

    def kubectl(self, *arguments: str, text: str = "") -> None:
        command = ["kubectl", "--kubeconfig", self.kubeconfig, *arguments]
        subprocess.run(command, input=text, check=True, capture_output=True, text=True)


def service(name: str, **spec: Any) -> dict[str, Any]:
    body = {"type": "LoadBalancer", "ports": [{"port": 80}], "allocateLoadBalancerNodePorts": False} | spec
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body}


def all_shown(local: Local, count: int) -> float:
    """Seconds until every Service of a new pool shows its address."""
    pool = {
        "apiVersion": "metallb.io/v1beta1",
        "kind": "IPAddressPool",
        "metadata": {"name": "large"},
        "spec": {"addresses": ["10.64.0.0/16"], "autoAssign": True},
    }

    async def work(client: Client) -> float:
        await client.delete(IPADDRESSPOOLS, "fabric", "metallb-system")
        for start in range(0, count, 100):
            await asyncio.gather(
                *(client.create(SERVICES, service(f"s{n}"), "default") for n in range(start, start + 100))
            )
        begun = time.perf_counter()
        await client.create(IPADDRESSPOOLS, pool, "metallb-system")
        for _ in range(600):
            await client.clock.sleep(0.2)
            items = (await client.list(SERVICES, "default")).items
            if sum(1 for item in items if item.status.load_balancer.ingress) >= count:
                return time.perf_counter() - begun
        raise TimeoutError("not every Service has an address")

    return float(local.run(work))


def outages(local: Local, runs: int) -> list[Row]:
    """Outages of one address by the cut of a link, and by a label."""
    local.kubectl("apply", "-f", "-", text=json.dumps(service("web", selector={"app": "web"})))

    async def shown(client: Client) -> str:
        answer = await client.get(SERVICES, "web", "default")
        ingress = answer["status"].get("loadBalancer", {}).get("ingress", [])
        return str(ingress[0]["ip"]) if ingress else ""

    address = str(local.until(shown))
    # The node that the election chooses; the endpoint is on another one.
    first, second, _ = sorted(NODES, key=lambda name: hashlib.sha256(f"{name}#{address}".encode()).digest())
    container = {"name": "main", "image": "nginx", "ports": [{"containerPort": 80}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"nodeName": second, "containers": [container]},
    }
    local.kubectl("apply", "-f", "-", text=json.dumps(pod))
    local.kubectl("wait", "pod", "web", "--for=condition=Ready", "--timeout=60s")
    cuts: list[float] = []
    labels: list[float] = []
    for _ in range(runs):
        local.until(lambda client: _is_holder(client, address, first))
        with outage(cuts, address):
            local.podwire("lab", "cut", "--name", NAME, first)
            local.until(lambda client: _has_moved(client, address, first))
        local.podwire("lab", "heal", "--name", NAME)
        local.until(lambda client: _is_holder(client, address, first))
        with outage(labels, address):
            local.kubectl("label", "node", first, f"{EXCLUDE}=")
            local.until(lambda client: _has_moved(client, address, first))
        local.kubectl("label", "node", first, f"{EXCLUDE}-")
    return [
        Row("outage when the link of the node is cut", "s", tuple(cuts), aim=5.0),
        Row("outage when the node is excluded", "s", tuple(labels), aim=1.0),
    ]


@contextmanager
def outage(values: list[float], address: str) -> Iterator[None]:
    """Measures the longest time without a connection, from some seconds before the block to one after it."""
    time.sleep(3)
    thread = Outage(address)
    thread.start()
    yield
    time.sleep(1)
    values.append(thread.end())


async def _holder_now(client: Client, address: str) -> str:
    leases = (await client.list(LEASES, "kube-system", label_selector="podwire.io/l2-address")).items
    names = {item.metadata.name: item.spec.holder_identity or "" for item in leases}
    return names.get(f"podwire-l2-address-{address}", "")


async def _has_moved(client: Client, address: str, first: str) -> bool:
    return await _holder_now(client, address) not in ("", first)


async def _is_holder(client: Client, address: str, first: str) -> bool:
    return await _holder_now(client, address) == first


def run(quick: bool) -> list[Row]:
    count = 1000 if quick else 10000
    rows = allocate(count) + elect(count, 10 if quick else 100)
    local = Local()
    try:
        rows += outages(local, 2 if quick else 5)
        shown = 1000 if quick else 2000
        rows.append(Row(f"controller: {shown:,} Services show their addresses", "s", (all_shown(local, shown),)))
    finally:
        local.podwire("down", "--name", NAME)
    return rows


if __name__ == "__main__":
    run_alone("loadbalancer", __doc__, run)
