"""Reports of a pod's status: one patch at a time, few reports, repeated after a failure."""

import asyncio
from typing import Any

import msgspec
from tests.fakes.clock import FakeClock

from podwire.embedded.kubelet.reporter import StatusReporter
from podwire.errors import ApiUnreachable
from podwire.model.pod import Pod


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


class FakeState:
    """What a reporter sees of a pod's state."""

    def __init__(self) -> None:
        self.pod = msgspec.convert({"metadata": {"name": "p", "namespace": "n", "uid": "u"}}, Pod)
        self.node = self
        self.wakeup = self
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


def test_second_report_waits_for_the_first_and_is_current() -> None:
    async def body() -> None:
        state = FakeState()
        reporter = StatusReporter(state)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            group.create_task(reporter.report(urgent=True))
            await asyncio.sleep(0)
            state.note = "two"
            group.create_task(reporter.report(urgent=True))
            await asyncio.sleep(0)
            assert state.client.stored == ["one"]
            state.note = "three"
            state.client.gate.set()
        assert state.client.stored == ["one", "three"]
        assert [c.type for c in state.conditions] == ["Ready"]
        await reporter.report(urgent=True)
        assert state.client.stored == ["one", "three"]

    asyncio.run(body())


def test_conditions_of_other_writers_stay() -> None:
    async def body() -> None:
        state = FakeState()
        async with asyncio.TaskGroup() as group:
            group.create_task(StatusReporter(state).report(urgent=True))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            gate = {"type": "example.org/gate", "status": "True"}
            later = {"metadata": {"resourceVersion": "8"}, "status": {"conditions": [gate]}}
            state.pod = msgspec.convert(later, Pod)
            state.client.gate.set()
        assert [c.type for c in state.conditions] == ["example.org/gate"]

    asyncio.run(body())


def test_minor_changes_are_reported_later() -> None:
    async def body() -> None:
        state = FakeState()
        state.client.gate.set()
        reporter = StatusReporter(state)  # type: ignore[arg-type]
        await reporter.report(urgent=False)
        state.note = "two"
        await reporter.report(urgent=False)
        assert (state.client.stored, state.wakes) == (["one"], [0.3])
        await state.clock.advance(0.3)
        await reporter.report(urgent=False)
        assert state.client.stored == ["one", "two"]
        state.phase, state.note = "Succeeded", "three"
        await reporter.report(urgent=False)
        assert state.client.stored == ["one", "two", "three"]

    asyncio.run(body())


def test_failed_report_is_repeated() -> None:
    async def body() -> None:
        state = FakeState()
        state.client.gate.set()
        reporter = StatusReporter(state)  # type: ignore[arg-type]
        state.client.away = True
        await reporter.report(urgent=True)
        assert state.client.stored == [] and len(state.wakes) == 1
        state.client.away = False
        await reporter.report(urgent=True)
        assert state.client.stored == ["one"]

    asyncio.run(body())
