"""The scheduler when one watch event stands for several changes."""

import asyncio
from typing import Any, cast

import msgspec
from tests.fakes.clock import FakeClock

from podwire.embedded.scheduler.scheduler import Scheduler
from podwire.kube.controller import Environment
from podwire.kube.informer import OnChange
from podwire.kube.resources import NODES, PODS, Resource
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.runtime.supervise import Supervisor


class Cluster:
    """An environment whose objects change as the test says; what is bound is noted."""

    def __init__(self) -> None:
        self.client = self
        self.clock = FakeClock()
        self.objects: dict[str, Any] = {}
        self.subscribers: dict[Resource[Any], OnChange[Any]] = {}
        self.bound: list[str] = []

    def recorder(self, component: str) -> "Cluster":
        return self

    def event(self, *arguments: object) -> None:
        pass

    def of(self, resource: Resource[Any]) -> "Changes":
        return Changes(self, resource)

    async def create(self, resource: Resource[Any], body: dict[str, Any], namespace: str, **how: object) -> None:
        self.bound.append(body["metadata"]["name"])

    async def patch(self, *how: object, **more: object) -> None:
        pass

    def put(self, resource: Resource[Any], key: str, value: object) -> None:
        old, self.objects[key] = self.objects.get(key), value
        self.subscribers[resource](key, old, value)


class Changes:
    """The objects of one resource."""

    def __init__(self, cluster: Cluster, resource: Resource[Any]) -> None:
        self.cluster, self.resource = cluster, resource

    def subscribe(self, callback: OnChange[Any]) -> None:
        self.cluster.subscribers[self.resource] = callback

    def get(self, key: str) -> Any:
        return self.cluster.objects.get(key)

    @property
    def objects(self) -> dict[str, Any]:
        return self.cluster.objects


def pod(name: str, uid: str, node: str = "") -> Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": "3"}}}
    meta = {"name": name, "namespace": "d", "uid": uid}
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": node, "containers": [container]}}, Pod)


def test_pod_replaced_during_a_watch_gap_counts_once() -> None:
    async def run() -> None:
        cluster = Cluster()
        scheduler = Scheduler(cast("Environment", cluster))
        allocatable = {"cpu": "7", "pods": "110"}
        status = {"allocatable": allocatable, "capacity": allocatable}
        cluster.put(NODES, "n1", msgspec.convert({"metadata": {"name": "n1"}, "status": status}, Node))
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
