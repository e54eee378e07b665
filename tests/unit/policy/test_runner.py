"""The loop over the sources, with a fake clock and a data plane that only remembers."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import pytest
from tests.cases.policy_table import read_cases
from tests.fakes.clock import FakeClock
from tests.fakes.collection import Collection

from podwire.dataplane.plane import Written
from podwire.errors import KernelError
from podwire.model.changed import Changed
from podwire.model.meta import Object, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.attached import AttachedPod
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.objects import Sources
from podwire.policy.runner import Enforcement
from podwire.policy.status.counts import Counted
from podwire.policy.verdicts import RuleHit
from podwire.state.nft import Table

WORLD = read_cases(Path(__file__).parents[2] / "cases/policies")[0].world
DENY = msgspec.convert(
    {"metadata": {"name": "deny", "namespace": "shop"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}},
    NetworkPolicy,
)


class Memory:
    """A data plane that remembers which pod has which device and how many profiles."""

    name = "memory"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.devices: dict[str, str] = {}
        self.facts = PolicyFacts()
        self.isolated: set[str] = set()
        self.failures = 0
        self.foreign = False
        self.held = False
        """Whether somebody else holds the lock."""
        self.working: Callable[[], None] = lambda: None
        """Called by each update; a test spends time there."""
        self.read, self.write = os.pipe()

    def _take(self, subject: str, compiler: Compiler, devices: Mapping[str, str], pods: Iterable[str]) -> Written:
        if self.failures:
            self.failures -= 1
            raise KernelError("nft", "add element", 12)
        self.calls.append(subject)
        for pod in pods:
            result = compiler.pods.get(pod)
            self.devices.pop(pod, None)
            self.isolated.discard(pod)
            if result is not None and pod in devices:
                self.devices[pod] = f"{devices[pod]} {','.join(result.addresses)}"
                if result.ingress is not None:
                    self.isolated.add(pod)
        return []

    def load(self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None) -> Written:
        self.facts = facts or self.facts
        self.devices, self.isolated = {}, set()
        return self._take("load", compiler, devices, compiler.pods)

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: PolicyDelta, facts: PolicyFacts | None = None
    ) -> Written:
        self.working()
        self.facts = facts or self.facts
        return self._take("update", compiler, devices, delta.pods)

    def heal(self) -> Written:
        if self.failures:
            self.failures -= 1
            raise KernelError("nft", "list table", 12)
        self.calls.append("heal")
        return ["healed"]

    def locked(self) -> bool:
        return self.held

    def disturbed(self) -> bool:
        return self.foreign

    def fileno(self) -> int:
        return self.read

    def hit(self, _prefix: str) -> RuleHit | None:
        return None

    def counts(self) -> tuple[Counted, ...]:
        return ()

    def desired(self) -> tuple[Table, ...]:
        return ()

    def remove(self) -> None: ...

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


class Bench:
    """An enforcement on node n1 with everything that it needs."""

    def __init__(self) -> None:
        self.pods = Collection[Pod]()
        self.namespaces = Collection[Object]()
        self.nodes = Collection[Node]()
        self.policies = Collection[NetworkPolicy]()
        self.cluster = Collection[ClusterNetworkPolicy]()
        self.synced = [
            collection.synced for collection in (self.pods, self.namespaces, self.nodes, self.policies, self.cluster)
        ]
        self.plane = Memory()
        self.clock = FakeClock()
        sources = Sources(
            pods=self.pods,
            namespaces=self.namespaces,
            nodes=self.nodes,
            policies=self.policies,
            cluster_policies=self.cluster,
        )
        self.told: list[tuple[dict[Changed, float], float]] = []
        self.enforcement = Enforcement(sources, self.plane, Compiler("n1"), self.clock, self)

    def committed(
        self, _delta: PolicyDelta, _duration_s: float, changed: Mapping[Changed, float], *, full: bool
    ) -> None:
        assert not full or self.plane.calls[-1] == "load"
        self.told.append((dict(changed), self.clock.monotonic()))

    def refused(self, _failure: KernelError) -> None: ...

    def fill(self) -> None:
        for pod in WORLD.pods:
            self.pods.put(key_of(pod.metadata), pod)
        for namespace in WORLD.namespaces:
            self.namespaces.put(namespace.metadata.name, namespace)
        for node in WORLD.nodes:
            spec = msgspec.structs.replace(node.spec, pod_cidrs=("10.180.0.0/24",))
            self.nodes.put(node.metadata.name, msgspec.structs.replace(node, spec=spec))

    async def start(self) -> None:
        self.fill()
        for synced in self.synced:
            synced.set()
        await self.clock.advance(1)

    def taken(self) -> list[str]:
        calls, self.plane.calls = self.plane.calls, []
        return calls


def with_bench(scenario: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs a scenario with an enforcement that runs."""

    async def run() -> None:
        bench = Bench()
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(bench.enforcement.run())
                await scenario(bench)
                running.cancel()
        finally:
            bench.plane.close()

    def test() -> None:
        asyncio.run(run())

    return test


