"""The work queue's guarantees, on a clock moved by hand."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fakes.clock import FakeClock

from podwire.runtime.supervise import Supervisor
from podwire.runtime.workqueue import ReconcileLoop, WorkQueue, in_parallel

Report = tuple[str, str, Exception]
"""Loop, key and failure."""

Failures = list[BaseException]


def test_waiting_key_is_not_added_twice_and_order_stays() -> None:
    async def run() -> None:
        queue: WorkQueue[str] = WorkQueue(FakeClock())
        for key in ("a", "b", "a", "c", "b"):
            queue.add(key)
        assert [await queue.get() for _ in range(len(queue))] == ["a", "b", "c"]

    asyncio.run(run())


def test_key_added_during_its_run_runs_once_more_afterwards() -> None:
    async def run() -> None:
        queue: WorkQueue[str] = WorkQueue(FakeClock())
        queue.add("a")
        key = await queue.get()
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.done(key)
        assert len(queue) == 1
        queue.done(await queue.get())
        assert queue.idle

    asyncio.run(run())


def with_delays(body: Callable[[FakeClock, WorkQueue[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = FakeClock()
        queue: WorkQueue[str] = WorkQueue(clock)
        async with Supervisor(clock, lambda name, failure: None) as supervisor:
            task = supervisor.start("delays", queue.run_delayed)
            await body(clock, queue)
            task.cancel()

    asyncio.run(run())


def test_delayed_key_comes_at_its_earliest_due_time() -> None:
    async def body(clock: FakeClock, queue: WorkQueue[str]) -> None:
        queue.add_after("a", 10)
        queue.add_after("a", 2)
        queue.add_after("a", 5)
        queue.add_after("b", 1)
        await clock.advance(1.0)
        assert await queue.get() == "b"
        assert len(queue) == 0
        await clock.advance(1.0)
        assert await queue.get() == "a"
        queue.done("a")
        await clock.advance(20)
        assert len(queue) == 0

    with_delays(body)


def test_retries_wait_longer_until_forgotten() -> None:
    async def body(clock: FakeClock, queue: WorkQueue[str]) -> None:
        delays = [queue.retry("a") for _ in range(4)]
        assert all(later >= 1.6 * earlier for earlier, later in itertools.pairwise(delays))
        queue.forget("a")
        assert queue.retry("a") <= 0.0061

    with_delays(body)


def test_in_parallel_returns_failures_and_runs_all() -> None:
    done: list[int] = []

    async def work(n: int) -> None:
        done.append(n)
        if n == 1:
            raise ValueError("one")

    failures = asyncio.run(in_parallel_of(work))
    assert [str(f) for f in failures] == ["one"]
    assert done == [0, 1, 2]


async def in_parallel_of(work: Callable[[int], Awaitable[None]]) -> list[BaseException]:
    return await in_parallel(work(n) for n in range(3))


def reconcile(
    reconcile_key: Callable[[str], Awaitable[None]],
    body: Callable[[FakeClock, ReconcileLoop[str], list[Report], Failures], Awaitable[None]],
    **options: Any,
) -> None:
    async def run() -> None:
        clock = FakeClock()
        reports: list[Report] = []
        loop = ReconcileLoop(
            "test",
            clock,
            reconcile_key,
            report=lambda *report: reports.append(report),
            expected=(OSError,),
            **options,
        )
        failures: Failures = []
        async with Supervisor(clock, lambda name, failure: failures.append(failure)) as supervisor:
            loop.start(supervisor, workers=2)
            await body(clock, loop, reports, failures)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())


def test_an_expected_failure_is_reported_and_tried_again() -> None:
    tries: list[str] = []

    async def work(key: str) -> None:
        tries.append(key)
        if len(tries) < 3:
            raise OSError("no")

    async def body(
        clock: FakeClock, loop: ReconcileLoop[str], reports: list[Report], failures: list[BaseException]
    ) -> None:
        loop.touch("k")
        await clock.advance(1)
        assert tries == ["k", "k", "k"]
        assert len(reports) == 2
        assert failures == []

    reconcile(work, body)


def test_defects_are_reported_and_hold_up_no_other_key() -> None:
    tries: list[str] = []

    async def work(key: str) -> None:
        tries.append(key)
        if key.startswith("bad"):
            raise ZeroDivisionError

    async def body(
        clock: FakeClock, loop: ReconcileLoop[str], reports: list[Report], failures: list[BaseException]
    ) -> None:
        for key in ("bad 1", "bad 2", "bad 3", "good"):
            loop.touch(key)
        await clock.advance(0)
        assert tries == ["bad 1", "bad 2", "bad 3", "good"]
        assert [type(f) for f in failures] == [ZeroDivisionError] * 3
        await clock.advance(1)
        assert tries.count("bad 1") > 1 and tries.count("good") == 1

    reconcile(work, body)


def test_a_burst_of_touches_costs_two_runs() -> None:
    tries: list[str] = []

    async def work(key: str) -> None:
        tries.append(key)

    async def body(
        clock: FakeClock, loop: ReconcileLoop[str], reports: list[Report], failures: list[BaseException]
    ) -> None:
        for _ in range(50):
            loop.touch("k")
            await clock.advance(0.01)
        assert len(tries) == 1
        await clock.advance(1)
        assert len(tries) == 2
        loop.touch("k")
        await clock.advance(0.001)
        assert len(tries) == 3

    reconcile(work, body, interval_s=0.6)
