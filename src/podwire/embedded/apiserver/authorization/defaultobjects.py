"""The default roles and bindings as objects, and what a stored one lacks.

A stored object is only ever added to: rules and subjects that people have added stay, and one with the annotation
``rbac.authorization.kubernetes.io/autoupdate: "false"`` is left alone. A binding whose role is another one is made
again. Source: ``k8s.io/component-helpers/auth/rbac/reconciliation``.
"""

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from podwire.embedded.apiserver.authorization import defaultroles, policy
from podwire.embedded.apiserver.authorization.rules import PolicyRule, missing_rules, parse_rules

Object = dict[str, Any]

AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_BOOTSTRAPPING = {"kubernetes.io/bootstrapping": "rbac-defaults"}

_FIELDS: Object = {"aggregationRule": {".": {}, "f:clusterRoleSelectors": {}}}
"""The owned fields that are not owned as a whole."""


def _metadata(name: str, namespace: str = "") -> Object:
    meta: Object = {"name": name, "labels": dict(_BOOTSTRAPPING), "annotations": {AUTOUPDATE: "true"}}
    if namespace:
        meta["namespace"] = namespace
    return meta


def rendered(rules: tuple[PolicyRule, ...]) -> list[Object]:
    """Rules as stored, without their empty fields."""
    return [{key: list(value) for key, value in msgspec.to_builtins(rule).items() if value} for rule in rules]


def _cluster_role(name: str) -> Object:
    obj: Object = {"metadata": _metadata(name)}
    for into in defaultroles.AGGREGATE_TO.get(name, ()):
        obj["metadata"]["labels"][f"{policy.GROUP}/aggregate-to-{into}"] = "true"
    if name in defaultroles.COLLECTING:
        selector = {"matchLabels": {f"{policy.GROUP}/aggregate-to-{name}": "true"}}
        return obj | {"aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": None}
    return obj | {"rules": rendered(defaultroles.CLUSTER_ROLES[name])}


def _binding(metadata: Object, role_kind: str, role: str, subjects: defaultroles.Subjects) -> Object:
    objects: list[Object] = []
    for kind, name in subjects:
        qualifier = {"namespace": "kube-system"} if kind == "ServiceAccount" else {"apiGroup": policy.GROUP}
        objects.append({"kind": kind, "name": name, **qualifier})
    reference = {"apiGroup": policy.GROUP, "kind": role_kind, "name": role}
    return {"metadata": metadata, "roleRef": reference, **({"subjects": objects} if objects else {})}


def objects() -> Iterator[tuple[str, Object]]:
    """Every default role and binding with the name of the store's table that it belongs to."""
    for name in (*defaultroles.CLUSTER_ROLES, *defaultroles.COLLECTING):
        yield policy.CLUSTER_ROLES, _cluster_role(name)
    for (namespace, name), rules in defaultroles.ROLES.items():
        yield policy.ROLES, {"metadata": _metadata(name, namespace), "rules": rendered(rules)}
    for name, subjects in defaultroles.CLUSTER_ROLE_BINDINGS.items():
        yield policy.CLUSTER_ROLE_BINDINGS, _binding(_metadata(name), "ClusterRole", name, subjects)
    for (namespace, name), (role, subjects) in defaultroles.ROLE_BINDINGS.items():
        yield policy.ROLE_BINDINGS, _binding(_metadata(name, namespace), "Role", role, subjects)


def as_created(default: Object, kind: str, manager: str, now: str) -> Object:
    """A default object as the request path would store it when ``manager`` creates it, in a tenth of the time.

    Nothing of it has a default value or depends on other objects. The owned fields are the same for every object of a
    kind, but for the names of the labels.
    """
    api_version = f"{policy.GROUP}/v1"
    meta = {**default["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": now}
    owned: Object = {f"f:{field}": _FIELDS.get(field, {}) for field in default if field != "metadata"}
    owned["f:metadata"] = {
        f"f:{field}": {".": {}, **{f"f:{key}": {} for key in sorted(meta[field])}}
        for field in ("annotations", "labels")
    }
    meta["managedFields"] = [{
        "manager": manager, "operation": "Update", "apiVersion": api_version, "time": now, "fieldsType": "FieldsV1",
        "fieldsV1": dict(sorted(owned.items())),
    }]  # fmt: skip
    return {"apiVersion": api_version, "kind": kind, **default, "metadata": meta}


def completed(entry: Object, default: Object) -> Object | None:
    """The stored object with what it lacks; None when it lacks nothing or is not to be changed."""
    meta = entry["metadata"]
    if (meta.get("annotations") or {}).get(AUTOUPDATE) == "false":
        return None
    new = {**entry, "metadata": dict(meta)}
    for field in ("labels", "annotations"):
        new["metadata"][field] = {**default["metadata"][field], **(meta.get(field) or {})}
    if "roleRef" in default:
        present = entry.get("subjects") or []
        missing = [subject for subject in default.get("subjects") or () if subject not in present]
        if missing:
            new["subjects"] = [*present, *missing]
    elif "aggregationRule" in default:
        new["aggregationRule"] = entry.get("aggregationRule") or default["aggregationRule"]
    else:
        present = entry.get("rules") or []
        lacking = [rule for rule in default["rules"] if rule not in present]
        missing_now = missing_rules(parse_rules(present), parse_rules(lacking)) if lacking else []
        if missing_now:
            new["rules"] = [*present, *rendered(tuple(missing_now))]
    return None if new == entry else new
