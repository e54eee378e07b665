"""The scheduler when one watch event stands for several changes."""

import asyncio
from typing import Any, cast

import msgspec
from tests.fakes.clock import FakeClock

from podwire.embedded.scheduler.scheduler import Scheduler
from podwire.kube.controller import Environment
from podwire.kube.informer import OnChange
from podwire.kube.resources import NODES, PODS, Resource
from podwire.model.meta import ObjectReference
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.runtime.supervise import Supervisor


class Cluster:
    """An environment whose objects change as the test says; what is bound is noted."""

    def __init__(self) -> None:
        self.client = self
        self.clock = FakeClock()
        self.objects: dict[Resource[Any], dict[str, Any]] = {}
        self.subscribers: dict[Resource[Any], OnChange[Any]] = {}
        self.bound: list[str] = []
        self.written: list[tuple[str, dict[str, Any]]] = []
        """Names and statuses."""
        self.deleted: list[str] = []
        self.events: list[tuple[str, str]] = []
        """Names and reasons."""

    def recorder(self, component: str) -> "Cluster":
        return self

    def event(self, subject: ObjectReference, severity: str, reason: str, message: str) -> None:
        self.events.append((subject.name, reason))

    def of(self, resource: Resource[Any]) -> "Changes":
        return Changes(self, resource)

    async def create(self, resource: Resource[Any], body: dict[str, Any], namespace: str, **how: object) -> None:
        self.bound.append(body["metadata"]["name"])

    async def patch(
        self, resource: Resource[Any], name: str, body: dict[str, Any], *how: object, **more: object
    ) -> None:
        self.written.append((name, body["status"]))

    async def delete(self, resource: Resource[Any], name: str, *how: object, **more: object) -> None:
        self.deleted.append(name)

    def put(self, resource: Resource[Any], key: str, value: object) -> None:
        objects = self.objects.setdefault(resource, {})
        old, objects[key] = objects.get(key), value
        self.subscribers[resource](key, old, value)

    def drop(self, resource: Resource[Any], key: str) -> None:
        self.subscribers[resource](key, self.objects[resource].pop(key), None)


class Changes:
    """The objects of one resource."""

    def __init__(self, cluster: Cluster, resource: Resource[Any]) -> None:
        self.cluster, self.resource = cluster, resource

    def subscribe(self, callback: OnChange[Any]) -> None:
        self.cluster.subscribers[self.resource] = callback

    def get(self, key: str) -> Any:
        return self.objects.get(key)

    @property
    def objects(self) -> dict[str, Any]:
        return self.cluster.objects.get(self.resource, {})


def pod(name: str, uid: str, node: str = "", priority: int = 0) -> Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": "3"}}}
    meta = {"name": name, "namespace": "d", "uid": uid}
    return msgspec.convert(
        {"metadata": meta, "spec": {"nodeName": node, "containers": [container], "priority": priority}}, Pod
    )


def node(name: str) -> Node:
    allocatable = {"cpu": "7", "pods": "110"}
    return msgspec.convert(
        {"metadata": {"name": name}, "status": {"allocatable": allocatable, "capacity": allocatable}}, Node
    )


def test_pod_replaced_during_a_watch_gap_counts_once() -> None:
    async def run() -> None:
        cluster = Cluster()
        scheduler = Scheduler(cast("Environment", cluster))
        cluster.put(NODES, "n1", node("n1"))
        for uid in ("first", "second"):
            cluster.put(PODS, "d/web-0", pod("web-0", uid, "n1"))
        cluster.put(PODS, "d/other", pod("other", "other"))
        async with Supervisor(cluster.clock, print) as supervisor:
            scheduler.start(supervisor)
            await cluster.clock.advance(1)
            assert cluster.bound == ["other"]
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())


def test_victim_is_deleted_and_its_room_kept_for_the_preemptor() -> None:
    async def run() -> None:
        cluster = Cluster()
        scheduler = Scheduler(cast("Environment", cluster))
        cluster.put(NODES, "n1", node("n1"))
        for name in ("a", "b"):
            cluster.put(PODS, f"d/{name}", pod(name, name, "n1", priority=1))
        cluster.put(PODS, "d/high", pod("high", "high", priority=9))
        async with Supervisor(cluster.clock, print) as supervisor:
            scheduler.start(supervisor)
            await cluster.clock.advance(0.1)
            victims = list(cluster.deleted)
            assert victims in (["a"], ["b"])
            [(_, disruption)] = [(name, status) for name, status in cluster.written if name in victims]
            assert [(c["type"], c["reason"]) for c in disruption["conditions"]] == [
                ("DisruptionTarget", "PreemptionByScheduler")
            ]
            [nominated] = [status["nominatedNodeName"] for name, status in cluster.written if name == "high"]
            assert nominated == "n1"
            assert (victims[0], "Preempted") in cluster.events
            cluster.put(PODS, "d/low", pod("low", "low"))
            await cluster.clock.advance(31)
            assert (cluster.deleted, cluster.bound) == (victims, [])
            cluster.drop(PODS, f"d/{victims[0]}")
            await cluster.clock.advance(1)
            assert (cluster.deleted, cluster.bound) == (victims, ["high"])
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())
