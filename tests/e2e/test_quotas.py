"""ResourceQuotas count the life of objects of each kind, and the pods of their scopes."""

from http import HTTPStatus
from typing import Any

import pytest
from tests.e2e.connection import Connection
from tests.e2e.driver import eventually

_TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "image": "nginx"}]},
}
_OBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "configmaps": ("/api/v1", {"data": {"a": "b"}}),
    "secrets": ("/api/v1", {"stringData": {"a": "b"}}),
    "replicationcontrollers": ("/api/v1", {"spec": {"replicas": 0, "selector": {"a": "b"}, "template": _TEMPLATE}}),
    "replicasets.apps": (
        "/apis/apps/v1", {"spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": _TEMPLATE}},
    ),
}  # fmt: skip


def limit(api: Connection, namespace: str, name: str, hard: dict[str, str], **spec: Any) -> str:
    """A quota; its path."""
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    api.do("POST", path, {"metadata": {"name": name}, "spec": {"hard": hard, **spec}})
    eventually(lambda: api.do("GET", f"{path}/{name}")["status"].get("used"))
    return f"{path}/{name}"


def used(api: Connection, quota: str) -> dict[str, str]:
    return dict(api.do("GET", quota)["status"]["used"])


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """A pod that no node takes."""
    body = {"nodeSelector": {"there": "is-none"}, "containers": [{"name": "c", "image": "nginx", **spec.pop("c", {})}]}
    return {"metadata": {"name": name}, "spec": {**body, **spec}}


@pytest.mark.parametrize("kind", _OBJECTS)
def test_a_quota_counts_the_life_of_an_object(api: Connection, namespace: str, kind: str) -> None:
    version, body = _OBJECTS[kind]
    path = f"{version}/namespaces/{namespace}/{kind.partition('.')[0]}"
    # The controllers make this one a moment after the namespace.
    eventually(
        lambda: api.ask("GET", f"/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt").status == HTTPStatus.OK
    )
    there = len(api.do("GET", path)["items"])
    count = f"count/{kind}"
    quota = limit(api, namespace, "q", {count: str(there + 1)})
    assert used(api, quota) == {count: str(there)}
    api.do("POST", path, {"metadata": {"name": "one"}, **body})
    eventually(lambda: used(api, quota) == {count: str(there + 1)})
    refused = api.ask("POST", path, {"metadata": {"name": "two"}, **body})
    assert refused.status == 403 and f"exceeded quota: q, requested: {count}=1" in refused.body["message"]
    api.do("DELETE", f"{path}/one")
    eventually(lambda: used(api, quota) == {count: str(there)})


def test_a_quota_counts_the_life_of_a_service(api: Connection, namespace: str) -> None:
    hard = {"services": "2", "services.nodeports": "1", "services.loadbalancers": "0"}
    quota = limit(api, namespace, "q", hard)
    path = f"/api/v1/namespaces/{namespace}/services"

    def service(name: str, kind: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"type": kind, "ports": [{"port": 80}]}}

    api.do("POST", path, service("cluster", "ClusterIP"))
    api.do("POST", path, service("node", "NodePort"))
    eventually(lambda: used(api, quota) == {"services": "2", "services.nodeports": "1", "services.loadbalancers": "0"})
    assert "exceeded quota" in api.ask("POST", path, service("third", "ClusterIP")).body["message"]
    api.do("DELETE", f"{path}/node")
    assert "exceeded quota" in api.ask("POST", path, service("balanced", "LoadBalancer")).body["message"]
    api.do("DELETE", f"{path}/cluster")
    eventually(lambda: set(used(api, quota).values()) == {"0"})


def test_a_quota_counts_the_life_of_a_pod(api: Connection, namespace: str) -> None:
    hard = {"pods": "5", "cpu": "1", "memory": "500Mi", "requests.ephemeral-storage": "50Gi"}
    quota = limit(api, namespace, "q", hard)
    path = f"/api/v1/namespaces/{namespace}/pods"
    requests = {"cpu": "500m", "memory": "252Mi", "ephemeral-storage": "30Gi"}
    api.do("POST", path, pod("one", c={"resources": {"requests": requests}}))
    expected = {"pods": "1", "cpu": "500m", "memory": "252Mi", "requests.ephemeral-storage": "30Gi"}
    eventually(lambda: used(api, quota) == expected)
    more = {**requests, "cpu": "600m"}
    assert api.ask("POST", path, pod("two", c={"resources": {"requests": more}})).status == 403
    api.do("DELETE", f"{path}/one")
    eventually(lambda: set(used(api, quota).values()) == {"0"})


def test_scopes_count_the_pods_that_they_select(api: Connection, namespace: str) -> None:
    quotas = {
        scope: limit(api, namespace, scope.lower(), {"pods": "5"}, scopes=[scope])
        for scope in ("BestEffort", "NotBestEffort", "Terminating", "NotTerminating")
    }
    path = f"/api/v1/namespaces/{namespace}/pods"

    def counted() -> set[str]:
        return {scope for scope, quota in quotas.items() if used(api, quota)["pods"] == "1"}

    sized = {"resources": {"requests": {"cpu": "1m"}, "limits": {"cpu": "2m"}}}
    for body, scopes in (
        (pod("best-effort"), {"BestEffort", "NotTerminating"}),
        (pod("burstable", c=sized), {"NotBestEffort", "NotTerminating"}),
        (pod("terminating", activeDeadlineSeconds=3600), {"BestEffort", "Terminating"}),
    ):
        api.do("POST", path, body)
        eventually(lambda scopes=scopes: counted() == scopes)
        api.do("DELETE", f"{path}/{body['metadata']['name']}")
        eventually(lambda: counted() == set())
