"""Pods of a DNS server that end leave their Services while their process still answers."""

import asyncio
from typing import Any, cast

from tests.fakes.upgrade_cluster import UpgradeCluster

from podwire.cluster.names import POD_LEAVING
from podwire.kube.client import Client
from podwire.upgrade.apply.leaving import LAST_ANSWERS_S, LeavingPods

LABELS = {"k8s-app": "kube-dns"}
SELECTOR = {**LABELS, "tier": "dns"}
DEPLOYMENT: dict[str, Any] = {
    "kind": "Deployment",
    "metadata": {"name": "coredns", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": LABELS},
        "template": {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 53}]}]}},
    },
}


def cluster_with(**pods: bool) -> UpgradeCluster:
    """Pods by name, and whether each is being deleted."""
    cluster = UpgradeCluster("a")
    cluster.put("Service", "kube-system", "kube-dns", {"spec": {"selector": SELECTOR}})
    cluster.put("Service", "kube-system", "metrics", {"spec": {"selector": {"app": "metrics"}}})
    for name, ends in pods.items():
        meta: dict[str, Any] = {"labels": {**SELECTOR, "app": "own", "pod-template-hash": "1"}}
        if ends:
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        cluster.put("Pod", "kube-system", name, {"metadata": meta, "status": status})
    return cluster


def labels(cluster: UpgradeCluster, pod: str) -> dict[str, str]:
    return dict(cluster.objects["Pod", "kube-system", pod]["metadata"]["labels"])


def looks(cluster: UpgradeCluster, *, after_s: float, deployment: dict[str, Any] = DEPLOYMENT) -> list[bool]:
    """Two looks at the pods with a time between them; whether further pods are to be taken out."""
    leaving = LeavingPods(cast("Client", cluster))

    async def run() -> list[bool]:
        first = await leaving.take_out(deployment)
        await cluster.clock.sleep(after_s)
        return [first, await leaving.take_out(deployment)]

    return asyncio.run(run())


def test_a_pod_that_ends_loses_the_labels_that_services_select() -> None:
    cluster = cluster_with(old=True, new=False)
    assert looks(cluster, after_s=LAST_ANSWERS_S) == [True, False]
    assert labels(cluster, "old") == {"app": "own", "pod-template-hash": "1", POD_LEAVING: "coredns"}
    assert labels(cluster, "new") == {**SELECTOR, "app": "own", "pod-template-hash": "1"}


def test_a_pod_answers_its_last_queries_before_it_leaves() -> None:
    cluster = cluster_with(old=True, new=False)
    assert looks(cluster, after_s=LAST_ANSWERS_S / 2) == [True, True]
    assert labels(cluster, "old").items() >= SELECTOR.items()


def test_the_last_pod_stays_until_another_one_is_ready() -> None:
    cluster = cluster_with(old=True)
    assert looks(cluster, after_s=10.0) == [True, True]
    assert labels(cluster, "old").items() >= SELECTOR.items()


def test_pods_of_programs_that_answer_no_dns_are_left_alone() -> None:
    cluster = cluster_with(old=True, new=False)
    web = {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}}
    deployment = {**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], "template": web}}
    assert looks(cluster, after_s=10.0, deployment=deployment) == [False, False]
    assert labels(cluster, "old").items() >= SELECTOR.items()
