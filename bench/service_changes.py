"""Changes of Services, end to end: from a write to the API until a packet arrives, by the number of Services.

A local cluster of one node, by `podwire up`, with 10 to 30,000 Services of two endpoints each, written through its API.
A change replaces the only endpoint of one Service: the time runs from the moment when the write is sent until a
connection to the cluster address, tried all the while from a pod, reaches the new pod. It contains the API server's
write to disk, the watch, the agent and the kernel; "write alone" is the same write until it is answered. CPU of the
agent is that of all its threads, what it does by itself meanwhile included, divided by the changes. A new Service is
one without an EndpointSlice, then its slice, until a connection to its address reaches a pod. The agent's start runs
from the process's first moment until it says that it is ready: nothing in the kernel, and all of it there already.
"Rules taken away" is a foreign process that deletes the table. Under load, four clients connect all the time; "refused"
counts the connections of one such moment that were refused, "late" those that took more than half a second (their first
packet was lost) or failed otherwise. "In a storm" is the same while Services change at the rate of 1,000 a second.

    sudo python -m bench.service_changes [--quick]
"""

import asyncio
import contextlib
import http.client
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench import machine, up
from bench.alone import run_alone
from bench.table import Row

from podwire.kernel import netns
from podwire.kernel.nft import Nft
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.resources import ENDPOINTSLICES, NAMESPACES, PODS, SERVICES
from podwire.local import inventory
from podwire.local.probe.collect import pod_namespaces
from podwire.local.topology import Topology
from podwire.model.service import SERVICE_NAME_LABEL
from podwire.proxy.dataplanes.nftables.layout import TABLE
from podwire.runtime.clock import SystemClock
from podwire.state.nft_diff import DeleteElements, FlushChain, Operation, Transaction, removal

SPACE = "bench"
PORT = 8080
HEALTH = 9440
COUNTS = (10, 1_000, 10_000, 30_000)
AIMED = 10_000
"""The number of Services that aims are for."""
PATIENCE_S = 10.0
WRITERS = 32
STORM = 1_000
CLIENTS = 4
PAUSE_S = 0.01
"""Between two connections of a client: 400 connections a second in all."""
LATE_S = 0.5
REST_S = 1.0
"""Between two repairs: the agent uses at most half of the time for them."""
FLUSHED = ("table", "chain", "map")
"""What is taken away under load: the table, the chain that all connections pass, the map of all Services."""

POD = """---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: web, image: nginx, ports: [{containerPort: 80}]}]}
"""


def service(name: str) -> dict[str, Any]:
    spec = {"ports": [{"name": "http", "port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": SPACE}, "spec": spec}


def piece(name: str, *addresses: str) -> dict[str, Any]:
    labels = {SERVICE_NAME_LABEL: name}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-a", "namespace": SPACE, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
    }


def somewhere(number: int) -> str:
    """An address of no pod."""
    return f"10.{160 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


class Pods:
    """A pod that asks, and two that listen, by sockets of this process in their networks."""

    def __init__(self, places_of: dict[str, Path], addresses: dict[str, str]) -> None:
        self.addresses = addresses
        self.client = places_of["client"]
        self._listeners: dict[str, socket.socket] = {}
        for name in ("a", "b"):
            with netns.inside(places_of[name]):
                self._listeners[name] = socket.create_server((addresses[name], PORT), backlog=512)
            self._listeners[name].setblocking(False)

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()

    def reached(self, address: str, expected: str) -> float:
        """Tries until a connection gets to a pod; the moment when that was. Blocks."""
        deadline = time.perf_counter() + PATIENCE_S
        with netns.inside(self.client):
            while time.perf_counter() < deadline:
                with socket.socket() as sock:
                    sock.settimeout(0.004)
                    with contextlib.suppress(OSError):
                        sock.connect((address, 80))
                        if self.accepted() == expected:
                            return time.perf_counter()
                time.sleep(0.0003)
        raise SystemExit(f"{address}: no connection reached pod {expected} within {PATIENCE_S:.0f} s")

    def accepted(self) -> str:
        """Who took the last connection; all that wait are taken off."""
        ready, _, _ = select.select(list(self._listeners.values()), [], [], 0.05)
        name = next((name for name, entry in self._listeners.items() if entry in ready), "")
        for item in ready:
            with contextlib.suppress(BlockingIOError):
                while True:
                    item.accept()[0].close()
        return name


