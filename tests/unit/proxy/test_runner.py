"""The loop over the sources, with a fake clock and a data plane that only remembers."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest
from tests.fakes.collection import Collection

from podwire.dataplane.plane import Written
from podwire.errors import KernelError
from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.model.node import ZONE_LABEL, Node, NodeAddress, NodeSpec, NodeStatus
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

    def _note(self, what: str, services: ServiceMap) -> None:
        self.work()
        if self.surprises:
            self.surprises -= 1
            raise RuntimeError("unexpected")
        if self.failures:
            self.failures -= 1
            raise KernelError("nft", "add element", 12)
        ports = (f"{key}={','.join(map(str, p.cluster_endpoints))}" for key, v in services.items() for p in v)
        self.calls.append((what, tuple(ports)))

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


def test_nothing_is_written_before_everything_is_known() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running(synced=False):
            bench.services.put("default/web", SERVICE)
            bench.services.synced.set()
            await asyncio.sleep(0.01)
            assert bench.plane.calls == []
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            bench.slices.synced.set()
            await asyncio.sleep(0.01)
            assert bench.plane.calls == []
            status = NodeStatus(addresses=(NodeAddress(type="InternalIP", address="192.168.99.1"),))
            bench.nodes.put("n1", Node(metadata=ObjectMeta(name="n1"), status=status))
            bench.nodes.synced.set()
            assert await bench.calls(1) == [("load", ("default/web=10.0.0.1:8080",))]
            assert bench.plane.facts == NodeFacts(name="n1", addresses=("192.168.99.1",))

    run(scenario)


def test_changes_are_coalesced_and_only_theirs_is_resolved() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.services.put("default/web", SERVICE)
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            assert (await bench.calls(2))[1:] == [("update", ("default/web=10.0.0.1:8080",))]
            assert bench.clock.slept == [0.002]
            bench.slices.put("default/web-1", piece("10.0.0.2"))
            assert (await bench.calls(3))[2:] == [("update", ("default/web=10.0.0.2:8080",))]
            bench.services.put("default/web", None)
            await bench.calls(4)
            assert bench.proxy.services == {}

    run(scenario)


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.05, 0.2), (3.0, 1.0)])
def test_next_commit_waits_in_proportion_to_the_last(took_s: float, rest_s: float) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():

            def work() -> None:
                bench.clock.time += took_s
                if len(bench.plane.calls) == 1:
                    bench.slices.put("default/web-1", piece("10.0.0.1"))

            bench.plane.work = work
            bench.services.put("default/web", SERVICE)
            assert await bench.calls(3) == [
                ("load", ()), ("update", ("default/web=",)), ("update", ("default/web=10.0.0.1:8080",)),
            ]  # fmt: skip
            bench.clock.time += 60
            bench.services.put("default/web", None)
            await bench.calls(4)
            assert bench.clock.slept == [0.002, pytest.approx(rest_s), 0.002]

    run(scenario)


def test_an_unexpected_failure_loses_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(ExceptionGroup):
            async with bench.running():
                bench.plane.surprises = 1
                bench.services.put("default/web", SERVICE)
                await asyncio.sleep(0.1)
        bench.plane.read, bench.plane.write = os.pipe()
        async with bench.running():
            assert (await bench.calls(2))[1:] == [("load", ("default/web=",))]
            bench.services.put("default/web", None)
            await bench.calls(3)
            assert bench.told.events.count("service") == 2

    run(scenario)


def test_a_slice_that_changes_its_service_leaves_the_old_one() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.services.put("default/web", SERVICE)
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            await bench.calls(2)
            bench.slices.put("default/web-1", piece("10.0.0.1", service="other"))
            assert (await bench.calls(3))[2:] == [("update", ("default/web=",))]

    run(scenario)


def test_what_changes_while_many_are_resolved_comes_next() -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(1000):
            bench.services.put(f"default/web{number}", SERVICE)
        bench.services.put("default/web", SERVICE)
        bench.clock.at_zero = lambda: bench.slices.put("default/web-1", piece("10.0.0.1"))
        async with bench.running():
            await bench.calls(1)
            assert str(bench.proxy.services["default/web"][0].cluster_endpoints[0]) == "10.0.0.1:8080"
            assert any("default/web=10.0.0.1:8080" in texts for _, texts in bench.plane.calls)
            assert bench.clock.slept.count(0) == 5

    run(scenario)


def test_what_does_not_matter_is_not_written() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.services.put("default/web", SERVICE)
            await bench.calls(2)
            bench.services.put("default/web", SERVICE)
            await bench.proxy.programmed.wait()
            assert len(bench.plane.calls) == 2

    run(scenario)


def test_a_changed_node_means_all() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            status = NodeStatus(addresses=(NodeAddress(type="InternalIP", address="192.168.99.1"),))
            node = Node(metadata=ObjectMeta(name="n1", labels={ZONE_LABEL: "z1"}), status=status)
            bench.nodes.put("n2", Node(metadata=ObjectMeta(name="n2")))
            bench.nodes.put("n1", node)
            assert [what for what, _ in await bench.calls(2)] == ["load", "load"]
            assert bench.plane.facts == NodeFacts(name="n1", zone="z1", addresses=("192.168.99.1",))
            bench.nodes.put("n1", node)
            await asyncio.sleep(0.01)
            assert len(bench.plane.calls) == 2

    run(scenario)


@pytest.mark.parametrize("failures", [1, 3])
def test_a_refusal_is_tried_again_with_everything(failures: int) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.failures = failures
            bench.services.put("default/web", SERVICE)
            assert (await bench.calls(2))[1:] == [("load", ("default/web=",))]
            assert len([delay for delay in bench.clock.slept if delay >= 0.1]) == failures

    run(scenario)


def test_disturbed_rules_are_healed() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.work = lambda: setattr(bench.clock, "time", bench.clock.time + 0.5)
            for count in (2, 3):
                os.write(bench.plane.write, b"x")
                assert (await bench.calls(count))[1:] == [("heal", ())] * (count - 1)
                assert await bench.forgot(count - 1)
            assert bench.clock.slept == [0.0, 0.5]

    run(scenario)


@pytest.mark.parametrize("lacks", [False, True])
def test_early_flows_are_forgotten_when_the_kernel_lacked_rules(lacks: bool) -> None:
    async def scenario(bench: Bench) -> None:
        bench.plane.lacks = lacks
        bench.services.put("default/web", SERVICE)
        async with bench.running():
            assert bench.gaps == lacks
            bench.proxy.configure(NodeFacts(name="n1", masquerade_all=True))
            assert [what for what, _ in await bench.calls(2)] == ["load", "load"]
            assert bench.gaps == lacks, "whatever else is written: the rules were there"

    run(scenario)


def test_flushed_rules_do_not_wait_after_a_commit() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.work = lambda: setattr(bench.clock, "time", bench.clock.time + 0.5)
            bench.services.put("default/web", SERVICE)
            await bench.calls(2)
            bench.clock.blocked = True
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            await asyncio.sleep(0.01)
            assert bench.clock.slept[-1] == pytest.approx(1.0), "the rest after a commit of 0.5 s"
            bench.clock.blocked = False
            os.write(bench.plane.write, b"x")
            wanted = [("update", ("default/web=10.0.0.1:8080",)), ("heal", ())]
            assert (await bench.calls(4))[2:] == wanted
            assert bench.clock.slept[-1] == 0.0

    run(scenario)


def test_refused_heal_causes_a_load_and_forgets_new_flows() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.failures, bench.plane.lacks = 1, True
            os.write(bench.plane.write, b"x")
            assert [what for what, _ in await bench.calls(2)] == ["load", "load"]
            assert await bench.forgot(1)

    run(scenario)


@pytest.mark.parametrize(("full", "flushed"), [(False, False), (False, True), (True, False), (True, True)])
def test_flows_are_forgotten_after_a_write_that_repaired_rules(full: bool, flushed: bool) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.whole = bench.plane.lacks = True
            bench.plane.work = lambda: setattr(bench.plane, "unheard", flushed and len(bench.plane.calls) == 1)
            if full:
                bench.proxy.configure(NodeFacts(name="n1", masquerade_all=True))
            else:
                bench.services.put("default/web", SERVICE)
            wanted = ["load", "load" if full else "update", *(["heal"] if flushed else [])]
            assert [what for what, _ in await bench.calls(len(wanted))] == wanted
            assert await bench.forgot(flushed)

    run(scenario)


def test_unnoticed_disturbance_during_a_write_is_healed_after() -> None:
    async def scenario(bench: Bench) -> None:
        disturbances = iter((True, True))

        def disturb() -> None:
            bench.plane.unheard = next(disturbances, False)

        bench.plane.work = disturb
        async with bench.running():
            assert await bench.calls(3) == [("load", ()), ("heal", ()), ("heal", ())]

    run(scenario)


def test_flows_are_looked_at_after_udp_changes() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.services.put("default/web", SERVICE)
            await bench.calls(2)
            bench.services.put("default/web", None)
            await bench.calls(3)
            assert bench.flows == [(0, 1), (1, 0)]

    run(scenario)


def test_what_happens_is_reported_and_a_refused_commit_loses_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            bench.plane.failures = 1
            bench.services.put("default/web", SERVICE)
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            bench.slices.put("default/other", piece("10.0.0.1", service=""))
            assert not bench.proxy.problem, "a change on its way is no problem"
            await bench.calls(2)
            assert bench.told.problems == ["Services are not programmed: nft add element: errno 12"]
            assert not bench.proxy.problem
            assert bench.told.events == [
                "begin", "committed all", "service", "endpoints web-1",
                "begin", "refused 12", "begin", "committed alldefault/web", "forgot 0",
            ]  # fmt: skip
            assert bench.flows == [(0, 1)]

    run(scenario)


def test_pods_may_be_those_of_the_node_s_own_ranges() -> None:
    async def scenario(bench: Bench) -> None:
        facts = NodeFacts(name="n1", pod_cidrs_of_node=True)
        sources = Sources(bench.services, bench.slices, bench.nodes)
        bench.proxy = ServiceProxy(sources, bench.plane, facts, bench.clock)
        async with bench.running():
            bench.nodes.put("n1", Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(pod_cidrs=("10.0.1.0/24",))))
            await bench.calls(2)
            assert bench.plane.facts is not None
            assert bench.plane.facts.pod_cidrs == ("10.0.1.0/24",)

    run(scenario)


def test_new_settings_reload_all_and_keep_node_facts() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.running():
            status = NodeStatus(addresses=(NodeAddress(type="InternalIP", address="192.168.99.1"),))
            labels, spec = {ZONE_LABEL: "z1"}, NodeSpec(pod_cidrs=("10.0.1.0/24",))
            bench.nodes.put("n1", Node(metadata=ObjectMeta(name="n1", labels=labels), spec=spec, status=status))
            external = msgspec.structs.replace(SERVICE.spec, external_ips=("203.0.113.7",))
            bench.services.put("default/web", msgspec.structs.replace(SERVICE, spec=external))
            bench.slices.put("default/web-1", piece("10.0.0.1"))
            await bench.calls(2)
            (port,) = bench.proxy.services["default/web"]
            assert port.external_ips == ("203.0.113.7",)
            bench.proxy.configure(NodeFacts(name="n1", pod_cidrs_of_node=True, masquerade_bit=3, external_ips=False))
            assert (await bench.calls(3))[2:] == [("load", ("default/web=10.0.0.1:8080",))]
            facts = NodeFacts(
                name="n1", zone="z1", addresses=("192.168.99.1",), pod_cidrs=("10.0.1.0/24",), pod_cidrs_of_node=True,
                masquerade_bit=3, external_ips=False,
            )  # fmt: skip
            assert bench.plane.facts == bench.proxy.facts == facts
            (port,) = bench.proxy.services["default/web"]
            assert port.external_ips == ()

    run(scenario)