def attached(pod: str, device: str = "dev", address: str = "10.180.0.1", uid: str = "") -> AttachedPod:
    return AttachedPod(pod=pod, device=device, addresses=(address,), uid=uid)


@with_bench
async def test_nothing_is_written_before_everything_is_known(bench: Bench) -> None:
    bench.fill()
    for synced in bench.synced:
        await bench.clock.advance(60)
        assert bench.taken() == []
        assert not bench.enforcement.loaded.is_set()
        assert bench.enforcement.problem == "policies are not in force yet"
        synced.set()
    await bench.clock.advance(0.1)
    assert bench.taken() == ["load"]
    assert bench.enforcement.loaded.is_set()
    ranges = ("10.180.0.0/24",)
    assert bench.plane.facts == PolicyFacts(
        pod_ranges=ranges, addresses=("192.168.99.1", "fd99::1", "10.180.0.0", "10.180.0.1"), cluster_ranges=ranges
    )


@with_bench
async def test_foreign_annotations_are_no_change(bench: Bench) -> None:
    await bench.start()
    bench.policies.put("shop/deny", DENY)
    await bench.clock.advance(0.1)
    bench.taken()
    bench.told.clear()
    for annotations in ({"podwire.io/enforced": "{}"}, {"podwire.io/enforced": "{}", "podwire.io/mode": "audit"}):
        meta = msgspec.structs.replace(DENY.metadata, annotations=annotations, resource_version="9")
        bench.policies.put("shop/deny", msgspec.structs.replace(DENY, metadata=meta))
        await bench.clock.advance(0.1)
    assert len(bench.told) == 1
    assert list(bench.told[0][0]) == [Changed("NetworkPolicy", "shop/deny")]


@with_bench
async def test_commit_names_its_causes_and_when_they_arrived(bench: Bench) -> None:
    await bench.start()
    bench.told.clear()
    first = bench.clock.monotonic()
    bench.policies.put("shop/deny", DENY)
    await bench.clock.advance(0.002)
    bench.policies.put("shop/deny", None)
    meta = msgspec.structs.replace(DENY.metadata, name="other")
    bench.policies.put("shop/other", msgspec.structs.replace(DENY, metadata=meta))
    await bench.clock.advance(0.1)
    ((changed, at),) = bench.told
    assert changed == {
        Changed("NetworkPolicy", "shop/deny"): first,
        Changed("NetworkPolicy", "shop/other"): pytest.approx(first + 0.002),
    }
    assert at - first < 0.04


