"""ReplicaSets: a number of equal pods."""

from typing import Any

from tests.unit.embedded.workloads.sample_pods import NOW, make_pod

from podwire.embedded.workloads.podstate import available_in_s, victims
from podwire.embedded.workloads.replicaset import Replicated, plan, replicaset_view
from podwire.embedded.workloads.template import PodOwner, equal_templates, pod_of, template_hash, with_label
from podwire.model.meta import ObjectMeta
from podwire.model.selector import LabelSelector
from podwire.model.workload import ReplicaSet, ReplicaSetStatus, changed_status

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "a"}, "creationTimestamp": None},
    "spec": {"unknownField": {"x": [1]}},
}


def replicated(replicas: int, min_ready_s: int = 0, **meta: Any) -> Replicated:
    owner = PodOwner("apps/v1", "ReplicaSet", ObjectMeta(name="rs", uid="R", generation=3, namespace="d", **meta))
    return Replicated(owner, replicas, LabelSelector(), TEMPLATE, min_ready_s, ReplicaSetStatus())


def test_missing_and_ended_pods_are_replaced() -> None:
    pods = (make_pod("a"), make_pod("b", phase="Failed"), make_pod("c", going=True))
    chosen = plan(replicated(3), pods, NOW)
    assert (chosen.create, chosen.delete) == (2, ())
    assert (
        chosen.status.replicas,
        chosen.status.terminating_replicas,
        chosen.status.observed_generation,
    ) == (1, 1, 3)


def test_object_being_deleted_creates_no_pods() -> None:
    assert plan(replicated(3, deletion_timestamp="t"), (), NOW).create == 0


def test_min_ready_seconds_delay_availability() -> None:
    pods = (make_pod("a", since=-5), make_pod("b", since=-20), make_pod("c", ready=False))
    chosen = plan(replicated(3, 10), pods, NOW)
    assert (chosen.status.ready_replicas, chosen.status.available_replicas, chosen.again_s) == (2, 1, 5.0)
    assert available_in_s(pods[2], 0, NOW) is None


def test_order_of_deletion() -> None:
    cost = {"controller.kubernetes.io/pod-deletion-cost": "-5"}
    pods = [
        make_pod("old-ready", since=-500),
        make_pod("young-ready", since=-10),
        make_pod("unready", ready=False),
        make_pod("pending", ready=False, phase="Pending"),
        make_pod("nowhere", ready=False, phase="Pending", node=""),
        make_pod("cheap", annotations=cost),
        make_pod("crowded-1", node="n2", since=-900),
        make_pod("crowded-2", node="n2", since=-901),
    ]
    names = [pod.metadata.name for pod in victims(pods, len(pods))]
    assert names == [
        "nowhere", "pending", "unready", "cheap", "young-ready", "old-ready", "crowded-1", "crowded-2",
    ]  # fmt: skip
    assert [p.metadata.name for p in plan(replicated(7), tuple(pods), NOW).delete] == ["nowhere"]


def test_pods_carry_the_template_verbatim() -> None:
    owner = PodOwner("apps/v1", "ReplicaSet", ObjectMeta(name="rs", uid="R", namespace="d"))
    body = pod_of(TEMPLATE, owner)
    assert body["spec"] == {"unknownField": {"x": [1]}}
    assert body["metadata"]["generateName"] == "rs-"
    assert body["metadata"]["labels"] == {"app": "a"}
    assert body["metadata"]["ownerReferences"][0] == {
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "R",
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def test_template_hashes_are_stable_and_distinct() -> None:
    first = template_hash(TEMPLATE)
    assert first == template_hash({"spec": TEMPLATE["spec"], "metadata": TEMPLATE["metadata"]})
    assert len({first, template_hash(TEMPLATE, 1), template_hash({"spec": {}})}) == 3
    assert set(first) <= set("bcdfghjklmnpqrstvwxz2456789")
    labelled = with_label(TEMPLATE, "pod-template-hash", first)
    assert equal_templates(labelled, TEMPLATE)
    assert TEMPLATE["metadata"]["labels"] == {"app": "a"}


def test_a_status_patch_has_only_what_changed() -> None:
    old = ReplicaSetStatus(replicas=3, ready_replicas=1)
    assert changed_status(old, old) == {}
    assert changed_status(old, ReplicaSetStatus(replicas=3)) == {"readyReplicas": 0}


def test_common_fields_of_both_kinds() -> None:
    item = ReplicaSet(metadata=ObjectMeta(name="x"))
    assert replicaset_view(item).replicas == 1
    assert replicaset_view(item).owner.kind == "ReplicaSet"
