"""The tasks of an agent for EgressPolicies while the cluster has none."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.fakes.clock import FakeClock

from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.informer import Informer
from podwire.kube.resources import NAMESPACES, NODES, PODS
from podwire.model.egress import EgressPolicy
from podwire.model.meta import ObjectMeta
from podwire.routing.egress.follower import EgressFollower


class CountingClock(FakeClock):
    """Counts the sleeps."""

    sleeps = 0

    async def sleep(self, seconds: float) -> None:
        """See FakeClock."""
        self.sleeps += 1
        await super().sleep(seconds)


def test_lease_and_announcements_cost_nothing_without_a_policy() -> None:
    async def body() -> None:
        clock = CountingClock()
        client = Client(ApiConfig("http://127.0.0.1:1"), clock)
        router: Any = SimpleNamespace(node="node-1")
        informers: tuple[Any, ...] = tuple(Informer(client, resource) for resource in (NODES, PODS, NAMESPACES))
        follower = EgressFollower(client, router, *informers)
        tasks = follower.tasks(alone=False)
        running = [asyncio.ensure_future(tasks[name]()) for name in ("egress lease", "egress announcements")]
        await clock.advance(10)
        assert clock.sleeps == 0
        follower.view.policies._replace({"p": EgressPolicy(metadata=ObjectMeta(name="p"))}, {"p": "1"})
        await clock.advance(10)
        assert clock.sleeps > 10
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(body())
