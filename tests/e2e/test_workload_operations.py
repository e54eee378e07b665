"""Workloads through the API: scales, adoption, rollouts that follow each other, evictions, quotas."""

from typing import Any

import pytest
from tests.e2e.connection import Connection
from tests.e2e.driver import eventually

_LABELS = {"app": "work"}
_PATHS = {
    "deployments": "/apis/apps/v1", "replicasets": "/apis/apps/v1", "statefulsets": "/apis/apps/v1",
    "replicationcontrollers": "/api/v1",
}  # fmt: skip


def container(image: str = "nginx:1.27") -> dict[str, Any]:
    probe = {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1}
    return {"name": "c", "image": image, "ports": [{"containerPort": 80}], "readinessProbe": probe}


def pod_spec(image: str = "nginx:1.27") -> dict[str, Any]:
    return {"terminationGracePeriodSeconds": 0, "containers": [container(image)]}


def workload(plural: str, replicas: int, image: str = "nginx:1.27", **spec: Any) -> dict[str, Any]:
    selector: dict[str, Any] = _LABELS if plural == "replicationcontrollers" else {"matchLabels": _LABELS}
    template = {"metadata": {"labels": _LABELS}, "spec": pod_spec(image)}
    return {
        "metadata": {"name": "work", "labels": _LABELS},
        "spec": {"replicas": replicas, "selector": selector, "template": template, **spec},
    }


def place(namespace: str, plural: str) -> str:
    return f"{_PATHS.get(plural, '/api/v1')}/namespaces/{namespace}/{plural}"


def pods(api: Connection, namespace: str) -> list[dict[str, Any]]:
    """The pods of the workload that are not being deleted."""
    result = api.do("GET", place(namespace, "pods"), labelSelector="app=work")["items"]
    return [pod for pod in result if not pod["metadata"].get("deletionTimestamp")]


def ready(api: Connection, namespace: str) -> list[dict[str, Any]]:
    return [
        pod
        for pod in pods(api, namespace)
        if any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", ()))
    ]


@pytest.mark.parametrize("plural", _PATHS)
def test_scale_is_read_written_and_patched(api: Connection, namespace: str, plural: str) -> None:
    api.do("POST", place(namespace, plural), workload(plural, 1))
    path = f"{place(namespace, plural)}/work"
    eventually(lambda: len(ready(api, namespace)) == 1)
    scale = eventually(lambda: (item := api.do("GET", f"{path}/scale"))["status"]["replicas"] == 1 and item)
    assert (scale["kind"], scale["spec"]["replicas"], scale["status"]["selector"]) == ("Scale", 1, "app=work")
    scale["metadata"]["resourceVersion"] = ""
    scale["spec"]["replicas"] = 2
    assert api.do("PUT", f"{path}/scale", scale)["spec"]["replicas"] == 2
    eventually(lambda: len(ready(api, namespace)) == 2)
    assert api.do("PATCH", f"{path}/scale", {"spec": {"replicas": 3}})["spec"]["replicas"] == 3
    assert api.do("GET", path)["spec"]["replicas"] == 3


@pytest.mark.parametrize("plural", ["replicasets", "replicationcontrollers"])
def test_orphans_are_adopted_and_relabelled_pods_released(api: Connection, namespace: str, plural: str) -> None:
    orphan = {"metadata": {"name": "orphan", "labels": _LABELS}, "spec": pod_spec()}
    api.do("POST", place(namespace, "pods"), orphan)
    uid = api.do("POST", place(namespace, plural), workload(plural, 1))["metadata"]["uid"]

    def owners() -> list[str]:
        meta = api.do("GET", f"{place(namespace, 'pods')}/orphan")["metadata"]
        return [owner["uid"] for owner in meta.get("ownerReferences", ())]

    eventually(lambda: owners() == [uid])
    assert [pod["metadata"]["name"] for pod in pods(api, namespace)] == ["orphan"]
    api.do("PATCH", f"{place(namespace, 'pods')}/orphan", {"metadata": {"labels": {"app": "other"}}})
    eventually(lambda: owners() == [])
    eventually(lambda: len(pods(api, namespace)) == 1)


def replica_sets(api: Connection, namespace: str) -> dict[str, int]:
    """The replicas of the Deployment's ReplicaSets by image."""
    result = api.do("GET", place(namespace, "replicasets"), labelSelector="app=work")["items"]
    return {item["spec"]["template"]["spec"]["containers"][0]["image"]: item["spec"]["replicas"] for item in result}


def set_image(api: Connection, namespace: str, image: str) -> None:
    template = {"spec": {"containers": [container(image)]}}
    api.do("PATCH", f"{place(namespace, 'deployments')}/work", {"spec": {"template": template}})


