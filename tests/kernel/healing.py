"""A node of a cluster whose router runs, for tests that damage what it holds and wait until it is back."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kernel.routing_nodes import ClusterNode

from podwire.kernel import comparison
from podwire.routing.machine import OWNER
from podwire.routing.plan import Plan
from podwire.runtime.children import Children, spawn_program
from podwire.runtime.clock import SystemClock
from podwire.runtime.program import Child
from podwire.runtime.supervise import Supervisor
from podwire.state.drift import render

PATIENCE_S = 25
"""Less than a resync takes, so what is back within it was noticed."""


class EagerClock(SystemClock):
    """The machine's clock, but pauses take a tenth of their time: checks and runs follow one another sooner."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 10)


class _Crash(Exception):
    """Ends the router as the crash of an agent does: the child processes stay."""


def drift(node: ClusterNode) -> list[str]:
    """Where the kernel differs from what the node's routing should hold."""
    return list(render(comparison.compare([node.router.applied.share(OWNER)], node.place)))


async def restored(node: ClusterNode) -> None:
    """Returns when the kernel holds all of the node's routing."""
    deadline = time.monotonic() + PATIENCE_S
    while result := drift(node):
        assert time.monotonic() < deadline, result
        await asyncio.sleep(0.02)


async def until(check: Callable[[], object]) -> None:
    """Returns when the check succeeds."""
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline, "it does not come"
        await asyncio.sleep(0.02)


async def _announced(_plan: Plan) -> bool:
    return True


def with_router(node: ClusterNode, body: Callable[[], Awaitable[None]]) -> None:
    """Runs ``body`` while the node's router and its child processes run, without a resync."""
    clock = SystemClock()

    def start(child: Child) -> int:
        return spawn_program(replace(child, netns=str(node.place)))

    async def main() -> None:
        async with Supervisor(clock, lambda name, failure: pytest.fail(f"{name}: {failure}")) as supervisor:
            directory = Path(node.router.own.run_dir, "children")
            node.router.programs.children = Children(
                directory, start, supervisor, clock, node.router.programs.note_child
            )
            node.router.disturbed()
            running = [asyncio.create_task(node.router.run(_announced))]
            try:
                await until(lambda: node.router.settled)
                await body()
            finally:
                for task in running:
                    task.cancel()
                await asyncio.wait(running)
            raise _Crash

    try:
        asyncio.run(main())
    except* _Crash:
        pass


async def checking(node: ClusterNode, body: Callable[[], Awaitable[None]]) -> None:
    """Runs ``body`` with the router's periodic checks, of which the resync comes after :data:`PATIENCE_S`."""
    ticking = asyncio.create_task(node.router.tick())
    try:
        await body()
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])
