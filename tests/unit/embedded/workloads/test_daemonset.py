"""DaemonSets: one pod on every node that matches."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from tests.unit.embedded.workloads.sample_pods import NOW, make_pod

from podwire.embedded.workloads.daemonset import DaemonSetInputs, DaemonSetPlan, for_node, plan, pod_body
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeSpec, Taint
from podwire.model.pod import Pod
from podwire.model.workload import DaemonSet

JsonObject = dict[str, Any]


def node(name: str, labels: dict[str, str] | None = None, *taints: Taint, unschedulable: bool = False) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels=labels or {}),
        spec=NodeSpec(taints=taints, unschedulable=unschedulable),
    )


def daemon(spec: JsonObject | None = None, strategy: JsonObject | None = None) -> DaemonSet:
    body: JsonObject = {
        "metadata": {"name": "ds", "uid": "D", "namespace": "d", "generation": 2},
        "spec": {"template": {"metadata": {"labels": {"app": "a"}}, "spec": spec or {}}},
    }
    if strategy:
        body["spec"]["updateStrategy"] = strategy
    return msgspec.convert(body, DaemonSet)


def run(item: DaemonSet, nodes: Iterable[Node], pods: Iterable[Pod] = (), digest: str = "h2") -> DaemonSetPlan:
    return plan(item, DaemonSetInputs({n.metadata.name: n for n in nodes}, tuple(pods), digest, NOW))


def member(name: str, where: str, digest: str = "h2", **more: Any) -> Pod:
    return make_pod(name, node=where, labels={"controller-revision-hash": digest}, **more)


def names(pods: Iterable[Pod]) -> list[str]:
    return sorted(pod.metadata.name for pod in pods)


NODES = [node("n1"), node("n2"), node("n3")]


@pytest.mark.parametrize(
    ("spec", "nodes", "want"),
    [
        ({}, NODES, ("n1", "n2", "n3")),
        ({}, [node("n1", unschedulable=True)], ("n1",)),
        ({}, [node("n1", {}, Taint(key="k", effect="NoSchedule"))], ()),
        ({}, [node("n1", {}, Taint(key="node.kubernetes.io/not-ready", effect="NoExecute"))], ("n1",)),
        (
            {"tolerations": [{"operator": "Exists"}]},
            [node("n1", {}, Taint(key="k", effect="NoExecute"))],
            ("n1",),
        ),
        ({"nodeSelector": {"disk": "ssd"}}, [node("n1", {"disk": "ssd"}), node("n2")], ("n1",)),
        ({"nodeName": "n2"}, NODES, ("n2",)),
    ],
)
def test_nodes_that_get_a_pod(spec: JsonObject | None, nodes: Iterable[Node], want: tuple[str, ...]) -> None:
    assert run(daemon(spec), nodes).create == want


def test_pods_on_unmatched_nodes_are_deleted() -> None:
    item = daemon({"nodeSelector": {"disk": "ssd"}})
    pods = [member("a", "n1"), member("b", "n2"), member("c", "gone")]
    chosen = run(item, [node("n1", {"disk": "ssd"}), node("n2")], pods)
    assert (names(chosen.delete), chosen.create) == (["b", "c"], ())
    assert (chosen.status.number_misscheduled, chosen.status.desired_number_scheduled) == (2, 1)


def test_only_no_execute_taints_remove_running_pods() -> None:
    pods = [member("a", "n1")]
    assert not run(daemon(), [node("n1", {}, Taint(key="k", effect="NoSchedule"))], pods).delete
    assert names(run(daemon(), [node("n1", {}, Taint(key="k", effect="NoExecute"))], pods).delete) == ["a"]


def test_duplicate_and_failed_pods_are_deleted() -> None:
    pods = [member("a", "n1"), member("b", "n1"), member("f", "n2", phase="Failed")]
    chosen = run(daemon(), NODES[:2], pods)
    assert len(chosen.delete) == 2
    assert "f" in names(chosen.delete)


def test_unbound_pod_counts_for_the_node_of_its_affinity() -> None:
    body = pod_body(daemon(), "h2", "n1")
    pending = msgspec.convert(
        {"metadata": {"name": "a", "uid": "a", "labels": body["metadata"]["labels"]},
         "spec": {"affinity": body["spec"]["affinity"]}},
        Pod,
    )  # fmt: skip
    assert run(daemon(), NODES[:2], [pending]).create == ("n2",)


def test_node_with_terminating_pod_gets_no_new_pod() -> None:
    assert run(daemon(), NODES[:1], [member("a", "n1", going=True)]).create == ()


def test_rolling_update_replaces_unavailable_pods_first_then_one() -> None:
    old = [member(f"p{n}", f"n{n}", "h1") for n in (1, 2, 3)]
    chosen = run(daemon(), NODES, old)
    assert names(chosen.delete) == ["p1"]
    assert chosen.status.updated_number_scheduled == 0
    sick = [old[0], member("p2", "n2", "h1", ready=False), old[2]]
    assert names(run(daemon(), NODES, sick).delete) == ["p2"]
    waiting = [member("new", "n1", ready=False), *old[1:]]
    assert run(daemon(), NODES, waiting).delete == ()
    two = daemon(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "60%"}})
    assert names(run(two, NODES, old).delete) == ["p1", "p2"]
    on_delete = daemon(strategy={"type": "OnDelete"})
    assert run(on_delete, NODES, old).delete == ()


def test_surge_creates_the_new_pod_first() -> None:
    item = daemon(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    old = [member(f"p{n}", f"n{n}", "h1") for n in (1, 2, 3)]
    chosen = run(item, NODES, old)
    assert (chosen.create, chosen.delete) == (("n1",), ())
    waiting = [*old, member("new", "n1", ready=False)]
    chosen = run(item, NODES, waiting)
    assert (chosen.create, chosen.delete) == ((), ())
    ready = [*old, member("new", "n1")]
    assert names(run(item, NODES, ready).delete) == ["p1"]


def test_status() -> None:
    pods = [member("a", "n1"), member("b", "n2", "h1", ready=False)]
    status = run(daemon(), NODES, pods).status
    assert (status.desired_number_scheduled, status.current_number_scheduled, status.number_ready) == (
        3,
        2,
        1,
    )
    assert (status.updated_number_scheduled, status.number_available, status.number_unavailable) == (1, 1, 2)
    assert status.observed_generation == 2


def test_daemon_pod_fits_only_its_node_and_keeps_its_affinity() -> None:
    spec = for_node(
        {"hostNetwork": True, "tolerations": [{"key": "x"}], "affinity": {"podAffinity": {"y": 1}, "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]}}}}, "n1",
    )  # fmt: skip
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    assert term["matchExpressions"]
    assert spec["affinity"]["podAffinity"] == {"y": 1}
    keys = [t["key"] for t in spec["tolerations"]]
    assert keys[0] == "x"
    assert "node.kubernetes.io/network-unavailable" in keys
