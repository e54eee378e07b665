from typing import Any

import pytest

from podwire.embedded.apiserver.authorization import policy
from podwire.embedded.apiserver.authorization.policy import RolePolicy
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.calls import UserInfo

READ_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
ANN = UserInfo("ann", ("team", "system:authenticated"))
ACCOUNT = UserInfo("system:serviceaccount:shop:web", ("system:serviceaccounts", "system:serviceaccounts:shop"))


def put(known: RolePolicy, kind: str, place: str, **fields: Any) -> None:
    namespace, _, name = place.rpartition("/")
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    known.put(f"{policy.GROUP}/{kind}s", {"metadata": meta, **fields})


def binding(role: str, *subjects: dict[str, str]) -> dict[str, Any]:
    kind, _, name = role.partition(" ")
    return {"roleRef": {"kind": kind, "name": name, "apiGroup": policy.GROUP}, "subjects": list(subjects)}


USER = {"kind": "User", "name": "ann"}
TEAM = {"kind": "Group", "name": "team"}
WEB = {"kind": "ServiceAccount", "name": "web"}
WEB_OF_SHOP = {**WEB, "namespace": "shop"}


def read_pods(namespace: str) -> RequestAttributes:
    return RequestAttributes("list", "", "v1", "pods", namespace=namespace)


@pytest.mark.parametrize(
    ("kind", "place", "bound", "user", "namespace", "reason"),
    [
        ("rolebinding", "shop/b", binding("Role reader", USER), ANN, "shop",
         'RoleBinding "b/shop" of Role "reader" to User "ann"'),
        ("rolebinding", "shop/b", binding("ClusterRole reader", TEAM), ANN, "shop",
         'RoleBinding "b/shop" of ClusterRole "reader" to Group "team"'),
        ("rolebinding", "shop/b", binding("ClusterRole reader", WEB), ACCOUNT, "shop",
         'RoleBinding "b/shop" of ClusterRole "reader" to ServiceAccount "web/shop"'),
        ("clusterrolebinding", "b", binding("ClusterRole reader", WEB_OF_SHOP), ACCOUNT, "",
         'ClusterRoleBinding "b" of ClusterRole "reader" to ServiceAccount "web/shop"'),
        ("clusterrolebinding", "b", binding("ClusterRole reader", TEAM), ANN, "other",
         'ClusterRoleBinding "b" of ClusterRole "reader" to Group "team"'),
        ("rolebinding", "shop/b", binding("Role reader", USER), ANN, "other", None),
        ("rolebinding", "shop/b", binding("ClusterRole reader", USER), ANN, "", None),
        ("rolebinding", "shop/b", binding("Role reader", TEAM), ACCOUNT, "shop", None),
        ("rolebinding", "other/b", binding("ClusterRole reader", WEB), ACCOUNT, "other", None),
        ("clusterrolebinding", "b", binding("ClusterRole reader", WEB), ACCOUNT, "shop", None),
    ],
)  # fmt: skip
def test_a_binding_grants_its_role(
    kind: str, place: str, bound: dict[str, Any], user: UserInfo, namespace: str, reason: str | None
) -> None:
    known = RolePolicy()
    put(known, "role", "shop/reader", rules=READ_PODS)
    put(known, "clusterrole", "reader", rules=READ_PODS)
    put(known, kind, place, **bound)
    for _ in range(2):  # the second answer comes from memory
        decision = known.decide(user, read_pods(namespace))
        assert decision.allowed is (reason is not None)
        assert decision.reason == (f"RBAC: allowed by {reason}" if reason else "")


def test_a_change_of_a_role_counts_at_once() -> None:
    known = RolePolicy()
    put(known, "clusterrole", "reader", rules=READ_PODS)
    put(known, "clusterrolebinding", "b", **binding("ClusterRole reader", USER))
    assert known.decide(ANN, read_pods("shop")).allowed
    put(known, "clusterrole", "reader", rules=None)
    assert not known.decide(ANN, read_pods("shop")).allowed
    put(known, "clusterrole", "reader", rules=READ_PODS)
    known.remove(policy.CLUSTER_ROLE_BINDINGS, "", "b")
    assert not known.decide(ANN, read_pods("shop")).allowed


def test_a_binding_to_a_missing_role_is_named() -> None:
    known = RolePolicy()
    put(known, "clusterrolebinding", "a", **binding("ClusterRole gone", USER))
    assert known.decide(ANN, read_pods("")).reason == ('RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found')
    put(known, "rolebinding", "shop/b", **binding("Role lost", TEAM))
    assert known.decide(ANN, read_pods("shop")).reason == (
        'RBAC: [clusterrole.rbac.authorization.k8s.io "gone" not found, '
        'role.rbac.authorization.k8s.io "lost" not found]'
    )


def test_a_name_in_a_rule_is_not_remembered_for_others() -> None:
    known = RolePolicy()
    rules = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["get"]}]
    put(known, "clusterrole", "one", rules=rules)
    put(known, "clusterrolebinding", "b", **binding("ClusterRole one", USER))
    ask = RequestAttributes("get", "", "v1", "secrets", namespace="shop", name="a")
    assert known.decide(ANN, ask).allowed
    assert not known.decide(ANN, RequestAttributes("get", "", "v1", "secrets", namespace="shop", name="b")).allowed
