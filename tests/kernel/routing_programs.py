"""Nodes whose routing backends run child processes, through several lives of their agents."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kernel.routing_nodes import Cluster, ClusterNode

from podwire.routing.settings import RoutingSettings
from podwire.runtime.childrecord import read_record
from podwire.runtime.children import ChildEvent, Children, spawn_program
from podwire.runtime.clock import SystemClock
from podwire.runtime.process import send_signal
from podwire.runtime.program import Child
from podwire.runtime.supervise import Supervisor


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
        node.router.programs.children = Children(directory, start, self._supervisor, SystemClock(), report)

    async def use(self, settings: RoutingSettings) -> None:
        """Gives all nodes the settings and settles."""
        self._cluster.configure(settings)
        await self.settle()

    async def settle(self) -> None:
        """Reconciles all nodes until they know each other's announcements, with their child processes."""
        for _ in range(3):
            for node in self._cluster.all:
                node.reconcile()
                await node.router.run_programs()
                assert node.router.problem == ""

    async def end(self) -> None:
        """Ends all child processes."""
        for node in self._cluster.all:
            assert node.router.programs.children is not None
            await node.router.programs.children.apply(())


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not check():
            await SystemClock().sleep(0.02)


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


def kill_programs(root: Path) -> None:
    """Kills the running child processes of the nodes."""
    for file in root.glob("node-*-run/children/*.json"):
        record = read_record(file)
        if record is not None and record.running:
            send_signal(record.pid, signal.SIGKILL)
