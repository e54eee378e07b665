"""When an agent writes which policies are in force, with a client that keeps what is written or fails."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fakes.clock import FakeClock

from podwire.errors import ApiError, ApiUnreachable, NotFound
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.model.changed import Changed
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.policy.nodereport import PolicyReport
from podwire.policy.status.digest import Digest
from podwire.policy.status.report import EnforcedPolicies, parse
from podwire.runtime.tasks import TaskSet

ABSENT = NotFound(404, "NotFound", "configmaps not found")


class Api(Client):
    """Keeps one object, and what was done to it."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.time = FakeClock()
        super().__init__(ApiConfig("http://127.0.0.1:1"), self.time)
        self.stored = saved
        self.done: list[str] = []
        self.failures: list[Exception] = []

    def _do(self, subject: str) -> dict[str, Any]:
        self.done.append(subject)
        if self.failures:
            raise self.failures.pop(0)
        if self.stored is None:
            raise ABSENT
        return self.stored

    async def get(self, *_rest: Any, **_more: Any) -> Any:
        return self._do("get")

    async def patch(self, resource: Any, name: str, body: Any, *_rest: Any, **_more: Any) -> dict[str, Any]:
        saved = self._do("patch")
        saved["data"] |= body["data"]
        return saved

    async def create(self, resource: Any, body: Any, *_rest: Any, **_more: Any) -> Any:
        self.stored = body
        return self._do("create")

    async def delete(self, *_rest: Any, **_more: Any) -> dict[str, Any]:
        self._do("delete")
        self.stored = None
        return {}

    @property
    def told(self) -> EnforcedPolicies:
        assert self.stored is not None
        return parse(self.stored["data"])


class Bench:
    """A report that runs; ``change`` brings a policy into force."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.metas: dict[str, ObjectMeta] = {}
        self.node: Node | None = Node(metadata=ObjectMeta(name="node-1", uid="n"))
        self.report = PolicyReport(api, "node-1", lambda: self.node, lambda _kind, key: self.metas.get(key))

    def change(self, key: str, generation: int) -> None:
        self.metas[key] = ObjectMeta(uid=key, generation=generation)
        self.report.committed({Changed("NetworkPolicy", key): self.api.time.monotonic() - 0.004})

    def digest(self) -> str:
        digest = Digest()
        for key, meta in self.metas.items():
            digest.put(key, meta)
        return str(digest)


def with_bench(
    saved: dict[str, Any] | None = None,
) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[], None]]:
    def decorate(scenario: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            bench = Bench(Api(saved))
            tasks = TaskSet(lambda _task, failure: bench.api.done.append(repr(failure)))
            tasks.start("report", bench.report.run())
            await scenario(bench)
            await tasks.close()
            await bench.api.close()

        return lambda: asyncio.run(run())

    return decorate


@with_bench()
async def test_first_report_is_immediate_and_later_ones_wait_a_second(bench: Bench) -> None:
    bench.change("shop/a", 1)
    await bench.api.time.advance(0)
    assert bench.api.done == ["get", "create"]
    (commit,) = bench.api.told.commits["NetworkPolicy"]
    assert (commit.digest, commit.took_ms) == (bench.digest(), 4.0)
    assert len(bench.api.told.commits["ClusterNetworkPolicy"]) == 1
    for generation in range(2, 6):
        bench.change("shop/a", generation)
        await bench.api.time.advance(0.1)
    assert bench.api.done == ["get", "create"]
    await bench.api.time.advance(1)
    assert bench.api.done == ["get", "create", "patch"]
    assert len(bench.api.told.commits["NetworkPolicy"]) == 5
    assert bench.api.told.commits["NetworkPolicy"][-1].digest == bench.digest()
    await bench.api.time.advance(600)
    assert len(bench.api.done) == 3


@with_bench()
async def test_refused_change_is_reported_with_reason_and_without_digest(bench: Bench) -> None:
    bench.change("shop/a", 1)
    await bench.api.time.advance(2)
    before = bench.digest()
    for _ in range(3):
        bench.report.refused("nft: no memory")
        await bench.api.time.advance(2)
    assert bench.api.told.problem == "nft: no memory"
    assert bench.api.told.commits["NetworkPolicy"][-1].digest == before
    assert len(bench.api.done) == 3
    bench.change("shop/a", 2)
    await bench.api.time.advance(2)
    assert bench.api.told.problem == ""
    assert bench.api.told.commits["NetworkPolicy"][-1].digest == bench.digest()


@with_bench()
async def test_an_api_that_is_away_is_tried_again(bench: Bench) -> None:
    bench.api.failures = [ApiUnreachable("away"), ApiError(403, "Forbidden", "no"), ApiUnreachable("away")]
    bench.node = None
    bench.change("shop/a", 1)
    await bench.api.time.advance(10)
    assert bench.api.done == [], "there is no Node to belong to"
    bench.node = Node(metadata=ObjectMeta(name="node-1", uid="n"))
    await bench.api.time.advance(120)
    assert bench.api.done == ["get", "get", "get", "get", "create"]


@with_bench()
async def test_no_report_before_the_first_policy_or_problem(bench: Bench) -> None:
    bench.report.committed({Changed("Node", "node-2"): 0.0})
    await bench.api.time.advance(60)
    assert bench.api.done == ["get"]
    bench.report.refused("nft: no memory")
    await bench.api.time.advance(2)
    assert bench.api.told.problem == "nft: no memory"
    bench.report.committed({})
    await bench.api.time.advance(2)
    assert bench.api.told.problem == ""
    assert bench.api.done == ["get", "create", "patch"]


@with_bench()
async def test_a_deleted_report_is_written_again(bench: Bench) -> None:
    bench.change("shop/a", 1)
    await bench.api.time.advance(2)
    bench.api.stored = None
    bench.change("shop/a", 2)
    await bench.api.time.advance(2)
    assert bench.api.done == ["get", "create", "patch", "create"]
    assert bench.api.told.commits["NetworkPolicy"][-1].digest == bench.digest()


def config_map(uid: str, digest: str) -> dict[str, Any]:
    owners = [{"kind": "Node", "name": "node-1", "uid": uid}]
    line = f"{digest} 1000 7.0"
    data = {"node": "node-1", "problem": "", "NetworkPolicy": line, "ClusterNetworkPolicy": f"{Digest()} 1000 0.0"}
    return {"metadata": {"name": "podwire-policies-node-1", "ownerReferences": owners}, "data": data}


@with_bench(config_map("n", str(Digest())))
async def test_a_start_with_a_current_report_writes_nothing(bench: Bench) -> None:
    bench.report.committed({})
    await bench.api.time.advance(60)
    assert bench.api.done == ["get"]
    assert bench.api.told.commits["NetworkPolicy"][0].at_ms == 1000


@with_bench(config_map("of an earlier Node", str(Digest())))
async def test_report_of_an_earlier_node_of_this_name_is_deleted(bench: Bench) -> None:
    bench.change("shop/a", 1)
    await bench.api.time.advance(60)
    assert bench.api.done == ["get", "delete", "create"]
    assert bench.api.told.commits["NetworkPolicy"][0].at_ms > 1000