class World:
    """The running cluster."""

    def __init__(self, client: Client, pods: Pods) -> None:
        self.client = client
        self.pods = pods
        self.count = 0
        self._serial = 0

    async def grow(self, count: int) -> float:
        """Writes Services and slices until there are so many; objects a second."""
        todo = iter(range(self.count, count))
        begun, had = time.perf_counter(), self.count

        async def write() -> None:
            for number in todo:
                name = f"service-{number}"
                await self.client.create(SERVICES, service(name), SPACE)
                addresses = (somewhere(2 * number), somewhere(2 * number + 1))
                await self.client.create(ENDPOINTSLICES, piece(name, *addresses), SPACE)

        await asyncio.gather(*(write() for _ in range(WRITERS)))
        self.count = count
        return 2 * (count - had) / (time.perf_counter() - begun)

    async def change(self, address: str, turn: int) -> tuple[float, float]:
        """Milliseconds from a write until it is answered, and until a connection gets to the other pod."""
        expected = "ab"[turn % 2]
        waiting = asyncio.create_task(asyncio.to_thread(self.pods.reached, address, expected))
        await asyncio.sleep(0.02)
        begun = time.perf_counter()
        await self.client.update(
            ENDPOINTSLICES, piece("measured", self.pods.addresses[expected]), SPACE, name="measured-a"
        )
        answered = time.perf_counter()
        return (answered - begun) * 1000, (await waiting - begun) * 1000

    async def storm(self, seconds: float) -> tuple[float, float]:
        """Changes of many Services at the rate of :data:`STORM`; changes a second, CPU of the agent in %."""
        pid, done = agent(), 0
        self._serial += 1_000
        first = 100_000 + self._serial
        begun, cpu = time.perf_counter(), machine.cpu_s(agent())

        async def write() -> None:
            nonlocal done
            while (passed := time.perf_counter() - begun) < seconds:
                if done > STORM * passed:
                    await asyncio.sleep(0.002)
                    continue
                done += 1
                name, turn = f"service-{done % self.count}", done // self.count
                addresses = (somewhere(done % self.count), somewhere(first + turn))
                await self.client.update(ENDPOINTSLICES, piece(name, *addresses), SPACE, name=f"{name}-a")

        await asyncio.gather(*(write() for _ in range(WRITERS)))
        passed = time.perf_counter() - begun
        return done / passed, (machine.cpu_s(pid) - cpu) / passed * 100

    async def come(self) -> float:
        """Milliseconds until a new Service with one endpoint can be reached."""
        self._serial += 1
        name = f"new-{self._serial}"
        begun = time.perf_counter()
        created = await self.client.create(SERVICES, service(name), SPACE)
        waiting = asyncio.create_task(asyncio.to_thread(self.pods.reached, created["spec"]["clusterIP"], "a"))
        await self.client.create(ENDPOINTSLICES, piece(name, self.pods.addresses["a"]), SPACE)
        result = (await waiting - begun) * 1000
        await self.client.delete(SERVICES, name, SPACE)
        await self.client.delete(ENDPOINTSLICES, f"{name}-a", SPACE)
        return result


def flush(place: Path, subject: str = "table") -> float:
    """Takes rules of IPv4 Services away, of :data:`FLUSHED`; the moment when that is done. Blocks."""
    with Nft(place) as nft:
        operations: tuple[Operation, ...] = removal("ip", TABLE).operations
        if subject == "chain":
            operations = (FlushChain("dispatch"),)
        elif subject == "map" and (table := nft.read("ip", TABLE)) is not None:
            services = next(held for held in table.sets if held.name == "services")
            operations = (DeleteElements(services, services.elements),)
        nft.commit(Transaction("ip", TABLE, operations))
    return time.perf_counter()


