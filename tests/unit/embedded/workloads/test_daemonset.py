"""One pod on every node that fits."""

import msgspec
import pytest

from podwire.embedded.workloads.daemonset import Cluster, for_node, plan, pod_body
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeSpec, Taint
from podwire.model.workload import DaemonSet


def node(name, labels=None, *taints, unschedulable=False):
    return Node(
        metadata=ObjectMeta(name=name, labels=labels or {}),
        spec=NodeSpec(taints=taints, unschedulable=unschedulable),
    )


def daemon(spec=None, strategy=None):
    body = {
        "metadata": {"name": "ds", "uid": "D", "namespace": "d", "generation": 2},
        "spec": {"template": {"metadata": {"labels": {"app": "a"}}, "spec": spec or {}}},
    }
    if strategy:
        body["spec"]["updateStrategy"] = strategy
    return msgspec.convert(body, DaemonSet)


def run(made, item, nodes, pods=(), digest="h2"):
    return plan(item, Cluster({n.metadata.name: n for n in nodes}, tuple(pods), digest, made.NOW))


def member(made, name, where, digest="h2", **more):
    return made.pod(name, node=where, labels={"controller-revision-hash": digest}, **more)


def names(pods):
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
def test_where_pods_go(made, spec, nodes, want) -> None:
    assert run(made, daemon(spec), nodes).create == want


def test_what_is_in_the_wrong_place_goes(made) -> None:
    item = daemon({"nodeSelector": {"disk": "ssd"}})
    pods = [member(made, "a", "n1"), member(made, "b", "n2"), member(made, "c", "gone")]
    chosen = run(made, item, [node("n1", {"disk": "ssd"}), node("n2")], pods)
    assert (names(chosen.delete), chosen.create) == (["b", "c"], ())
    assert (chosen.status.number_misscheduled, chosen.status.desired_number_scheduled) == (2, 1)


def test_a_no_schedule_taint_does_not_drive_out_but_no_execute_does(made) -> None:
    pods = [member(made, "a", "n1")]
    assert not run(made, daemon(), [node("n1", {}, Taint(key="k", effect="NoSchedule"))], pods).delete
    assert names(run(made, daemon(), [node("n1", {}, Taint(key="k", effect="NoExecute"))], pods).delete) == ["a"]


def test_duplicates_and_failed_pods_go(made) -> None:
    pods = [member(made, "a", "n1"), member(made, "b", "n1"), member(made, "f", "n2", phase="Failed")]
    chosen = run(made, daemon(), NODES[:2], pods)
    assert len(chosen.delete) == 2
    assert "f" in names(chosen.delete)


def test_a_pod_still_on_its_way_counts_for_its_node(made) -> None:
    body = pod_body(daemon(), "h2", "n1")
    pending = msgspec.convert(
        {"metadata": {"name": "a", "uid": "a", "labels": body["metadata"]["labels"]},
         "spec": {"affinity": body["spec"]["affinity"]}},
        type(made.pod("x")),
    )  # fmt: skip
    assert run(made, daemon(), NODES[:2], [pending]).create == ("n2",)


def test_a_node_whose_pod_is_going_waits(made) -> None:
    assert run(made, daemon(), NODES[:1], [member(made, "a", "n1", going=True)]).create == ()


def test_rolling_update_takes_one_at_a_time_and_sick_ones_first(made) -> None:
    old = [member(made, f"p{n}", f"n{n}", "h1") for n in (1, 2, 3)]
    chosen = run(made, daemon(), NODES, old)
    assert names(chosen.delete) == ["p1"]
    assert chosen.status.updated_number_scheduled == 0
    sick = [old[0], member(made, "p2", "n2", "h1", ready=False), old[2]]
    assert names(run(made, daemon(), NODES, sick).delete) == ["p2"]
    waiting = [member(made, "new", "n1", ready=False), *old[1:]]
    assert run(made, daemon(), NODES, waiting).delete == ()
    two = daemon(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "60%"}})
    assert names(run(made, two, NODES, old).delete) == ["p1", "p2"]
    on_delete = daemon(strategy={"type": "OnDelete"})
    assert run(made, on_delete, NODES, old).delete == ()


def test_surge_brings_the_new_pod_first(made) -> None:
    item = daemon(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    old = [member(made, f"p{n}", f"n{n}", "h1") for n in (1, 2, 3)]
    chosen = run(made, item, NODES, old)
    assert (chosen.create, chosen.delete) == (("n1",), ())
    waiting = [*old, member(made, "new", "n1", ready=False)]
    chosen = run(made, item, NODES, waiting)
    assert (chosen.create, chosen.delete) == ((), ())
    ready = [*old, member(made, "new", "n1")]
    assert names(run(made, item, NODES, ready).delete) == ["p1"]


def test_status(made) -> None:
    pods = [member(made, "a", "n1"), member(made, "b", "n2", "h1", ready=False)]
    status = run(made, daemon(), NODES, pods).status
    assert (status.desired_number_scheduled, status.current_number_scheduled, status.number_ready) == (
        3,
        2,
        1,
    )
    assert (status.updated_number_scheduled, status.number_available, status.number_unavailable) == (1, 1, 2)
    assert status.observed_generation == 2


def test_a_pod_fits_its_node_only_and_keeps_its_own_terms() -> None:
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
