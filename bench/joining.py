"""A node joins nodes whose routers run: the time until its first packet, and until every node has the way to it.

The nodes are namespaces on one bridge; their routers run in this process, each with its own loop of changes, and learn
of a Node as soon as it is written: the API server and the start of an agent are not part of the time.
"""

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from ipaddress import ip_network
from pathlib import Path

from podwire.kernel import netns
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.machine import KernelMachine
from podwire.routing.plan import Plan
from podwire.routing.router import Router
from podwire.routing.settings import RoutingSettings
from podwire.runtime.clock import SystemClock

LIMIT_S = 60.0
_PORT = 7001
_EVERY_S = 0.002


def batch(where: Path, *lines: str) -> None:
    """Runs commands of ip(8) in a namespace."""
    with netns.inside(where):
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


class Nodes:
    """Nodes on one bridge; ``objects`` are their Node objects."""

    def __init__(self, folder: Path, count: int, backend: str) -> None:
        self.folder, self.backend, self.numbers = folder, backend, range(1, count + 1)
        self.objects: dict[str, Node] = {}
        self.routers: dict[str, Router] = {}
        self._machines: list[KernelMachine] = []
        self._tasks: list[asyncio.Task[None]] = []
        netns.create(self.place(0))
        batch(self.place(0), "link add br0 type bridge", "link set br0 up")
        for number in self.numbers:
            netns.create(self.place(number))
            batch(
                self.place(0),
                f"link add n{number} type veth peer name eth0 netns {self.place(number)}",
                f"link set n{number} master br0 up",
            )
            batch(
                self.place(number),
                "link set lo up",
                f"address add 10.89.0.{number}/24 dev eth0",
                "link set eth0 up",
                f"address add 10.244.{number}.5/32 dev lo",
            )

    def place(self, number: int) -> Path:
        """The namespace of a node; 0 is the bridge."""
        return self.folder / f"join-{number}"

    def write(self, number: int, annotations: dict[str, str] | None = None) -> None:
        """Writes the Node object of a number, of which all routers learn."""
        name, cidr = f"node-{number}", f"10.244.{number}.0/24"
        before = self.objects.get(name)
        self.objects[name] = Node(
            metadata=ObjectMeta(name=name, annotations=annotations or {}),
            spec=NodeSpec(pod_cidr=cidr, pod_cidrs=(cidr,)),
            status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=f"10.89.0.{number}"),)),
        )
        for router in self.routers.values():
            router.node_changed(name, before, self.objects[name])

    def start(self, number: int) -> None:
        """Starts the router of a node."""
        name = f"node-{number}"
        machine = KernelMachine(self.place(number))
        router = Router(name, lambda: self.objects, machine, SystemClock())
        router.cidrs = (ip_network("10.244.0.0/16"),)
        router.configure(RoutingSettings(backend=self.backend))
        self.routers[name] = router
        self._machines.append(machine)
        self._tasks.append(asyncio.ensure_future(router.run(self._announcing(number))))

    def _announcing(self, number: int) -> Callable[[Plan], Awaitable[bool]]:
        async def announce(plan: Plan) -> bool:
            annotations = plan.facts.annotations()
            if dict(self.objects[f"node-{number}"].metadata.annotations) != annotations:
                self.write(number, annotations)
            return True

        return announce

    def know(self, number: int) -> bool:
        """Whether the kernels of all other nodes have the way to a node, and its own those to them."""
        names = {f"node-{number}" for number in self.numbers if f"node-{number}" in self.routers}
        return all(
            router.settled and router.plan is not None and router.plan.senders.keys() == names - {name}
            for name, router in self.routers.items()
        )

    async def close(self) -> None:
        """Ends all routers, and deletes the namespaces."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for machine in self._machines:
            machine.close()
        for number in (0, *self.numbers):
            netns.delete(self.place(number))


@contextlib.contextmanager
def ends(nodes: Nodes, source: int, target: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket that sends from one node to the pod address of another, and one that receives there."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for number in (source, target):
            with netns.inside(nodes.place(number)):
                sockets.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
            sockets[-1].bind((f"10.244.{number}.5", _PORT))
            sockets[-1].setblocking(False)
        yield sockets[0], sockets[1]


async def until(check: Callable[[], bool]) -> None:
    """Raises: TimeoutError."""
    async with asyncio.timeout(LIMIT_S):
        while not check():
            await SystemClock().sleep(_EVERY_S)


async def join(folder: Path, backend: str, count: int) -> tuple[float, float]:
    """Milliseconds until the first packet of the last of ``count`` nodes, and until all nodes have all ways."""
    nodes = Nodes(folder, count, backend)
    try:
        for number in nodes.numbers[:-1]:
            nodes.write(number)
            nodes.start(number)
        await until(lambda: nodes.know(count - 1))
        await asyncio.sleep(1.0)
        with ends(nodes, 1, count) as (sender, receiver):
            begun = time.perf_counter()
            nodes.write(count)
            nodes.start(count)
            await until(lambda: _passes(sender, receiver, f"10.244.{count}.5"))
            first = time.perf_counter() - begun
            await until(lambda: nodes.know(count))
            return first * 1e3, (time.perf_counter() - begun) * 1e3
    finally:
        await nodes.close()


def _passes(sender: socket.socket, receiver: socket.socket, address: str) -> bool:
    """Sends a datagram; whether one has arrived."""
    with contextlib.suppress(OSError):
        sender.sendto(b"first", (address, _PORT))
    with contextlib.suppress(BlockingIOError):
        return bool(receiver.recv(10))
    return False
