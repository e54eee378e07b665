"""Nodes whose heartbeats stop, PodDisruptionBudgets, and revision histories."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from tests.present import present
from tests.unit.embedded.workloads.sample_pods import NOW, make_pod

from podwire.embedded.workloads import nodehealth
from podwire.embedded.workloads.disruption import plan as plan_budget
from podwire.embedded.workloads.nodehealth import eviction_in_s, lost_conditions, taints, unready_pod
from podwire.embedded.workloads.revisions import data_of, history, surplus, template_of
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, Taint
from podwire.model.pod import Pod
from podwire.model.workload import ControllerRevision, PodDisruptionBudget


def node(ready: str = "True", *, marks: Iterable[Taint] = (), unschedulable: bool = False) -> Node:
    conditions = [{"type": "Ready", "status": ready}, {"type": "Other", "status": "True"}] if ready else []
    body = {
        "metadata": {"name": "n"},
        "spec": {"taints": [msgspec.to_builtins(mark) for mark in marks], "unschedulable": unschedulable},
        "status": {"conditions": conditions},
    }
    return msgspec.convert(body, Node)


OWN = Taint(key="mine", effect="NoExecute")
GONE = [Taint(key=nodehealth.UNREACHABLE, effect=e, time_added="t") for e in ("NoSchedule", "NoExecute")]


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        (node(), []),
        (node(""), []),
        (node("False"), ["not-ready:NoSchedule", "not-ready:NoExecute"]),
        (node("Unknown"), ["unreachable:NoSchedule", "unreachable:NoExecute"]),
        (node(marks=GONE), []),
        (node("False", marks=GONE), ["not-ready:NoSchedule", "not-ready:NoExecute"]),
        (node(unschedulable=True, marks=[OWN]), ["mine:NoExecute", "unschedulable:NoSchedule"]),
    ],
)
def test_taints(subject: Node, want: list[str]) -> None:
    assert [f"{t.key.rpartition('/')[2]}:{t.effect}" for t in taints(subject, NOW)] == want


def test_existing_taints_keep_their_time() -> None:
    assert {t.time_added for t in taints(node("Unknown", marks=GONE), NOW)} == {"t"}


def test_conditions_of_a_node_without_heartbeats() -> None:
    conditions = {c.type: c for c in present(lost_conditions(node(), NOW))}
    assert conditions["Ready"].status == "Unknown"
    assert conditions["Ready"].message == "Kubelet stopped posting node status."
    assert conditions["Other"].status == "True"
    assert lost_conditions(node("Unknown"), NOW) is None
    unready = present(unready_pod(make_pod("a"), NOW))
    assert (unready[0].status, unready[0].reason) == ("False", "NodeNotReady")
    assert unready_pod(make_pod("a", ready=False), NOW) is None


def tolerant(*tolerations: dict[str, Any]) -> Pod:
    pod = make_pod("p")
    spec = msgspec.convert({"tolerations": list(tolerations)}, type(pod.spec))
    return msgspec.structs.replace(pod, spec=spec)


LOST = nodehealth.UNREACHABLE


@pytest.mark.parametrize(
    ("tolerations", "marks", "want"),
    [
        ([], [Taint(key="k", effect="NoExecute")], 0.0),
        ([], [Taint(key="k", effect="NoSchedule")], None),
        ([{"operator": "Exists"}], [Taint(key="k", effect="NoExecute")], None),
        ([], [Taint(key=LOST, effect="NoExecute", time_added="2026-01-01T11:59:00Z")], 240.0),
        ([{"key": LOST, "operator": "Exists", "tolerationSeconds": 60}],
         [Taint(key=LOST, effect="NoExecute", time_added="2026-01-01T11:59:00Z")], 0.0),
        ([{"key": LOST, "operator": "Exists", "tolerationSeconds": 100}, {"operator": "Exists"}],
         [Taint(key=LOST, effect="NoExecute", time_added="2026-01-01T11:59:00Z")], 40.0),
        ([{"key": LOST, "operator": "Exists"}], [Taint(key=LOST, effect="NoExecute")], None),
    ],
)  # fmt: skip
def test_eviction(tolerations: list[dict[str, Any]], marks: list[Taint], want: float | None) -> None:
    assert eviction_in_s(tolerant(*tolerations), marks, NOW) == want


BUDGETS = [
    ({"minAvailable": 2}, 3, 0, (1, 2, 3)),
    ({"minAvailable": 2}, 1, 2, (0, 2, 3)),
    ({"minAvailable": "50%"}, 3, 1, (0, 3, 5)),
    ({"maxUnavailable": 1}, 5, 0, (1, 4, 5)),
    ({"maxUnavailable": "40%"}, 5, 0, (2, 3, 5)),
]


@pytest.mark.parametrize(("spec", "ready", "unready", "want"), BUDGETS)
def test_budgets(spec: dict[str, Any], ready: int, unready: int, want: tuple[int, int, int]) -> None:
    owner = [{"kind": "ReplicaSet", "name": "r", "uid": "R", "controller": True}]
    pods = [make_pod(f"p{n}", ready=n < ready, ownerReferences=owner) for n in range(ready + unready)]
    budget = msgspec.convert({"metadata": {"generation": 4}, "spec": spec}, PodDisruptionBudget)
    status = plan_budget(budget, pods, {"R": 5}, NOW)
    assert (status.disruptions_allowed, status.desired_healthy, status.expected_pods) == want
    assert status.conditions[0].status == str(want[0] > 0)
    assert status.observed_generation == 4


def test_pods_without_a_controller_count_by_themselves() -> None:
    budget = msgspec.convert({"spec": {"maxUnavailable": 1}}, PodDisruptionBudget)
    status = plan_budget(budget, [make_pod("a"), make_pod("b"), make_pod("c", going=True)], {}, NOW)
    assert (status.expected_pods, status.desired_healthy, status.disruptions_allowed) == (2, 1, 1)
    assert plan_budget(budget, [], {}, NOW).disruptions_allowed == 0


def revision(number: int, template: dict[str, Any], digest: str) -> ControllerRevision:
    meta = ObjectMeta(name=f"r{number}", labels={"controller-revision-hash": digest})
    return ControllerRevision(metadata=meta, data=data_of(template), revision=number)


def test_history() -> None:
    first, second, third = ({"spec": {"n": n}} for n in (1, 2, 3))
    known = history([revision(2, second, "b"), revision(1, first, "a")], first)
    assert [item.revision for item in known.revisions] == [1, 2]
    assert (present(known.current).revision, known.next_number) == (1, 3)
    assert template_of(present(known.current)) == first
    assert history([], third).current is None
    many = [revision(n, {"n": n}, f"h{n}") for n in range(6)]
    assert [item.revision for item in surplus(many, ["h0", "h5"], 2)] == [1, 2]