class Load:
    """Clients that connect to an address all the time while the block runs, and what became of them."""

    def __init__(self, pods: Pods, address: str) -> None:
        self._pods = pods
        self._address = address
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._connect) for _ in range(CLIENTS)]
        self._threads.append(threading.Thread(target=self._accept))
        self.refused = self.late = 0

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _connect(self) -> None:
        with netns.inside(self._pods.client):
            while not self._done.is_set():
                with socket.socket() as sock:
                    sock.settimeout(PATIENCE_S)
                    begun = time.perf_counter()
                    try:
                        sock.connect((self._address, 80))
                        self.late += time.perf_counter() - begun > LATE_S
                    except ConnectionRefusedError:
                        self.refused += 1
                    except OSError:
                        self.late += 1
                time.sleep(PAUSE_S)

    def _accept(self) -> None:
        while not self._done.is_set():
            self._pods.accepted()

    def repaired(self) -> float:
        """Tries until a connection is made; the moment when that was. Blocks."""
        with netns.inside(self._pods.client):
            while True:
                with socket.socket() as sock, contextlib.suppress(OSError):
                    sock.settimeout(0.004)
                    sock.connect((self._address, 80))
                    return time.perf_counter()


def repairs(
    place: Path, pods: Pods, address: str, turns: int
) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """Milliseconds until a connection, refused and late connections of each turn, by what is taken away. Blocks."""
    result: dict[str, tuple[list[float], list[float], list[float]]] = {value: ([], [], []) for value in FLUSHED}
    for subject in FLUSHED * turns:
        time.sleep(REST_S)
        with Load(pods, address) as load:
            time.sleep(0.1)
            gone = flush(place, subject)
            result[subject][0].append((load.repaired() - gone) * 1000)
            time.sleep(0.2)
        result[subject][1].append(load.refused)
        result[subject][2].append(load.late)
    return result


def agent() -> int:
    """The agent's process, which may be a new one any time."""
    return up.processes().get("agent-node-1", 0)


