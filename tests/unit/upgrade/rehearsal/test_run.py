"""A rehearsal in a copy that is a cluster in memory: what it finds, and what it leaves."""

import asyncio
from pathlib import Path
from typing import Any, cast

from tests.fakes.upgrade_cluster import UpgradeCluster, answer
from tests.unit.upgrade.apply.scenario import COREFILE, make_cluster, make_plan
from tests.unit.upgrade.test_lossgate import CountedFlows

from podwire.kube.client import Client
from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.lossgate import FlowGate, GateSettings
from podwire.upgrade.rehearsal.nodes import CopiedNode
from podwire.upgrade.rehearsal.objects import RehearsalSource
from podwire.upgrade.rehearsal.result import RehearsalResult, result_text
from podwire.upgrade.rehearsal.run import Rehearsal, RehearsalOptions
from podwire.upgrade.rehearsal.workloads import WorkloadRoles

NODES = tuple(CopiedNode(name=f"node-{n}", original=name) for n, name in enumerate(("b", "a", "c"), start=1))
BROKEN = "registry.k8s.io/kube-proxy:v1.36.0"


def source() -> RehearsalSource:
    """What is read of the cluster of the scenario."""
    kinds = ("DaemonSet", "Deployment", "ConfigMap")
    network = tuple(obj for (kind, _, _), obj in make_cluster().objects.items() if kind in kinds)
    return RehearsalSource(inventory=Inventory(), plan=make_plan("kube-proxy", "coredns"), network=network)


def copy_cluster() -> UpgradeCluster:
    """A local cluster as `podwire up` makes it."""
    cluster = UpgradeCluster("node-1", "node-2", "node-3")
    endpoints = {"endpoints": [{"addresses": ["10.89.0.1"]}], "ports": [{"port": 6443}]}
    cluster.put("EndpointSlice", "default", "kubernetes", endpoints)
    cluster.put("Deployment", "kube-system", "podwire-dns", {"spec": {"template": {"spec": {"containers": []}}}})
    return cluster


def rehearsed(cluster: UpgradeCluster, folder: Path, flows: CountedFlows, **options: Any) -> RehearsalResult:
    async def gate(title: str) -> FlowGate:
        return FlowGate(flows, GateSettings(folder=folder, title=title), cast("Any", cluster.clock), lambda _: None)

    settings = RehearsalOptions(roles=WorkloadRoles(), service_cidrs=("10.96.0.0/16",), timeout_s=20.0, **options)
    rehearsal = Rehearsal(cast("Client", cluster), source(), NODES, settings, gate)
    return asyncio.run(rehearsal.run(["its network is another one"]))


def test_an_upgrade_that_loses_nothing_passes_there_and_back(tmp_path: Path) -> None:
    cluster, flows = copy_cluster(), CountedFlows()
    result = rehearsed(cluster, tmp_path, flows)
    assert result.passed, result.problems
    assert result.there is not None and result.back is not None and result.there.sent > 0
    assert result.stands_for == {"node-1": "b", "node-2": "a", "node-3": "c"}
    assert result.steps == ("2-kube-proxy", "3-coredns")
    assert result.differences[0] == "its network is another one"
    assert not flows.running and ("Deployment", "kube-system", "podwire-dns") not in cluster.objects
    assert cluster.objects["ConfigMap", "kube-system", "coredns"]["data"]["Corefile"] == COREFILE, "the way back"
    assert set(cluster.images("kube-proxy").values()) == {"registry.k8s.io/kube-proxy:v1.35.0"}
    assert result_text(result).startswith(f"rehearsal of plan {result.plan}: passed\nnodes: node-1 for b, ")


def test_without_the_way_back_the_copy_stays_upgraded(tmp_path: Path) -> None:
    cluster = copy_cluster()
    result = rehearsed(cluster, tmp_path, CountedFlows(), back=False)
    assert result.passed and result.back is None
    assert set(cluster.images("kube-proxy").values()) == {"registry.k8s.io/kube-proxy:v1.36.0"}


def test_a_version_that_never_gets_ready_fails_the_rehearsal(tmp_path: Path) -> None:
    cluster = copy_cluster()
    cluster.broken.add(BROKEN)
    result = rehearsed(cluster, tmp_path, CountedFlows(), back=False)
    assert not result.passed
    assert result.problems == ("step 2-kube-proxy was rolled back: node-1: the new pod is not ready after 20 s",)


def test_lost_messages_fail_the_rehearsal(tmp_path: Path) -> None:
    flows = CountedFlows()
    flows.undecided = 2
    result = rehearsed(copy_cluster(), tmp_path, flows, back=False)
    assert not result.passed and result.there is not None and result.there.lost > 0
    assert "messages were lost, at most 0 may be" in result.problems[0]
    assert "FAILED" in result_text(result)


def test_connections_that_are_not_as_expected_fail_the_rehearsal(tmp_path: Path) -> None:
    cluster = copy_cluster()
    done: list[str] = []

    def tried(node: str, arguments: list[str]) -> tuple[bool, str]:
        done.append(node)
        good = answer(node, arguments)
        return good if "egress" not in arguments[3] else (False, "no results at all")

    cluster.answers["try"] = tried
    result = rehearsed(cluster, tmp_path, CountedFlows(), back=False)
    assert {"node-1", "node-2", "node-3"} <= set(done)
    assert not result.passed and "the pod gave no results: no results at all" in result.problems[0]
