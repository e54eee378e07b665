"""Pods through the API: generations, updates, deadlines, RuntimeClasses."""

import os
from typing import Any

import pytest
from tests.e2e.connection import Connection
from tests.e2e.driver import eventually


def start(api: Connection, namespace: str, name: str, **spec: Any) -> str:
    """A new pod that sleeps; its path."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    container = {"name": "c", "image": "busybox:1.36", "command": ["sleep", "600"]}
    meta = {"name": name, "generation": 99, "labels": {"time": "before"}}
    body = {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    api.do("POST", path, {"metadata": meta, "spec": body})
    return f"{path}/{name}"


def generations(api: Connection, path: str) -> tuple[int, int]:
    """The generation of a pod, and the one that its kubelet has observed."""
    pod = api.do("GET", path)
    return pod["metadata"]["generation"], pod["status"].get("observedGeneration", 0)


def test_generations_of_a_pod(api: Connection, namespace: str) -> None:
    path = start(api, namespace, "p", activeDeadlineSeconds=3600)
    assert generations(api, path)[0] == 1
    eventually(lambda: generations(api, path) == (1, 1))
    api.do("PATCH", path, {"metadata": {"annotations": {"a": "b"}}})
    assert generations(api, path)[0] == 1
    api.do("PATCH", path, {"spec": {"activeDeadlineSeconds": 3000}})
    tolerations = api.do("GET", path)["spec"]["tolerations"]
    more = [*tolerations, {"key": "k", "operator": "Exists", "effect": "NoSchedule"}]
    api.do("PATCH", path, {"spec": {"tolerations": more}})
    eventually(lambda: generations(api, path) == (3, 3))
    api.do("PATCH", path, {"metadata": {"finalizers": ["example.com/held"]}})
    api.do("DELETE", path)
    assert api.do("GET", path)["metadata"]["generation"] == 4
    api.do("PATCH", path, {"metadata": {"finalizers": None}})


def test_many_changes_are_observed(api: Connection, namespace: str) -> None:
    path = start(api, namespace, "p", activeDeadlineSeconds=100_000)
    for number in range(30):
        api.do("PATCH", path, {"spec": {"activeDeadlineSeconds": 99_999 - number}})
    assert generations(api, path)[0] == 31
    eventually(lambda: generations(api, path) == (31, 31))


def test_a_pod_is_submitted_updated_and_removed(api: Connection, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    version = api.do("GET", pods)["metadata"]["resourceVersion"]
    path = start(api, namespace, "p")
    status = eventually(lambda: (now := api.do("GET", path)["status"])["phase"] == "Running" and now)
    assert status["hostIP"] in {item["ip"] for item in status["hostIPs"]}
    pod = api.do("GET", path)
    pod["metadata"]["labels"]["time"] = "after"
    for _ in range(20):
        answer = api.ask("PUT", path, pod)
        if answer.status != 409:
            break
        pod["metadata"]["resourceVersion"] = api.do("GET", path)["metadata"]["resourceVersion"]
    assert answer.status == 200
    assert len(api.do("GET", pods, labelSelector="time=after")["items"]) == 1
    api.do("DELETE", path)
    events = api.watch(pods, resourceVersion=version)
    kinds = [next(events)["type"]]
    while kinds[-1] != "DELETED":
        kinds.append(next(events)["type"])
    events.close()
    assert kinds[0] == "ADDED" and set(kinds[1:-1]) == {"MODIFIED"}


def test_an_active_deadline_ends_a_pod(api: Connection, namespace: str) -> None:
    path = start(api, namespace, "p", activeDeadlineSeconds=3600)
    eventually(lambda: api.do("GET", path)["status"]["phase"] == "Running")
    api.do("PATCH", path, {"spec": {"activeDeadlineSeconds": 1}})
    eventually(lambda: api.do("GET", path)["status"].get("reason") == "DeadlineExceeded")
    assert api.do("GET", path)["status"]["phase"] == "Failed"


def test_a_runtime_class_gives_its_overhead(api: Connection, namespace: str) -> None:
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    plain, sized = f"plain-{os.getpid()}", f"sized-{os.getpid()}"
    overhead = {"podFixed": {"cpu": "10m", "memory": "1Mi"}}
    api.do("POST", classes, {"metadata": {"name": plain}, "handler": "runc"})
    api.do("POST", classes, {"metadata": {"name": sized}, "handler": "runc", "overhead": overhead})
    path = start(api, namespace, "plain", runtimeClassName=plain)
    assert "overhead" not in api.do("GET", path)["spec"]
    eventually(lambda: api.do("GET", path)["status"]["phase"] == "Running")
    assert (
        api.do("GET", start(api, namespace, "sized", runtimeClassName=sized))["spec"]["overhead"]
        == overhead["podFixed"]
    )
    for name in (plain, sized):
        api.do("DELETE", f"{classes}/{name}")


def _sizes(cpu: int, memory: int, *, limits: bool = True) -> dict[str, dict[str, str]]:
    sizes = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    return {"requests": sizes, **({"limits": sizes} if limits else {})}


_GUARANTEED = [_sizes(100, 100)] * 3
_BURSTABLE = [_sizes(50, 50, limits=False)] * 3
_RESIZES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    # The resources of three containers before and after.
    "net increase": (_GUARANTEED, [_sizes(140, 120), _sizes(120, 140), _sizes(80, 80)]),
    "net decrease": (_GUARANTEED, [_sizes(110, 110), _sizes(60, 70), _sizes(70, 60)]),
    "mixed": (_GUARANTEED, [_sizes(120, 100), _sizes(80, 120), _sizes(120, 110)]),
    "burstable": (_BURSTABLE, [_sizes(60, 40, limits=False), {**_sizes(50, 50), **_sizes(50, 50)}, _sizes(40, 60)]),
}


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("case", _RESIZES)
def test_resize_without_restart(api: Connection, namespace: str, case: str, method: str) -> None:
    before, after = _RESIZES[case]
    containers = [
        {"name": f"c{number}", "image": "busybox:1.36", "command": ["sleep", "600"], "resources": resources}
        for number, resources in enumerate(before)
    ]
    path = start(api, namespace, "p", containers=containers)
    eventually(lambda: api.do("GET", path)["status"]["phase"] == "Running")
    pod = api.do("GET", path)
    expected = [{"name": f"c{number}", "resources": resources} for number, resources in enumerate(after)]
    if method == "PATCH":
        api.do("PATCH", f"{path}/resize", {"spec": {"containers": expected}}, patch="strategic")
    else:
        for container, new in zip(pod["spec"]["containers"], expected, strict=True):
            container["resources"] = new["resources"]
        pod["metadata"].pop("resourceVersion")
        api.do("PUT", f"{path}/resize", pod)
    assert [item["resources"] for item in api.do("GET", path)["spec"]["containers"]] == after

    def resized() -> bool:
        statuses = api.do("GET", path)["status"]["containerStatuses"]
        return [statuse.get("resources") for statuse in statuses] == after

    eventually(resized)
    assert [item["restartCount"] for item in api.do("GET", path)["status"]["containerStatuses"]] == [0, 0, 0]