def ask(place: Path, path: str) -> tuple[int, str]:
    """What the agent answers on its health port; status 0 when it does not listen."""
    with netns.inside(place):
        connection = http.client.HTTPConnection("127.0.0.1", HEALTH, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()


def ready(place: Path) -> bool:
    """Whether the agent says so."""
    return ask(place, "/readyz")[0] == http.client.OK


def programmed(place: Path) -> int:
    """How many Services the agent has in force."""
    _, text = ask(place, "/metrics")
    result = re.search(r"^podwire_proxy_services ([0-9.e+]+)$", text, re.MULTILINE)
    return int(float(result[1])) if result else 0


def until(check: Callable[[], object]) -> None:
    """Waits until something is so. Blocks."""
    deadline = time.monotonic() + 120
    while not check():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within two minutes: {check.__qualname__}")
        time.sleep(0.005)


def start_again(place: Path, *, empty: bool) -> tuple[float, float]:
    """Kills the agent; seconds and CPU seconds of the next one until it is ready. Blocks."""
    pid = agent()
    os.kill(pid, signal.SIGSTOP)
    if empty:
        with netns.inside(place):
            for family in ("ip", "ip6"):
                subprocess.run(["nft", "delete", "table", family, TABLE], check=True)
    os.kill(pid, signal.SIGKILL)
    until(lambda: agent() not in (0, pid))
    until(lambda: ready(place))
    return machine.age_s(agent()), machine.cpu_s(agent())


def spread(values: list[float], percent: int) -> float:
    """A percentile."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


async def measure(world: World, topology: Topology, count: int, *, turns: int, starts: int) -> list[Row]:
    """All that is measured with one number of Services."""
    large = count == AIMED
    written = await world.grow(count)
    place = Path(topology.netns("node-1"))
    await asyncio.to_thread(until, lambda: programmed(place) >= count)
    order = [empty for empty in (True, False) for _ in range(starts)]
    begun = [await asyncio.to_thread(start_again, place, empty=empty) for empty in order]
    cold, warm = begun[:starts], begun[starts:]
    address = (await world.client.get(SERVICES, "measured", SPACE))["spec"]["clusterIP"]
    for turn in range(4):
        await world.change(address, turn)
    resident = machine.resident_mb(agent())[0]
    before = machine.cpu_s(agent())
    changes = [await world.change(address, turn) for turn in range(turns)]
    spent = (machine.cpu_s(agent()) - before) * 1000 / turns
    writes, arrived = [change[0] for change in changes], [change[1] for change in changes]
    come = [await world.come() for _ in range(turns // 4)]
    changed, busy = await world.storm(turns / 50)
    healed = []
    for _ in range(turns // 20):
        gone = await asyncio.to_thread(flush, place)
        healed.append((await asyncio.to_thread(world.pods.reached, address, "ab"[(turns - 1) % 2]) - gone) * 1000)
    repaired = {"under load": await asyncio.to_thread(repairs, place, world.pods, address, turns // 20)}
    storm = asyncio.create_task(world.storm(turns / 20 * len(FLUSHED) * (REST_S + 0.5)))
    repaired["in a storm"] = await asyncio.to_thread(repairs, place, world.pods, address, turns // 20)
    await storm
    subject = f"{count:,} Services: "
    under_load = [
        Row(f"{subject}{name}", unit, tuple(values), aim=aim)
        for when, result in repaired.items()
        for flushed, (times, refused, late) in result.items()
        for name, unit, values, aim in (
            (f"a {flushed} flushed {when} until a connection", "ms", times, 20 if count <= 1_000 else None),
            (f"a {flushed} flushed {when}: refused", "", refused, None),
            (f"a {flushed} flushed {when}: late", "", late, None),
        )
    ]
    return [
        *under_load,
        Row(subject + "a change until a packet is there", "ms", tuple(arrived), (("write alone", tuple(writes)),), 20),
        Row(
            subject + "the same, 99th percentile",
            "ms",
            (spread(arrived, 99),),
            (("write alone", (spread(writes, 99),)),),
            100,
        ),
        Row(subject + "CPU of the agent for a change", "ms", (spent,), aim=5),
        Row(subject + "a new Service until a connection", "ms", tuple(come), aim=60 if count <= AIMED else None),
        Row(subject + "changes a second, as many as come", "/s", (changed,)),
        Row(subject + "CPU of the agent meanwhile, of a core", "%", (busy,)),
        Row(subject + "rules taken away until a connection", "ms", tuple(healed)),
        Row(subject + "memory of the agent", "MB", (resident,), aim=120 if large else None),
        Row(subject + "agent's start, kernel empty", "s", tuple(item[0] for item in cold)),
        Row(subject + "agent's start, kernel empty, CPU", "s", tuple(item[1] for item in cold)),
        Row(subject + "agent's start, nothing to write", "s", tuple(item[0] for item in warm)),
        Row(subject + "agent's start, nothing to write, CPU", "s", tuple(item[1] for item in warm)),
        Row(subject + "written through the API", "/s", (written,)),
    ]


async def in_cluster(quick: bool) -> list[Row]:
    """The rows of a cluster that runs."""
    topology = inventory.existing(up.NAME)
    client = Client(load_kubeconfig(up.podwire("kubeconfig", "--name", up.NAME).strip()), SystemClock())
    listed = await client.list(PODS, "default")
    spaces = pod_namespaces(topology)
    pods = Pods(
        {pod.metadata.name: spaces[pod.metadata.uid] for pod in listed.items},
        {pod.metadata.name: pod.status.pod_ip for pod in listed.items},
    )
    try:
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        world = World(client, pods)
        await client.create(SERVICES, service("measured"), SPACE)
        await client.create(ENDPOINTSLICES, piece("measured", pods.addresses["a"]), SPACE)
        rows = []
        for count in COUNTS[:2] if quick else COUNTS:
            few = quick or count > AIMED
            rows += await measure(world, topology, count, turns=40 if quick else 200, starts=1 if few else 3)
        return rows
    finally:
        pods.close()
        await client.close()


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` only 10 and 1,000 Services, and fewer turns."""
    up.podwire("down", "--name", up.NAME)
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("".join(POD % name for name in ("client", "a", "b")))
            file.flush()
            up.podwire("up", "--name", up.NAME, "--nodes", "1", "-f", file.name)
        return asyncio.run(in_cluster(quick))
    finally:
        up.podwire("down", "--name", up.NAME)


if __name__ == "__main__":
    run_alone("service_changes", __doc__, run)