@with_bench
async def test_a_burst_of_changes_is_one_commit(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    for number in range(10):
        meta = msgspec.structs.replace(DENY.metadata, name=f"p{number}")
        bench.policies.put(f"shop/p{number}", msgspec.structs.replace(DENY, metadata=meta))
        await bench.clock.advance(0.001)
    await bench.clock.advance(0.1)
    assert bench.taken() == ["update"]
    assert bench.enforcement.programmed.is_set()


@with_bench
async def test_steady_changes_use_half_of_the_time_for_commits(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    bench.plane.working = lambda: bench.clock.spend(0.1)
    started = bench.clock.monotonic()
    for number in range(100):
        meta = msgspec.structs.replace(DENY.metadata, name=f"p{number}")
        bench.policies.put(f"shop/p{number}", msgspec.structs.replace(DENY, metadata=meta))
        await bench.clock.advance(0.02)
    commits = len(bench.taken())
    assert commits > 5
    assert commits * 0.1 <= (bench.clock.monotonic() - started) / 2 + 0.1
    await bench.clock.advance(2)
    bench.told.clear()
    bench.policies.put("shop/last", msgspec.structs.replace(DENY, metadata=meta))
    changed_at = bench.clock.monotonic()
    await bench.clock.advance(1)
    ((_, at),) = bench.told
    assert at - changed_at < 0.15  # one change alone waits for nothing


@with_bench
async def test_a_pod_is_in_the_kernel_when_attach_returns(bench: Bench) -> None:
    await bench.start()
    bench.policies.put("shop/deny", DENY)
    await bench.clock.advance(1)
    bench.taken()
    bench.enforcement.attach(attached("shop/web", "web-1", "10.180.0.77"))
    assert bench.taken() == ["update"]
    assert bench.plane.devices == {"shop/web": "web-1 10.180.0.77"}
    assert bench.plane.isolated == {"shop/web"}
    bench.enforcement.detach("web-1")
    await bench.clock.advance(1)
    assert bench.plane.devices == {}


@with_bench
async def test_pods_that_are_attached_together_share_a_commit(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    bench.enforcement.attach(attached("shop/web", "web-1", "10.180.0.77"), attached("", "new-1", "10.180.0.51"))
    assert bench.taken() == ["update"]
    assert bench.plane.devices == {"shop/web": "web-1 10.180.0.77", "/new-1": "new-1 10.180.0.51"}


@with_bench
async def test_a_pod_that_is_not_known_has_no_device(bench: Bench) -> None:
    await bench.start()
    bench.enforcement.attach(attached("shop/new", "new-1"))
    await bench.clock.advance(1)
    assert bench.plane.devices == {}
    pod = with_uid(bench.pods.objects["shop/web"], "u2", "new")
    bench.pods.put("shop/new", pod)
    await bench.clock.advance(1)
    assert "shop/new" in bench.plane.devices


def with_uid(pod: Pod, uid: str, name: str) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=uid, name=name))


@with_bench
async def test_waiting_for_a_pod_compares_its_uid(bench: Bench) -> None:
    await bench.start()
    web = bench.pods.objects["shop/web"]
    bench.pods.put("shop/web", with_uid(web, "old", "web"))
    waiting = asyncio.ensure_future(bench.enforcement.admission.known("shop/web", "new"))
    await bench.clock.advance(1)
    assert not waiting.done()
    bench.enforcement.attach(attached("shop/web", uid="new"))
    assert bench.plane.devices == {}
    bench.pods.put("shop/web", with_uid(web, "new", "web"))
    await bench.clock.advance(1)
    assert waiting.done()
    assert "shop/web" in bench.plane.devices


@with_bench
async def test_other_work_continues_while_the_lock_is_held(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    bench.plane.held = True
    bench.policies.put("shop/deny", DENY)
    pod = asyncio.ensure_future(bench.enforcement.admission.known("shop/web"))
    await bench.clock.advance(1)
    assert bench.taken() == []
    assert not pod.done()
    bench.plane.held = False
    await bench.clock.advance(0.1)
    assert bench.taken() == ["update"]
    assert pod.done()
    bench.plane.held = True
    bench.policies.put("shop/deny", None)
    await bench.clock.advance(9)
    assert bench.taken() == []
    await bench.clock.advance(2)
    assert bench.taken() == ["update"], "after 10 s the data plane waits itself, and says why it cannot"


@with_bench
async def test_a_refused_change_is_tried_again_whole(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    bench.plane.failures = 2
    bench.policies.put("shop/deny", DENY)
    assert not bench.enforcement.problem, "a change on its way is no problem"
    await bench.clock.advance(0.05)
    assert not bench.enforcement.programmed.is_set()
    assert bench.enforcement.problem.startswith("policies are not in force: ")
    await bench.clock.advance(2)
    assert bench.taken() == ["load"]
    assert bench.enforcement.programmed.is_set()
    assert not bench.enforcement.problem


@with_bench
async def test_a_pod_whose_policies_the_kernel_refuses_is_not_attached(bench: Bench) -> None:
    await bench.start()
    bench.plane.failures = 1
    with pytest.raises(KernelError):
        bench.enforcement.attach(attached("shop/web"))
    bench.enforcement.detach("dev")
    await bench.clock.advance(1)
    assert bench.plane.devices == {}


@with_bench
async def test_devices_from_before_a_restart_are_in_the_first_load(bench: Bench) -> None:
    bench.enforcement.restore((attached("shop/db", "db-1", "10.180.0.2"),))
    await bench.start()
    assert bench.taken() == ["load"]
    assert bench.plane.devices == {"shop/db": "db-1 10.180.0.2"}


def ranged(node: Node, *ranges: str) -> Node:
    return msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, pod_cidrs=ranges))


@with_bench
async def test_changed_ranges_need_no_full_load(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    bench.nodes.put("n1", ranged(bench.nodes.objects["n1"], "10.180.0.0/24", "fd18::/64"))
    await bench.clock.advance(1)
    assert bench.taken() == ["update"]
    assert bench.plane.facts.pod_ranges == ("10.180.0.0/24", "fd18::/64")
    bench.nodes.put("n2", ranged(bench.nodes.objects["n2"], "10.180.1.0/24"))
    await bench.clock.advance(1)
    assert bench.taken() == ["update"]
    assert bench.plane.facts.cluster_ranges == ("10.180.0.0/23", "fd18::/64")


@with_bench
async def test_ranges_of_a_refused_change_are_loaded_with_the_rest(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    bench.plane.failures = 1
    bench.nodes.put("n2", ranged(bench.nodes.objects["n2"], "10.180.1.0/24"))
    await bench.clock.advance(1)
    assert bench.taken() == ["load"]
    assert bench.plane.facts.cluster_ranges == ("10.180.0.0/23",)
    bench.policies.put("shop/deny", DENY)
    await bench.clock.advance(1)
    assert bench.plane.calls == ["update"]


@with_bench
async def test_node_heartbeats_cause_no_commit(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    node = bench.nodes.objects["n2"]
    meta = msgspec.structs.replace(node.metadata, annotations={"seen": "now"}, resource_version="7")
    bench.nodes.put("n2", msgspec.structs.replace(node, metadata=meta))
    assert bench.enforcement.programmed.is_set()
    labelled = msgspec.structs.replace(node, metadata=msgspec.structs.replace(meta, labels={"zone": "a"}))
    bench.nodes.put("n2", labelled)
    assert not bench.enforcement.programmed.is_set()


@with_bench
async def test_rules_changed_by_others_are_restored(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    bench.plane.foreign = True
    os.write(bench.plane.write, b"x")
    await asyncio.sleep(0.05)
    os.read(bench.plane.read, 1)
    bench.plane.foreign = False
    await bench.clock.advance(0.2)
    assert "heal" in bench.taken()


@with_bench
async def test_what_notifications_name_is_written_at_once(bench: Bench) -> None:
    called = asyncio.Event()

    def restore() -> Written:
        bench.plane.calls.append("restore")
        called.set()
        return ["rule"]

    await bench.start()
    setattr(bench.plane, "restore", restore)  # noqa: B010
    bench.taken()
    bench.plane.foreign = True
    os.write(bench.plane.write, b"x")
    await called.wait()
    os.read(bench.plane.read, 1)
    bench.plane.foreign = False
    assert set(bench.taken()) == {"restore"}, "although no time has passed"
    await bench.clock.advance(0.2)
    assert "heal" in bench.taken()


@with_bench
async def test_container_without_pod_has_device_and_no_policies(bench: Bench) -> None:
    bench.enforcement.restore((attached("", "old-1", "10.180.0.50"),))
    await bench.start()
    bench.policies.put("shop/deny", DENY)
    bench.enforcement.attach(attached("", "new-1", "10.180.0.51"))
    assert bench.plane.devices == {"/old-1": "old-1 10.180.0.50", "/new-1": "new-1 10.180.0.51"}
    assert bench.plane.isolated == set()
    bench.enforcement.detach("old-1")
    await bench.clock.advance(1)
    assert list(bench.plane.devices) == ["/new-1"]


@with_bench
async def test_rules_that_cannot_be_repaired_are_loaded_again(bench: Bench) -> None:
    await bench.start()
    bench.taken()
    bench.plane.foreign, bench.plane.failures = True, 1
    os.write(bench.plane.write, b"x")
    await asyncio.sleep(0.05)
    os.read(bench.plane.read, 1)
    bench.plane.foreign = False
    await bench.clock.advance(2)
    assert bench.taken() == ["load"]
