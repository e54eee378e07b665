"""The loop that finds pods of other plugins, with a fake clock and a kernel that says what the test says."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from tests.fakes.clock import FakeClock

from podwire.errors import KernelError
from podwire.kernel.monitor import Event
from podwire.model.pod import Pod
from podwire.policy.attached import AttachedPod
from podwire.policy.foreign.discovery import PodDiscovery
from podwire.policy.foreign.kernel import PortAddresses
from podwire.state.network import NetworkState, parse

A, B = "10.244.1.5", "10.244.1.6"


class Pods:
    """A collection changed by hand."""

    def __init__(self) -> None:
        self.objects: dict[str, Pod] = {}
        self.synced = asyncio.Event()
        self._callbacks: list[Callable[[str, Any, Any], None]] = []

    def subscribe(self, callback: Callable[[str, Any, Any], None], *, replay: bool = True) -> None:
        self._callbacks.append(callback)

    def put(self, name: str, address: str = "", node: str = "n1", phase: str = "Running") -> None:
        status = {"phase": phase} | ({"podIP": address, "podIPs": [{"ip": address}]} if address else {})
        document = {"metadata": {"name": name, "namespace": "shop"}, "spec": {"nodeName": node}, "status": status}
        self._change(f"shop/{name}", msgspec.convert(document, Pod))

    def remove(self, name: str) -> None:
        self._change(f"shop/{name}", None)

    def _change(self, key: str, new: Pod | None) -> None:
        old = self.objects.pop(key, None)
        if new is not None:
            self.objects[key] = new
        for callback in self._callbacks:
            callback(key, old, new)


class Node:
    """The kernel of the node."""

    def __init__(self) -> None:
        self.wires: dict[str, str] = {}
        self.failing = False
        self.looks = 0
        self.changed: Callable[[Sequence[Event]], None] = lambda _: None

    @contextmanager
    def watch(self, changed: Callable[[Sequence[Event]], None]) -> Iterator[None]:
        self.changed = changed
        yield

    def read(self) -> tuple[NetworkState, PortAddresses]:
        self.looks += 1
        if self.failing:
            raise KernelError("list", "links", 105)
        lines = [f"link {name} up type veth\nroute {address}/32 dev {name}" for name, address in self.wires.items()]
        return parse("\n".join(lines) + "\n"), {}


class Bench:
    """A discovery that runs, and what it told."""

    def __init__(self) -> None:
        self.pods, self.node, self.clock = Pods(), Node(), FakeClock()
        self.attached: dict[str, AttachedPod] = {}
        self.loads = 0
        self.refusing = False
        self.stuck: list[frozenset[str]] = []
        self.discovery = PodDiscovery("n1", self.pods, self, self.node, self.clock)
        self.discovery.stuck = self.stuck.append

    def attach(self, attached_pod: AttachedPod) -> None:
        self.attached[attached_pod.link] = attached_pod
        if self.refusing:
            raise KernelError("nft", "add element", 12)

    def detach(self, link: str) -> None:
        del self.attached[link]

    def look_again(self) -> None:
        self.loads += 1

    @property
    def found(self) -> dict[str, str]:
        return {item.pod: item.device for item in self.attached.values()}


def with_bench(scenario: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs a scenario."""

    async def run() -> None:
        bench = Bench()
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(body()) for body in (bench.discovery.run, bench.discovery.watch)]
            await scenario(bench)
            for task in running:
                task.cancel()

    def test() -> None:
        asyncio.run(run())

    return test


@with_bench
async def test_existing_pods_are_reported_before_the_start_ends(bench: Bench) -> None:
    bench.node.wires = {"va": A, "vb": B}
    bench.pods.put("a", A)
    bench.pods.put("b", B)
    bench.pods.put("elsewhere", "10.244.2.5", node="n2")
    bench.pods.put("ended", "10.244.1.9", phase="Succeeded")
    await bench.clock.advance(60)
    assert not bench.attached
    assert not bench.discovery.scanned.is_set()
    bench.pods.synced.set()
    await bench.clock.advance(0.03)
    assert bench.found == {"shop/a": "va", "shop/b": "vb"}
    assert bench.discovery.scanned.is_set()
    assert not bench.discovery.unlocated


