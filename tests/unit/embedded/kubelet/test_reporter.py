"""Reports of a pod's status: one at a time, few, and again when they failed."""

import asyncio
from typing import Any

import msgspec

from podwire.embedded.kubelet.reporter import Reporter
from podwire.errors import ApiUnreachable
from podwire.model.pod import Pod
from podwire.testing.clock import FakeClock


class Api:
    """The status subresource; an answer comes when the test lets it."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.gate = asyncio.Event()
        self.away = False

    async def patch(self, resource: Any, name: str, body: dict[str, Any], namespace: str, **how: str) -> Any:
        if self.away:
            raise ApiUnreachable("away")
        self.stored.append(body["status"]["note"])
        await self.gate.wait()
        conditions = [{"type": "Ready", "status": "True"}]
        return {"metadata": {"resourceVersion": "7"}, "status": {"conditions": conditions}}


class Worker:
    """What a reporter sees of a pod's worker."""

    def __init__(self) -> None:
        self.pod = msgspec.convert({"metadata": {"name": "p", "namespace": "n", "uid": "u"}}, Pod)
        self.around = self
        self.client = Api()
        self.clock = FakeClock()
        self.gone = False
        self.note = "one"
        self.phase = "Running"
        self.wakes: list[float] = []
        self.conditions: tuple[Any, ...] = ()

    def now(self) -> float:
        return self.clock.monotonic()

    def wake_in(self, seconds: float) -> None:
        self.wakes.append(seconds)

    def render(self) -> dict[str, Any]:
        return {"phase": self.phase, "conditions": [], "note": self.note}


def test_a_second_report_waits_for_the_first_and_tells_what_is_true_then() -> None:
    async def body() -> None:
        worker = Worker()
        reporter = Reporter(worker)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            group.create_task(reporter.report(urgent=True))
            await asyncio.sleep(0)
            worker.note = "two"
            group.create_task(reporter.report(urgent=True))
            await asyncio.sleep(0)
            assert worker.client.stored == ["one"]
            worker.note = "three"
            worker.client.gate.set()
        assert worker.client.stored == ["one", "three"]
        assert [c.type for c in worker.conditions] == ["Ready"]
        await reporter.report(urgent=True)
        assert worker.client.stored == ["one", "three"]

    asyncio.run(body())


def test_what_others_wrote_meanwhile_stays() -> None:
    async def body() -> None:
        worker = Worker()
        async with asyncio.TaskGroup() as group:
            group.create_task(Reporter(worker).report(urgent=True))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            gate = {"type": "example.org/gate", "status": "True"}
            later = {"metadata": {"resourceVersion": "8"}, "status": {"conditions": [gate]}}
            worker.pod = msgspec.convert(later, Pod)
            worker.client.gate.set()
        assert [c.type for c in worker.conditions] == ["example.org/gate"]

    asyncio.run(body())


def test_what_nobody_waits_for_is_told_later() -> None:
    async def body() -> None:
        worker = Worker()
        worker.client.gate.set()
        reporter = Reporter(worker)  # type: ignore[arg-type]
        await reporter.report(urgent=False)
        worker.note = "two"
        await reporter.report(urgent=False)
        assert (worker.client.stored, worker.wakes) == (["one"], [0.3])
        await worker.clock.advance(0.3)
        await reporter.report(urgent=False)
        assert worker.client.stored == ["one", "two"]
        worker.phase, worker.note = "Succeeded", "three"
        await reporter.report(urgent=False)
        assert worker.client.stored == ["one", "two", "three"]

    asyncio.run(body())


def test_a_report_that_failed_is_made_again() -> None:
    async def body() -> None:
        worker = Worker()
        worker.client.gate.set()
        reporter = Reporter(worker)  # type: ignore[arg-type]
        worker.client.away = True
        await reporter.report(urgent=True)
        assert worker.client.stored == [] and len(worker.wakes) == 1
        worker.client.away = False
        await reporter.report(urgent=True)
        assert worker.client.stored == ["one"]

    asyncio.run(body())
