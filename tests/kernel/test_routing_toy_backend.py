"""A backend that a test registers carries packets, runs its child process, guards its port, and leaves nothing."""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fakes import qdisc_kind
from tests.fakes.toy_backend import DEVICE, GUARD, REGISTRY
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Cluster, ClusterNode, inside, source_seen

from podwire.kernel import netns
from podwire.kernel.kinds import KERNEL_KINDS
from podwire.routing.machine import OWNER
from podwire.routing.settings import parse_settings
from podwire.runtime.children import ChildEvent, Children, read_record, spawn_program
from podwire.runtime.clock import SystemClock
from podwire.runtime.process import send_signal
from podwire.runtime.program import Child
from podwire.runtime.supervise import Supervisor
from podwire.state.kinds import KINDS

PORT = 4779


class Nodes:
    """The nodes of a cluster with the child processes of their backends."""

    def __init__(self, cluster: Cluster, supervisor: Supervisor) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self.adopted: list[str] = []
        for node in cluster.all:
            node.router.own.run_dir = str(cluster.root / f"{node.name}-run")
            self._hold_children(node)

    def _hold_children(self, node: ClusterNode) -> None:
        """Gives a node the holder of child processes that its agent has."""

        def start(child: Child) -> int:
            return spawn_program(replace(child, netns=str(node.place)))

        def report(event: ChildEvent) -> None:
            self.adopted += [node.name] * (event.event == "adopted")

        directory = Path(node.router.own.run_dir, "children")
        node.router.programs = Children(directory, start, self._supervisor, SystemClock(), report)

    async def use(self, backend: str) -> None:
        """Switches all nodes to a backend and settles."""
        self._cluster.configure(parse_settings({"backend": backend, "toy.port": PORT}, "test", REGISTRY))
        for _ in range(3):
            for node in self._cluster.all:
                node.reconcile()
                await node.router.run_programs()
                assert node.router.problem == ""

    async def end(self) -> None:
        """Ends all child processes."""
        for node in self._cluster.all:
            assert node.router.programs is not None
            await node.router.programs.apply(())


def answer(place: Path, address: str, wait_s: float = 0.2) -> bytes:
    """What the child process of a node says to a sender in a namespace; empty when nothing answers."""
    with netns.inside(place):
        asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with asking:
        asking.settimeout(wait_s)
        try:
            asking.sendto(b"?", (address, PORT))
            return asking.recv(1000)
        except OSError:
            return b""


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await SystemClock().sleep(0.02)


def traces(node: ClusterNode) -> list[str]:
    """What there is of the toy backend on a node."""
    found = [word for word in (DEVICE, GUARD) if word in node.shows("ip", "link") + node.shows("nft", "list", "tables")]
    found += [str(file) for file in Path(node.router.own.run_dir).rglob("*") if file.is_file()]
    found += [line for line in node.shows("tc", "qdisc", "show").splitlines() if qdisc_kind.HANDLE in line]
    sockets = node.shows("ss", "-Hlun")
    return found + [line for line in sockets.splitlines() if f":{PORT} " in line]


class Killed(Exception):
    """Ends the agents of a test as a crash does: nothing is cleaned up."""


def run(cluster: Cluster, *lives: Callable[[Cluster, Nodes], Awaitable[None]]) -> None:
    """Runs each life of the agents with an event loop of its own, the next after the crash of the one before."""

    async def live(life: Callable[[Cluster, Nodes], Awaitable[None]], *, last: bool) -> None:
        async with Supervisor(SystemClock(), lambda name, failure: pytest.fail(f"{name}: {failure}")) as supervisor:
            nodes = Nodes(cluster, supervisor)
            await life(cluster, nodes)
            if not last:
                raise Killed
            await nodes.end()

    for life in lives:
        try:
            asyncio.run(live(life, last=life is lives[-1]))
        except* Killed:
            pass


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setitem(KINDS, "qdisc", qdisc_kind.KIND)
    monkeypatch.setitem(KERNEL_KINDS, "qdisc", qdisc_kind.KERNEL_KIND)
    made = Cluster(tmp_path, 2, registry=REGISTRY)
    yield made
    for file in tmp_path.glob("node-*-run/children/*.json"):
        record = read_record(file)
        if record is not None and record.running:
            send_signal(record.pid, signal.SIGKILL)
    made.close()


def test_switching_to_the_backend_and_back_leaves_nothing(cluster: Cluster) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        first, second = cluster.all
        await nodes.use("vxlan")
        a, b = first.pod("a"), second.pod("b")
        for other in ("vxlan", "hostgw"):
            await nodes.use("toy")
            with b.running(SOURCE_REPLY_SERVER):
                assert source_seen(a.place, b.address) == a.address
            assert f"dev {DEVICE}" in first.shows("ip", "route", "get", b.address)
            assert "podwire-vxlan" not in first.shows("ip", "link")
            assert "qdisc pfifo 7113: root" in first.shows("tc", "qdisc", "show", "dev", "eth0")
            assert "qdisc dev eth0 pfifo limit 900" in str(first.router.share(OWNER))
            await until(lambda: answer(first.place, second.ip) == b"node-2 reaches node-1")
            assert answer(cluster.fabric, second.ip) == b"", "the sender is no node"
            await nodes.use(other)
            assert [traces(node) for node in cluster.all] == [[], []]
            with b.running(SOURCE_REPLY_SERVER):
                assert source_seen(a.place, b.address) == a.address

    run(cluster, body)


def test_the_child_process_outlives_the_agent_and_is_adopted(cluster: Cluster) -> None:
    node = cluster.all[0]
    sockets: list[str] = []

    async def first(_cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use("toy")
        await until(lambda: answer(node.place, node.ip))
        sockets.append(node.shows("ss", "-Hlunp", "sport", f"= :{PORT}"))

    async def second(_cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use("toy")
        await until(lambda: node.name in nodes.adopted)
        assert node.shows("ss", "-Hlunp", "sport", f"= :{PORT}") == sockets[0]
        inside(node.place, "nft", "delete", "table", "inet", GUARD)
        await nodes.use("toy")
        assert GUARD in node.shows("nft", "list", "tables"), "a guard that is removed comes back"

    run(cluster, first, second)
