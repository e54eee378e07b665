"""Rollouts whose pods never come, or come and go."""

import asyncio
from typing import Any, cast

import pytest
from tests.fakes.upgrade_cluster import WaitingClock

from podwire.kube.client import Client
from podwire.kube.podruns import PodRuns
from podwire.upgrade.apply.gates import Breach
from podwire.upgrade.apply.objects import UpgradeObjects
from podwire.upgrade.apply.rollout import Rollout
from podwire.upgrade.plan.values import PlannedChange

TARGET = PlannedChange(api_version="apps/v1", kind="Deployment", namespace="kube-system", name="coredns", patch={})
READS = 1000


class Statuses:
    """Objects whose Deployment has one status after the other, and the last ones again and again."""

    def __init__(self, *available: int) -> None:
        self.client = self
        self.clock = WaitingClock()
        self.reads = 0
        self._available = available

    async def get(self, _target: object) -> dict[str, Any]:
        self.reads += 1
        assert self.reads < READS, "the wait does not end"
        available = self._available[self.reads % len(self._available)]
        status = {"observedGeneration": 1, "replicas": 4, "updatedReplicas": 2, "availableReplicas": available}
        return {"kind": "Deployment", "metadata": {"generation": 1}, "spec": {"replicas": 3}, "status": status}


@pytest.mark.parametrize("available", [(2,), (2, 3)], ids=["stays", "comes and goes"])
def test_a_rollout_that_comes_no_further_is_a_breach(available: tuple[int, ...]) -> None:
    objects = Statuses(*available)
    rollout = Rollout(cast("UpgradeObjects", objects), None, lambda _: None, 30.0)
    with pytest.raises(Breach, match="Deployment kube-system/coredns makes no progress for 30 s"):
        asyncio.run(rollout.roll(TARGET))


class Excluded:
    """Objects whose DaemonSet no node should run."""

    def __init__(self) -> None:
        self.client = self
        self.clock = WaitingClock()
        self.runs = PodRuns(cast("Client", self), "kube-system")

    async def get(self, _target: object) -> dict[str, Any]:
        return {"kind": "DaemonSet", "metadata": {"name": "kube-proxy"}, "status": {"desiredNumberScheduled": 0}}

    async def revision(self, _daemonset: object) -> str:
        return "1"

    async def pods_of(self, _daemonset: object, _node: str = "") -> list[object]:
        return []


def test_nodes_that_should_have_no_pod_are_not_waited_for() -> None:
    rollout = Rollout(cast("UpgradeObjects", Excluded()), None, lambda _: None, 30.0)
    asyncio.run(rollout.replace("1-kube-proxy", TARGET, ["a", "b"], []))
