"""Leader election against a small Lease store, on a clock moved by hand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from tests.fakes.clock import FakeClock
from tests.unit.patient_loop import LoopClock, hurried

from podwire.errors import ApiUnreachable, ClusterError, Conflict, NotFound
from podwire.kube.client import Client
from podwire.kube.lease import Election, LeaderElection
from podwire.kube.resources import Resource
from podwire.runtime.clock import Clock
from podwire.runtime.supervise import Supervisor

JsonObject = dict[str, Any]
Contend = Callable[[str], asyncio.Task[None]]
"""Starts a candidate of this name."""


class Leases:
    """One Lease with optimistic concurrency, as a client would see it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.stored: JsonObject | None = None
        self.version = 0
        self.away: set[str] = set()
        self.silent = False
        self.under_way = False
        """Whether a renewal that nobody waits for any more is stored behind the next read."""

    def client(self, name: str) -> Client:
        """The Lease as this candidate reaches it."""
        return cast("Client", LeaseClient(self, name))


class LeaseClient:
    def __init__(self, leases: Leases, name: str) -> None:
        self.leases = leases
        self.name = name
        self.clock = leases.clock

    def reach(self) -> None:
        if self.name in self.leases.away:
            raise ApiUnreachable("away")

    async def get(self, resource: Resource[Any], name: str, namespace: str) -> JsonObject:
        self.reach()
        if self.leases.silent:
            await asyncio.sleep(3600)
        if self.leases.stored is None:
            raise NotFound(404, "NotFound", "no lease")
        result = {"metadata": dict(self.leases.stored["metadata"]), "spec": dict(self.leases.stored["spec"])}
        if self.leases.under_way:
            self.leases.under_way = False
            self.put(self.leases.stored)
        return result

    async def create(self, resource: Resource[Any], body: JsonObject, namespace: str) -> JsonObject:
        return self.put(body)

    async def update(self, resource: Resource[Any], body: JsonObject, namespace: str, *, name: str) -> JsonObject:
        self.reach()
        assert self.leases.stored is not None
        if body["metadata"].get("resourceVersion") != self.leases.stored["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "changed")
        return self.put(body)

    def put(self, body: JsonObject) -> JsonObject:
        self.reach()
        self.leases.version += 1
        self.leases.stored = body | {"metadata": body["metadata"] | {"resourceVersion": str(self.leases.version)}}
        return self.leases.stored


def run(body: Callable[[FakeClock, Leases, list[str], Contend], Awaitable[None]]) -> None:
    async def go() -> None:
        clock = FakeClock()
        leases = Leases(clock)
        leading: list[str] = []

        def contend(supervisor: Supervisor, name: str) -> asyncio.Task[None]:
            election = LeaderElection(leases.client(name), Election("ns", "e", name))

            async def lead() -> None:
                leading.append(name)
                try:
                    await clock.sleep(1e9)
                finally:
                    leading.remove(name)

            async def forever() -> None:
                while True:
                    await election.run(lead)

            return supervisor.start(name, forever)

        async with Supervisor(clock, lambda name, failure: None) as supervisor:
            await body(clock, leases, leading, lambda name: contend(supervisor, name))
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(go())


def test_one_leads_and_another_takes_over_after_the_duration() -> None:
    async def body(clock: FakeClock, leases: Leases, leading: list[str], contend: Contend) -> None:
        contend("a")
        await clock.advance(0.1)
        contend("b")
        await clock.advance(60)
        assert leading == ["a"]
        leases.away.add("a")
        for _ in range(40):
            await clock.advance(1)
            assert len(leading) <= 1
        assert leading == ["b"]
        leases.away.clear()
        await clock.advance(30)
        assert leading == ["b"]
        assert leases.stored is not None
        assert leases.stored["spec"]["leaseTransitions"] == 1

    run(body)


def test_a_leader_stops_before_another_may_start() -> None:
    async def body(clock: FakeClock, leases: Leases, leading: list[str], contend: Contend) -> None:
        contend("a")
        await clock.advance(3)
        leases.away.add("a")
        await clock.advance(13)
        assert leading == []

    run(body)


def test_a_clean_end_hands_over_at_once() -> None:
    async def body(clock: FakeClock, leases: Leases, leading: list[str], contend: Contend) -> None:
        first = contend("a")
        await clock.advance(1)
        contend("b")
        await clock.advance(4)
        first.cancel()
        await clock.advance(2.1)
        assert leading == ["b"]

    run(body)


def test_renewal_during_a_clean_end_does_not_delay_the_successor() -> None:
    async def body(clock: FakeClock, leases: Leases, leading: list[str], contend: Contend) -> None:
        first = contend("a")
        await clock.advance(1)
        contend("b")
        await clock.advance(3.5)
        leases.under_way = True
        first.cancel()
        await clock.advance(2.1)
        assert leading == ["b"]

    run(body)


def test_a_leader_stops_when_the_api_stops_answering() -> None:
    async def go() -> None:
        leases = Leases(LoopClock())
        election = LeaderElection(leases.client("a"), Election("ns", "e", "a", 3.0, 2.0, 0.5))
        until: list[float] = []

        async def lead() -> None:
            leases.silent = True
            try:
                await asyncio.sleep(3600)
            finally:
                until.append(leases.clock.monotonic())

        began = leases.clock.monotonic()
        running = asyncio.ensure_future(election.run(lead))
        while not until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert 2.0 <= until[0] - began < 3.0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with hurried():
        asyncio.run(go())


def test_a_second_run_is_refused_while_the_first_renews() -> None:
    async def body(clock: FakeClock, leases: Leases, leading: list[str], contend: Contend) -> None:
        contend("a")
        await clock.advance(1)
        assert leading == ["a"]
        failures: list[BaseException] = []
        ran: list[str] = []

        async def work() -> None:
            ran.append("b")

        async def second() -> None:
            try:
                await LeaderElection(leases.client("b"), Election("ns", "e", "b")).run_alone(work)
            except ClusterError as failure:
                failures.append(failure)

        task = asyncio.ensure_future(second())
        for _ in range(10):
            await clock.advance(1)
        assert [str(failure) for failure in failures] == [
            "Lease ns/e is held by a, which is still running; wait until it ends"
        ]
        leases.away.add("a")  # a was killed: the Lease stays
        task = asyncio.ensure_future(second())
        for _ in range(40):
            await clock.advance(1)
        await task
        assert (ran, len(failures)) == (["b"], 1), "a Lease that nobody renews is taken over"

    run(body)


@pytest.mark.parametrize("renewed", ["2001-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
def test_the_clock_of_another_machine_does_not_matter(renewed: str) -> None:
    async def body(clock: FakeClock, leases: Leases, leading: list[str], contend: Contend) -> None:
        spec = {"holderIdentity": "skewed", "renewTime": renewed, "leaseDurationSeconds": 15}
        LeaseClient(leases, "skewed").put({"metadata": {"name": "e"}, "spec": spec})
        contend("a")
        await clock.advance(10)
        assert leading == [], "its time looks old, but it may be alive"
        await clock.advance(10)
        assert leading == ["a"], "nobody has renewed it for 15 s"

    run(body)
