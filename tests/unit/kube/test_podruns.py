"""Pods that run to their end on a node."""

import asyncio
from typing import Any, cast

import pytest
from tests.fakes.upgrade_cluster import UpgradeCluster

from podwire.errors import ClusterError
from podwire.kube.client import Client
from podwire.kube.podruns import PodRuns


def pod(*arguments: str) -> dict[str, Any]:
    container = {"name": "node", "image": "podwire:1", "args": list(arguments)}
    return {"metadata": {"name": "step"}, "spec": {"nodeName": "a", "containers": [container]}}


def run(cluster: UpgradeCluster, body: dict[str, Any]) -> tuple[bool, str]:
    return asyncio.run(PodRuns(cast("Client", cluster), "kube-system").run_pod(body))


def test_the_result_and_the_log_outlive_the_pod() -> None:
    cluster = UpgradeCluster("a")
    cluster.answers["hold"] = lambda _node, _arguments: (False, "no space left")
    assert run(cluster, pod("upgrade", "node", "hold")) == (False, "no space left")
    assert ("Pod", "kube-system", "step") not in cluster.objects


def test_a_pod_that_does_not_end_is_deleted() -> None:
    cluster = UpgradeCluster("a")
    with pytest.raises(ClusterError, match="pod step has not ended after 300 s"):
        run(cluster, pod("flows", "serve"))
    assert ("Pod", "kube-system", "step") not in cluster.objects
