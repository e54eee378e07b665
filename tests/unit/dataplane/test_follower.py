"""The loop that keeps a data plane equal to the API."""

import asyncio
import os
from collections.abc import Iterator

import pytest
from tests.fakes.clock import FakeClock

from podwire.dataplane.follower import Follower
from podwire.errors import KernelError
from podwire.state.value import StateValue

BUSY = KernelError("commit", "table ip podwire", 16)


class Plane:
    """A data plane that somebody else changes by writing to a pipe."""

    name = "pipe"

    def __init__(self) -> None:
        self.read, self.write = os.pipe()

    def fileno(self) -> int:
        return self.read

    def disturbed(self) -> bool:
        return bool(os.read(self.read, 64))

    def desired(self) -> tuple[StateValue, ...]:
        return ()

    def remove(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def plane() -> Iterator[Plane]:
    created = Plane()
    yield created
    os.close(created.read)
    os.close(created.write)


class Bench:
    """A follower whose commits write down what they were made for."""

    def __init__(self, plane: Plane) -> None:
        self.time = FakeClock()
        self.refused: list[KernelError] = []
        self.commits: list[bool] = []
        self.failures: list[KernelError] = []
        self.follower = Follower(plane, self.time, "rules are not in force", self.refused.append)

    async def commit(self) -> None:
        follower = self.follower
        follower.wake.clear()
        if self.failures:
            raise self.failures.pop()
        self.commits.append(follower.disturbed.is_set())
        follower.disturbed.clear()
        follower.refusal = ""
        follower.loaded.set()
        follower.programmed.set()

    async def gather(self) -> None:
        await asyncio.sleep(0)

    async def run(self) -> None:
        await self.follower.run(self.commit, self.gather)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_change_is_committed_and_a_disturbance_restored(plane: Plane) -> None:
    async def scenario() -> None:
        bench = Bench(plane)
        assert bench.follower.problem == "rules are not in force yet"
        task = asyncio.create_task(bench.run())
        await turns()
        assert (bench.commits, bench.follower.problem) == ([False], "")
        bench.follower.change()
        assert not bench.follower.programmed.is_set()
        await turns()
        assert bench.commits == [False, False]
        os.write(plane.write, b"x")
        await asyncio.sleep(0.01)
        assert bench.commits == [False, False, True]
        task.cancel()

    asyncio.run(scenario())


def test_a_refused_commit_is_tried_again(plane: Plane) -> None:
    async def scenario() -> None:
        bench = Bench(plane)
        bench.failures = [BUSY]
        task = asyncio.create_task(bench.run())
        await turns()
        assert (bench.commits, bench.refused, bench.follower.refusal) == ([], [BUSY], str(BUSY))
        await bench.time.advance(0.2)
        await turns()
        assert (bench.commits, bench.follower.refusal) == ([False], "")
        task.cancel()

    asyncio.run(scenario())