def test_a_deployment_takes_over_pods_and_replaces_them(api: Connection, namespace: str) -> None:
    api.do("POST", place(namespace, "replicasets"), workload("replicasets", 1, "httpd:2"))
    (before,) = eventually(lambda: ready(api, namespace))
    body = workload("deployments", 1)
    body["metadata"]["name"] = "taker"
    api.do("POST", place(namespace, "deployments"), body)
    eventually(lambda: replica_sets(api, namespace) == {"httpd:2": 0, "nginx:1.27": 1})
    eventually(lambda: len(ready(api, namespace)) == 1)
    assert ready(api, namespace)[0]["metadata"]["uid"] != before["metadata"]["uid"]


def test_old_replica_sets_beyond_the_history_go(api: Connection, namespace: str) -> None:
    api.do("POST", place(namespace, "deployments"), workload("deployments", 1, revisionHistoryLimit=0))
    eventually(lambda: ready(api, namespace))
    set_image(api, namespace, "httpd:2")
    eventually(lambda: replica_sets(api, namespace) == {"httpd:2": 1})


def test_a_rollout_is_taken_over_by_the_next(api: Connection, namespace: str) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    api.do("POST", place(namespace, "deployments"), workload("deployments", 1, strategy=strategy))
    eventually(lambda: ready(api, namespace))
    never = {**container("httpd:2"), "readinessProbe": {"exec": {"command": ["false"]}}, "image": "busybox",
             "command": ["sleep", "600"]}  # fmt: skip
    api.do(
        "PATCH", f"{place(namespace, 'deployments')}/work", {"spec": {"template": {"spec": {"containers": [never]}}}}
    )
    eventually(lambda: replica_sets(api, namespace) == {"nginx:1.27": 1, "busybox": 1})
    set_image(api, namespace, "caddy:2")
    eventually(lambda: replica_sets(api, namespace) == {"nginx:1.27": 0, "busybox": 0, "caddy:2": 1})
    eventually(lambda: len(ready(api, namespace)) == 1)


def test_an_eviction_waits_until_the_budget_allows_it(api: Connection, namespace: str) -> None:
    api.do("POST", place(namespace, "replicasets"), workload("replicasets", 2))
    eventually(lambda: len(ready(api, namespace)) == 2)
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 2, "selector": {"matchLabels": _LABELS}}
    api.do("POST", budgets, {"metadata": {"name": "b"}, "spec": spec})
    eventually(lambda: api.do("GET", f"{budgets}/b")["status"].get("currentHealthy") == 2)
    name = ready(api, namespace)[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    path = f"{place(namespace, 'pods')}/{name}/eviction"
    refused = api.ask("POST", path, eviction)
    assert (refused.status, refused.body["details"]["causes"][0]["reason"]) == (429, "DisruptionBudget")
    api.do("PATCH", f"{budgets}/b", {"spec": {"minAvailable": 1}})
    eventually(lambda: api.do("GET", f"{budgets}/b")["status"]["disruptionsAllowed"] == 1)
    assert api.ask("POST", path, eviction).status == 201
    eventually(lambda: name not in {pod["metadata"]["name"] for pod in pods(api, namespace)})


def test_a_full_quota_is_a_condition_of_the_controller(api: Connection, namespace: str) -> None:
    quotas = place(namespace, "resourcequotas")
    api.do("POST", quotas, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}})
    eventually(lambda: api.do("GET", f"{quotas}/q")["status"].get("used"))
    path = f"{place(namespace, 'replicationcontrollers')}/work"
    api.do("POST", place(namespace, "replicationcontrollers"), workload("replicationcontrollers", 2))

    def conditions() -> dict[str, str]:
        return {item["type"]: item["reason"] for item in api.do("GET", path)["status"].get("conditions", ())}

    eventually(lambda: conditions() == {"ReplicaFailure": "FailedCreate"})
    api.do("PATCH", f"{path}/scale", {"spec": {"replicas": 1}})
    eventually(lambda: conditions() == {})


def test_a_daemon_set_rolls_back_without_other_restarts(api: Connection, namespace: str) -> None:
    body = workload("daemonsets", 1)
    del body["spec"]["replicas"]
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    api.do("POST", path, body)
    eventually(lambda: len(ready(api, namespace)) == 2)
    before = {pod["metadata"]["uid"] for pod in ready(api, namespace)}
    bad = {**container("busybox"), "command": ["sleep", "600"], "readinessProbe": {"exec": {"command": ["false"]}}}

    def set_container(expected: dict[str, Any]) -> None:
        api.do("PATCH", f"{path}/work", {"spec": {"template": {"spec": {"containers": [expected]}}}})

    set_container(bad)
    eventually(lambda: any(pod["spec"]["containers"][0]["image"] == "busybox" for pod in pods(api, namespace)))
    set_container(container())
    eventually(lambda: len(ready(api, namespace)) == len(before))
    after = {pod["metadata"]["uid"] for pod in ready(api, namespace)}
    assert len(before - after) == 1, "only the pod that had the bad image is another one"
