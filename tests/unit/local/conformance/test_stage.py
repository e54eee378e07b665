"""What the actions of a case make of its cluster."""

import pytest

from podwire.local.conformance.stage import OPS, Action, CasePod, Stage, follow

A = CasePod(namespace="x", name="a", address="10.244.0.11", labels={"pod": "a"})
B = CasePod(namespace="y", name="b", address="10.244.0.12")
POLICY = {"metadata": {"name": "p", "namespace": "x"}}
STAGE = Stage(
    namespaces={"x": {"team": "a"}, "y": {}},
    pods={"x/a": A, "y/b": B},
    policies={"x/p": POLICY, "y/q": {}},
    cluster_policies={"admin": {}},
)


def test_policies_are_created_changed_and_deleted() -> None:
    new = {"metadata": {"name": "n", "namespace": "x"}}
    after = follow(STAGE, Action(op="create_policy", namespace="x", name="n", policy=new))
    assert after.policies == STAGE.policies | {"x/n": new}
    assert follow(STAGE, Action(op="update_policy", namespace="x", name="p", policy=new)).policies["x/p"] == new
    assert list(follow(STAGE, Action(op="delete_policy", namespace="x", name="p")).policies) == ["y/q"]
    assert follow(STAGE, Action(op="delete_all_policies")).policies == {}
    assert follow(STAGE, Action(op="delete_all_policies")).cluster_policies == {"admin": {}}
    assert follow(STAGE, Action(op="delete_cluster_policy", name="admin")).cluster_policies == {}


def test_deleting_a_namespace_deletes_its_objects() -> None:
    after = follow(STAGE, Action(op="delete_namespace", namespace="x"))
    assert (list(after.namespaces), list(after.pods), list(after.policies)) == (["y"], ["y/b"], ["y/q"])


@pytest.mark.parametrize(
    ("op", "expected"),
    [("set_namespace_labels", {"new": "1"}), ("add_namespace_labels", {"team": "a", "new": "1"})],
)
def test_labels_of_a_namespace_are_replaced_or_added_to(op: str, expected: dict[str, str]) -> None:
    assert follow(STAGE, Action(op=op, namespace="x", labels={"new": "1"})).namespaces["x"] == expected


@pytest.mark.parametrize(
    ("op", "expected"), [("set_pod_labels", {"new": "1"}), ("add_pod_labels", {"pod": "a", "new": "1"})]
)
def test_labels_of_a_pod_are_replaced_or_added_to(op: str, expected: dict[str, str]) -> None:
    after = follow(STAGE, Action(op=op, namespace="x", name="a", labels={"new": "1"}))
    assert after.pods["x/a"].labels == expected


def test_pods_are_created_and_deleted() -> None:
    new = CasePod(namespace="y", name="c", address="10.244.0.13")
    after = follow(STAGE, Action(op="create_pod", namespace="y", name="c", pod=new))
    assert after.pods["y/c"] == new
    assert list(follow(after, Action(op="delete_pod", namespace="x", name="a")).pods) == ["y/b", "y/c"]
    assert follow(STAGE, Action(op="create_namespace", namespace="z", labels={"a": "b"})).namespaces["z"] == {"a": "b"}


@pytest.mark.parametrize("op", sorted(set(OPS) - {"delete_all_policies"}))
def test_changing_missing_or_creating_existing_objects_is_refused(op: str) -> None:
    name = "q" if not op.startswith("create") else {"policy": "p", "cluster_policy": "admin"}.get(op[7:], "a")
    namespace = "" if "cluster" in op else "x" if "namespace" not in op or op.startswith("create") else "q"
    action = Action(op=op, namespace=namespace, name="" if "namespace" in op else name, policy={}, pod=A)
    with pytest.raises(ValueError, match="expected"):
        follow(STAGE, action)


def test_an_address_belongs_to_one_pod() -> None:
    twin = CasePod(namespace="y", name="c", address=A.address)
    with pytest.raises(ValueError, match="address that no pod has"):
        follow(STAGE, Action(op="create_pod", namespace="y", name="c", pod=twin))
