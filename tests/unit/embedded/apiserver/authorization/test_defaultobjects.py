from typing import Any

from podwire.embedded.apiserver.authorization import defaultobjects, policy

Object = dict[str, Any]


def named(table: str, name: str) -> Object:
    return next(obj for kind, obj in defaultobjects.objects() if kind == table and obj["metadata"]["name"] == name)


def test_default_roles_are_those_of_kubernetes() -> None:
    admin = named(policy.CLUSTER_ROLES, "cluster-admin")
    assert admin["rules"] == [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ]
    assert admin["metadata"] == {
        "name": "cluster-admin",
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    }
    edit = named(policy.CLUSTER_ROLES, "edit")
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"] == "true"
    assert edit["aggregationRule"]["clusterRoleSelectors"] == [
        {"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}
    ]


def test_every_default_binding_names_a_default_role() -> None:
    roles = {
        (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        for table, obj in defaultobjects.objects()
        if table in (policy.ROLES, policy.CLUSTER_ROLES)
    }
    for table, obj in defaultobjects.objects():
        if table in (policy.ROLE_BINDINGS, policy.CLUSTER_ROLE_BINDINGS):
            assert (obj["metadata"].get("namespace", ""), obj["roleRef"]["name"]) in roles


def test_missing_default_rules_are_added_and_own_rules_stay() -> None:
    expected = named(policy.CLUSTER_ROLES, "system:kube-dns")
    own = {"apiGroups": ["x"], "resources": ["y"], "verbs": ["get"]}
    obj: Object = {"metadata": {"name": "system:kube-dns", "labels": {"a": "b"}}, "rules": [own]}
    new = defaultobjects.completed(obj, expected)
    assert new is not None
    assert new["metadata"]["labels"] == {"a": "b", "kubernetes.io/bootstrapping": "rbac-defaults"}
    assert new["rules"][0] == own
    assert {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]} in new["rules"]
    assert defaultobjects.completed(new, expected) is None


def test_missing_subjects_are_added() -> None:
    expected = named(policy.CLUSTER_ROLE_BINDINGS, "cluster-admin")
    ann = {"kind": "User", "name": "ann", "apiGroup": policy.GROUP}
    new = defaultobjects.completed({**expected, "subjects": [ann]}, expected)
    assert new is not None
    assert [subject["name"] for subject in new["subjects"]] == ["ann", "system:masters"]


def test_autoupdate_false_keeps_an_object_as_it_is() -> None:
    expected = named(policy.CLUSTER_ROLES, "system:kube-dns")
    saved = {"metadata": {"name": "system:kube-dns", "annotations": {defaultobjects.AUTOUPDATE: "false"}}, "rules": []}
    assert defaultobjects.completed(saved, expected) is None