@with_bench
async def test_a_kernel_that_cannot_be_read_is_looked_at_again(bench: Bench) -> None:
    bench.node.failing = True
    bench.pods.synced.set()
    await bench.clock.advance(1)
    assert not bench.discovery.scanned.is_set()
    bench.node.failing = False
    await bench.clock.advance(0.2)
    assert bench.discovery.scanned.is_set()


async def started(bench: Bench) -> None:
    bench.pods.synced.set()
    await bench.clock.advance(1)


@with_bench
async def test_changes_of_pods_and_devices_are_followed_20_ms_later(bench: Bench) -> None:
    await started(bench)
    bench.node.wires = {"va": A}
    bench.pods.put("a", A)
    await bench.clock.advance(0.019)
    assert not bench.attached
    await bench.clock.advance(0.002)
    assert bench.found == {"shop/a": "va"}
    await bench.clock.advance(1)
    bench.node.wires = {"other": A}
    bench.node.changed([Event("route")])
    await bench.clock.advance(0.021)
    assert bench.found == {"shop/a": "other"}
    await bench.clock.advance(1)
    bench.pods.put("a", A, phase="Failed")
    await bench.clock.advance(0.021)
    assert not bench.attached


@with_bench
async def test_looks_are_a_tenth_of_a_second_apart(bench: Bench) -> None:
    await started(bench)
    before = bench.node.looks
    for _ in range(100):
        bench.node.changed([Event("link")])
        await bench.clock.advance(0.01)
    assert 7 <= bench.node.looks - before <= 9


@with_bench
async def test_neighbour_events_matter_during_a_search_and_delays_are_reported(bench: Bench) -> None:
    await started(bench)
    before = bench.node.looks
    bench.node.changed([Event("neighbour")])
    await bench.clock.advance(1)
    assert bench.node.looks == before
    bench.pods.put("a", A)
    await bench.clock.advance(0.1)
    assert bench.discovery.unlocated == {"shop/a"}
    assert not any(bench.stuck)
    await bench.clock.advance(4)
    assert bench.stuck[-1] == {"shop/a"}
    bench.node.wires = {"va": A}
    bench.node.changed([Event("neighbour")])
    await bench.clock.advance(4)
    assert bench.found == {"shop/a": "va"}
    assert not bench.stuck[-1]


@with_bench
async def test_pods_reported_by_another_source_are_ignored(bench: Bench) -> None:
    bench.attached["vx"] = AttachedPod(pod="shop/a", device="cni0", port="vx", addresses=(A,))
    bench.node.wires = {"va": A}
    bench.pods.put("a", A)
    await started(bench)
    assert list(bench.attached) == ["vx"]
    bench.pods.remove("a")
    await bench.clock.advance(1)
    assert list(bench.attached) == ["vx"]


@with_bench
async def test_bridges_are_read_on_each_search_and_every_two_seconds(bench: Bench) -> None:
    answers = [True]
    bench.discovery.bridges_changed = lambda: bool(answers and answers.pop())
    await started(bench)
    assert bench.loads == 1
    answers.append(True)
    await bench.clock.advance(2.1)
    assert bench.loads == 2
    await bench.clock.advance(10)
    assert bench.loads == 2


@with_bench
async def test_pod_with_refused_policies_is_reported_once(bench: Bench) -> None:
    """The enforcement keeps it and tries again by itself."""
    bench.refusing = True
    bench.node.wires = {"va": A}
    bench.pods.put("a", A)
    await started(bench)
    assert bench.found == {"shop/a": "va"}
    bench.attached.clear()
    bench.node.changed([Event("link")])
    await bench.clock.advance(1)
    assert not bench.attached
