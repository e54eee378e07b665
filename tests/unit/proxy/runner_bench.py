"""A proxy on sources, a data plane and a clock that the test controls."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from tests.fakes.collection import Collection

from podwire.dataplane.plane import Written
from podwire.errors import KernelError
from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.model.service import SERVICE_NAME_LABEL
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.proxy.servicemap import NodeFacts, ResolvedPort, ServiceMap
from podwire.state.nft import Table

SERVICE = api.Service(
    metadata=ObjectMeta(name="web", namespace="default"),
    spec=api.ServiceSpec(cluster_ip="10.96.0.1", ports=(api.ServicePort(port=80, protocol="UDP"),)),
)


def piece(address: str, service: str = "web") -> api.EndpointSlice:
    return api.EndpointSlice(
        metadata=ObjectMeta(name="web-1", namespace="default", labels={SERVICE_NAME_LABEL: service}),
        endpoints=(api.Endpoint(addresses=(address,)),),
        ports=(api.EndpointPort(name="", port=8080, protocol="UDP"),),
    )


class Memory:
    """A data plane that records its calls."""

    name = "memory"
    instant = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.facts: NodeFacts | None = None
        self.failures = 0
        self.surprises = 0
        self.lacks = False
        """Whether a load finds the kernel without what it should hold."""
        self.whole = False  # healing finds nothing to do
        self.unheard = False
        """Whether another program changed rules without making the descriptor readable."""
        self.work: Callable[[], None] = lambda: None
        self.read, self.write = os.pipe()

    def _note(self, subject: str, services: ServiceMap) -> None:
        self.work()
        if self.surprises:
            self.surprises -= 1
            raise RuntimeError("unexpected")
        if self.failures:
            self.failures -= 1
            raise KernelError("nft", "add element", 12)
        ports = (f"{key}={','.join(map(str, p.cluster_endpoints))}" for key, v in services.items() for p in v)
        self.calls.append((subject, tuple(ports)))

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> Written:
        self.facts = facts
        self._note("load", services)
        return ("restored" if self.lacks else "",)

    def update(self, services: ServiceMap, changed: ServiceMap) -> Written:
        self._note("update", changed)
        return ()

    def heal(self, services: ServiceMap) -> Written:
        self._note("heal", {})
        return () if self.whole else ("healed",)

    def fileno(self) -> int:
        return self.read

    def disturbed(self) -> bool:
        unheard, self.unheard = self.unheard, False
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(self.read, False)
            return bool(os.read(self.read, 10))
        return unheard

    def conflicts(self) -> tuple[str, ...]:
        return ()

    def desired(self) -> tuple[Table, ...]:
        return ()

    def remove(self) -> None: ...

    def close(self) -> None: ...


class Stepping:
    """A clock whose sleeps end at once and are remembered."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.time = 0.0
        self.at_zero: Callable[[], None] = lambda: None
        self.blocked = False
        """Whether a sleep that begins now lasts until it is cancelled."""

    def monotonic(self) -> float:
        return self.time

    def now(self) -> Any:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.blocked:
            await asyncio.Event().wait()
        self.time += seconds
        if not seconds:
            self.at_zero()
        await asyncio.sleep(0)


class Told:
    """A reporter that remembers."""

    def __init__(self, problem: Callable[[], str]) -> None:
        self.events, self.problems = list[str](), list[str]()
        self._problem = problem

    def service_changed(self) -> None:
        self.events.append("service")

    def endpoints_changed(self, piece: api.EndpointSlice) -> None:
        self.events.append(f"endpoints {piece.metadata.name}")

    def begin(self) -> None:
        self.events.append("begin")

    def committed(self, changed: ServiceMap, *, full: bool) -> None:
        self.events.append(f"committed {'all' if full else ''}{','.join(changed)}")

    def refused(self, failure: KernelError) -> None:
        self.events.append(f"refused {failure.errno}")
        self.problems.append(self._problem())

    def flows_forgotten(self, counts: Mapping[str, int], duration_s: float) -> None:
        self.events.append(f"forgot {sum(counts.values())}")


class Bench:
    """A proxy on sources, plane and clock."""

    def __init__(self) -> None:
        self.services = Collection[api.Service]()
        self.slices = Collection[api.EndpointSlice]()
        self.nodes = Collection[Node]()
        self.plane, self.clock = Memory(), Stepping()
        self.flows: list[tuple[int, int]] = []
        self.gaps = 0
        self.told = Told(lambda: self.proxy.problem)
        self.proxy = ServiceProxy(
            Sources(self.services, self.slices, self.nodes), self.plane, NodeFacts(name="n1"), self.clock, self.clean,
            self.told,
        )  # fmt: skip

    def clean(
        self, before: tuple[ResolvedPort, ...], after: tuple[ResolvedPort, ...], *, gap: bool = False
    ) -> Callable[[], Mapping[str, int]] | None:
        self.gaps += gap
        if not before and not after:
            return None
        self.flows.append((len(before), len(after)))
        return lambda: {"IPv4": len(before)}

    @contextlib.asynccontextmanager
    async def running(self, *, synced: bool = True) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.proxy.run())
            if synced:
                self.services.synced.set()
                self.slices.synced.set()
                self.nodes.synced.set()
                await self.proxy.programmed.wait()
            yield
            task.cancel()
        os.close(self.plane.read)
        os.close(self.plane.write)

    async def forgot(self, gaps: int) -> bool:
        """Whether flows were looked for so often after rules were away, which follows what the plane is told."""
        for _ in range(20_000):
            if self.gaps < gaps:
                await asyncio.sleep(0.001)
        return self.gaps == gaps

    async def calls(self, count: int) -> list[tuple[str, tuple[str, ...]]]:
        for _ in range(20_000):
            if len(self.plane.calls) >= count and self.proxy.programmed.is_set():
                break
            await asyncio.sleep(0.001)
        return self.plane.calls


def run(scenario: Callable[[Bench], Any]) -> None:
    async def main() -> None:
        await scenario(Bench())

    asyncio.run(main())
