"""Routing of one node with many peers: the whole run of the reconciler, by backend and number of peers.

Each measurement is a process with a network namespace of its own and Node objects that it makes: every node has an
address on the subnet of this one, and a pod CIDR. A run makes the plan (devices, routes, neighbours, forwarding
entries, tables of nftables), reads the kernel and writes the difference. The first run has no peers: it asks the kernel
for its features, and writes devices and tables. The second one reads and writes all peers; a resync finds nothing to
write; a run for one more peer writes what differs, as does one for a peer that leaves. Memory is what
the process has more than before the Node objects were made. CPU is user and system time of the process. As in an agent,
modules are imported before, and left out of searches for garbage. For `bgp` the plan contains BIRD's configuration with
a session for each peer, and for `udp` the peers of its process. What these programs need when one peer is new and one
is gone is measured apart, in rows that name them: BIRD reads its whole file for any change, once in a process that
checks it and once in the running one.

A node joins others whose routers run in this process, each in a namespace: the time begins with its Node object, and
contains neither the API server nor the start of an agent. The first packet comes from the first node.

    sudo python -m bench.routing [--quick]
"""

import asyncio
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from ipaddress import ip_address, ip_network
from pathlib import Path

from bench import engines, machine
from bench.alone import run_alone
from bench.engines import Times
from bench.joining import join
from bench.table import Row

from podwire.kernel import netns, network
from podwire.kernel.netlink import Netlink
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.machine import KernelMachine
from podwire.routing.nodes import RoutingFacts
from podwire.routing.plan import Plan
from podwire.routing.router import Router
from podwire.routing.segment import segment_mac
from podwire.routing.settings import RoutingSettings
from podwire.routing.tunnels import tunnel_mac
from podwire.runtime.clock import SystemClock
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import Address

BACKENDS = ("vxlan", "hostgw", "bridge", "bgp", "udp")
"""Those whose state this kernel can hold without programs; BIRD and the process of ``udp`` are measured apart."""
ENGINES: dict[str, Callable[[list[Plan], Path], Times]] = {"bgp": engines.bird, "udp": engines.udp}
JOINING = ("vxlan", "hostgw")
COUNTS = (1_000, 5_000)
AIMED = 1_000
AIMS_MS = {"write all": 100.0, "resync": 30.0, "one more peer": 5.0, "one peer less": 5.0}
JOINED, JOIN_AIM_MS = 20, 300.0


def node(number: int, backend: str) -> Node:
    """The Node object of a number."""
    name, cidr = f"node-{number}", f"10.{100 + number // 256}.{number % 256}.0/24"
    address = f"10.89.{number // 250}.{number % 250 + 1}"
    details = {
        "mac": tunnel_mac(name),
        "bridge": {"mac": segment_mac(name, [ip_address(address)])},
        "bgp": {"asNumber": 64512},
        "udp": {"port": 8285},
    }
    facts = RoutingFacts(backend, (backend,), details)
    return Node(
        metadata=ObjectMeta(name=name, annotations=facts.annotations()),
        spec=NodeSpec(pod_cidr=cidr, pod_cidrs=(cidr,)),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=address),)),
    )


class Bench:
    """A node with peers in a namespace of its own, and its measurements by name."""

    def __init__(self, netns_path: Path, backend: str, count: int) -> None:
        with Netlink(netns_path) as netlink:
            state = NetworkState((Link("eth0", "bridge"),), (Address("eth0", "10.89.0.1/16"),))
            network.apply(netlink, state, OwnerMark(114)).check()
        RoutingSettings(backend=backend).load()
        gc.freeze()
        self._backend, self._count, self._before_mb = backend, count, machine.resident_mb(os.getpid())[0]
        self._nodes = {f"node-{number}": node(number, backend) for number in range(count)}
        self._netns_path = netns_path
        self._machine = KernelMachine(netns_path)
        self.times: Times = {}

    def measure(self, turns: int) -> Times:
        """A start without peers, then all peers at once, then turns of a resync, one more peer and one peer less."""
        router = Router("node-0", lambda: self._nodes, self._machine, SystemClock())
        router.cidrs = (ip_network("10.0.0.0/8"),)
        router.own.run_dir = f"/run/pwbench-{os.getpid()}"
        router.configure(RoutingSettings(backend=self._backend))
        everyone = dict(self._nodes)
        for name in set(everyone) - {"node-0"}:
            del self._nodes[name]
        self._note("start without peers", router.reconcile, router)
        self._nodes.update(everyone)
        self._note("write all", router.reconcile, router)
        plans: list[Plan] = []
        for turn in range(turns):
            self._note("resync", router.reconcile, router)
            added = node(self._count + turn, self._backend)
            self._nodes[added.metadata.name] = added
            self._note("one more peer", lambda: router.reconcile(full=False), router)
            del self._nodes[f"node-{self._count // 2 + turn}"]
            self._note("one peer less", lambda: router.reconcile(full=False), router)
            if router.plan is not None:
                plans.append(router.plan)
        self.times["memory"] = [machine.resident_mb(os.getpid())[0] - self._before_mb]
        if self._backend in ENGINES:
            self.times |= ENGINES[self._backend](plans, self._netns_path)
        self._machine.close()
        return self.times

    def _note(self, name: str, run: Callable[[], object], router: Router) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if router.problem:
            raise SystemExit(f"{name}: {router.problem}")
        self.times.setdefault(name, []).append(wall * 1000)
        self.times.setdefault(f"{name}, CPU", []).append(cpu * 1000)


def in_place(backend: str, count: int, turns: int) -> Times:
    """Measures in a namespace that is made for it."""
    netns_path = Path(f"/run/netns/pwbench-{os.getpid()}")
    netns.create(netns_path)
    try:
        return Bench(netns_path, backend, count).measure(turns)
    finally:
        netns.delete(netns_path)


def collect(backend: str, count: int, *, processes: int, turns: int) -> Times:
    """The measurements of several processes together."""
    times: Times = {}
    context = multiprocessing.get_context("spawn")
    for _ in range(processes):
        with ProcessPoolExecutor(1, context) as pool:
            for name, values in pool.submit(in_place, backend, count, turns).result().items():
                times.setdefault(name, []).extend(values)
    return times


def joins(quick: bool) -> list[Row]:
    """The rows of a node that joins."""
    rows, count = [], 4 if quick else JOINED
    for backend in JOINING:
        with tempfile.TemporaryDirectory(dir="/run") as folder:
            used = [asyncio.run(join(Path(folder), backend, count)) for _ in range(1 if quick else 5)]
        first, everywhere = zip(*used, strict=True)
        rows.append(Row(f"{backend}, node {count} joins: first packet to it", "ms", first, aim=JOIN_AIM_MS))
        rows.append(Row(f"{backend}, node {count} joins: all nodes have all routes", "ms", everywhere))
    return rows


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one process for each, and without the largest number."""
    rows = joins(quick)
    for backend in BACKENDS:
        for count in COUNTS[:1] if quick else COUNTS:
            result = collect(backend, count, processes=1 if quick else 2, turns=5)
            for name, values in result.items():
                aim = AIMS_MS.get(name.removesuffix(", CPU")) if count <= AIMED and "CPU" in name else None
                unit = {"memory": "MB", engines.SIZE: "KB"}.get(name, "ms")
                rows.append(Row(f"{backend}, {count:,} peers: {name}", unit, tuple(values), aim=aim))
    return rows


if __name__ == "__main__":
    run_alone("routing", __doc__, run)
