"""Garbage collection: what goes with its owner, what stays, and what waits for its dependents."""

from typing import Any

import pytest
from tests.e2e.connection import Connection
from tests.e2e.driver import eventually

_LABELS = {"garbage": "here"}
_TEMPLATE = {
    "metadata": {"labels": _LABELS},
    "spec": {"nodeSelector": {"there": "is-none"}, "containers": [{"name": "c", "image": "nginx"}]},
}
_OWNERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # The path of the owner and of what it owns, and its selector.
    "deployment": ("/apis/apps/v1", "deployments", {"matchLabels": _LABELS}),
    "controller": ("/api/v1", "replicationcontrollers", _LABELS),
}


def place(namespace: str, version: str, plural: str) -> str:
    return f"{version}/namespaces/{namespace}/{plural}"


def owned(api: Connection, namespace: str, owner: str) -> list[dict[str, Any]]:
    """The ReplicaSets of a Deployment, or the pods of a controller."""
    plural = ("/apis/apps/v1", "replicasets") if owner == "deployment" else ("/api/v1", "pods")
    result: list[dict[str, Any]] = api.do("GET", place(namespace, *plural))["items"]
    return result


def make(api: Connection, namespace: str, owner: str, replicas: int = 2) -> str:
    """An owner whose dependents exist; its path."""
    version, plural, selector = _OWNERS[owner]
    spec = {"replicas": replicas, "selector": selector, "template": _TEMPLATE}
    api.do("POST", place(namespace, version, plural), {"metadata": {"name": owner}, "spec": spec})
    eventually(lambda: len(owned(api, namespace, owner)) == (1 if owner == "deployment" else replicas))
    return f"{place(namespace, version, plural)}/{owner}"


@pytest.mark.parametrize("owner", _OWNERS)
def test_dependents_go_with_their_owner(api: Connection, namespace: str, owner: str) -> None:
    path = make(api, namespace, owner)
    api.do("DELETE", path, {"propagationPolicy": "Background"})
    assert api.ask("GET", path).status == 404
    eventually(lambda: not owned(api, namespace, owner))


@pytest.mark.parametrize("owner", _OWNERS)
def test_orphaned_dependents_stay(api: Connection, namespace: str, owner: str) -> None:
    path = make(api, namespace, owner)
    before = {item["metadata"]["uid"] for item in owned(api, namespace, owner)}
    api.do("DELETE", path, {"propagationPolicy": "Orphan"})
    eventually(lambda: api.ask("GET", path).status == 404)
    remaining = owned(api, namespace, owner)
    assert {item["metadata"]["uid"] for item in remaining} == before
    assert [item["metadata"].get("ownerReferences") for item in remaining] == [None] * len(before)


def test_foreground_deletion_waits_for_the_dependents(api: Connection, namespace: str) -> None:
    path = make(api, namespace, "controller")
    held = owned(api, namespace, "controller")[0]["metadata"]["name"]
    pod = f"{place(namespace, '/api/v1', 'pods')}/{held}"
    api.do("PATCH", pod, {"metadata": {"finalizers": ["example.com/held"]}})
    api.do("DELETE", path, {"propagationPolicy": "Foreground"})
    eventually(lambda: [item["metadata"]["name"] for item in owned(api, namespace, "controller")] == [held])
    meta = api.do("GET", path)["metadata"]
    assert meta["finalizers"] == ["foregroundDeletion"] and meta["deletionTimestamp"]
    api.do("PATCH", pod, {"metadata": {"finalizers": None}})
    eventually(lambda: api.ask("GET", path).status == 404)
    assert not owned(api, namespace, "controller")


def test_dependents_with_another_owner_stay(api: Connection, namespace: str) -> None:
    path = make(api, namespace, "controller", 4)
    maps = place(namespace, "/api/v1", "configmaps")
    other = api.do("POST", maps, {"metadata": {"name": "stays"}})["metadata"]["uid"]
    second = {"apiVersion": "v1", "kind": "ConfigMap", "name": "stays", "uid": other}
    shared = {entry["metadata"]["name"] for entry in owned(api, namespace, "controller")[:2]}
    for item in owned(api, namespace, "controller"):
        meta = item["metadata"]
        if meta["name"] in shared:
            owners = {"metadata": {"ownerReferences": [*meta["ownerReferences"], second]}}
            api.do("PATCH", f"{place(namespace, '/api/v1', 'pods')}/{meta['name']}", owners)
    api.do("DELETE", path, {"propagationPolicy": "Foreground"})
    eventually(lambda: api.ask("GET", path).status == 404)
    remaining = {
        entry["metadata"]["name"]: entry["metadata"]["ownerReferences"] for entry in owned(api, namespace, "controller")
    }
    assert remaining == {name: [second] for name in shared}


def test_a_circle_of_owners_is_deleted(api: Connection, namespace: str) -> None:
    maps = place(namespace, "/api/v1", "configmaps")
    uids = {name: api.do("POST", maps, {"metadata": {"name": name}})["metadata"]["uid"] for name in "abc"}
    for name, owner in zip("abc", "cab", strict=True):
        reference = {
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uids[owner], "controller": True,
            "blockOwnerDeletion": True,
        }  # fmt: skip
        api.do("PATCH", f"{maps}/{name}", {"metadata": {"ownerReferences": [reference]}})
    api.do("DELETE", f"{maps}/a", {"propagationPolicy": "Foreground"})
    eventually(lambda: not [item for item in api.do("GET", maps)["items"] if item["metadata"]["name"] in uids])
