"""Namespaces: patches, status, finalizers, and the order in which their objects go."""

import os

from tests.e2e.connection import Connection
from tests.e2e.driver import eventually


def test_patches_updates_and_status(api: Connection) -> None:
    path = f"/api/v1/namespaces/patched-{os.getpid()}"
    api.do("POST", "/api/v1/namespaces", {"metadata": {"name": path.rpartition("/")[2]}})
    patch = {"metadata": {"labels": {"testLabel": "testValue"}}}
    patched = api.do("PATCH", path, patch, patch="strategic")
    assert patched["metadata"]["labels"]["testLabel"] == "testValue"
    patched["metadata"]["labels"]["updated"] = "true"
    assert api.do("PUT", path, patched)["metadata"]["labels"].keys() >= {"testLabel", "updated"}

    condition = {"type": "StatusPatch", "status": "True", "reason": "E2E", "message": "Set from a test"}
    api.do("PATCH", f"{path}/status", {"metadata": {"annotations": {"p": "q"}}, "status": {"conditions": [condition]}})
    read = api.do("GET", f"{path}/status")
    assert (read["status"]["conditions"], read["metadata"]["annotations"]["p"]) == ([condition], "q")
    read["status"]["conditions"].append({**condition, "type": "StatusUpdate"})
    written = api.do("PUT", f"{path}/status", read)["status"]
    assert (written["phase"], [item["type"] for item in written["conditions"]]) == (
        "Active", ["StatusPatch", "StatusUpdate"],
    )  # fmt: skip
    api.do("DELETE", path)


def test_a_finalizer_is_added_and_removed(api: Connection) -> None:
    path = f"/api/v1/namespaces/final-{os.getpid()}"
    created = api.do("POST", "/api/v1/namespaces", {"metadata": {"name": path.rpartition("/")[2]}})
    assert created["spec"]["finalizers"] == ["kubernetes"]
    created["spec"]["finalizers"].append("e2e.example.com/fake")
    assert api.do("PUT", f"{path}/finalize", created)["spec"]["finalizers"] == ["kubernetes", "e2e.example.com/fake"]
    api.do("DELETE", path)
    eventually(lambda: api.do("GET", path)["spec"].get("finalizers") == ["e2e.example.com/fake"])
    last = api.do("GET", path)
    last["spec"]["finalizers"] = []
    api.do("PUT", f"{path}/finalize", last)
    eventually(lambda: api.ask("GET", path).status == 404)


def test_pods_go_before_other_objects(api: Connection) -> None:
    path = f"/api/v1/namespaces/ordered-{os.getpid()}"
    api.do("POST", "/api/v1/namespaces", {"metadata": {"name": path.rpartition("/")[2]}})
    finalizer = {"finalizers": ["example.com/held"]}
    spec = {"containers": [{"name": "c", "image": "nginx"}], "nodeSelector": {"there": "is-none"}}
    api.do("POST", f"{path}/pods", {"metadata": {"name": "pod", **finalizer}, "spec": spec})
    api.do("POST", f"{path}/configmaps", {"metadata": {"name": "map"}})
    api.do("POST", f"{path}/services", {"metadata": {"name": "service"}, "spec": {"ports": [{"port": 80}]}})
    api.do("DELETE", path)
    eventually(lambda: api.do("GET", f"{path}/pods/pod")["metadata"].get("deletionTimestamp"))
    conditions = eventually(lambda: api.do("GET", path)["status"].get("conditions"))
    held = next(condition for condition in conditions if condition["type"] == "NamespaceFinalizersRemaining")
    assert "example.com/held" in held["message"]
    assert api.do("GET", f"{path}/configmaps/map")
    api.do("PATCH", f"{path}/pods/pod", {"metadata": {"finalizers": None}})
    eventually(lambda: api.ask("GET", path).status == 404)
    for plural in ("pods", "configmaps", "services"):
        assert api.do("GET", f"{path}/{plural}")["items"] == []
