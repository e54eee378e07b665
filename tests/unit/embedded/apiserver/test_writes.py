"""Dry runs of every kind of write: checked and answered as if done, and nothing is stored or given away."""

from collections.abc import Callable
from typing import Any

import pytest

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
SERVICES = "/api/v1/namespaces/default/services"
MERGE = "application/merge-patch+json"
LABELS = {"app": "web"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}
WEB: dict[str, Any] = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
    "spec": {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": TEMPLATE},
}  # fmt: skip
SCALED = {"spec": {"replicas": 5}}

FIVE: dict[str, Any] = {**WEB, "spec": {**WEB["spec"], "replicas": 5}}

WRITES: dict[str, tuple[str, str, Any, str]] = {
    "patch": ("PATCH", f"{DEPLOYMENTS}/web", SCALED, MERGE),
    "apply": ("PATCH", f"{DEPLOYMENTS}/web", FIVE,
              "application/apply-patch+yaml"),
    "update": ("PUT", f"{DEPLOYMENTS}/web", FIVE,
               "application/json"),
    "scale": ("PATCH", f"{DEPLOYMENTS}/web/scale", SCALED, MERGE),
    "status": ("PATCH", f"{DEPLOYMENTS}/web/status", {"status": {"replicas": 5}}, MERGE),
    "delete": ("DELETE", f"{DEPLOYMENTS}/web", None, "application/json"),
    "delete all": ("DELETE", DEPLOYMENTS, None, "application/json"),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_a_dry_run_stores_nothing(play: Callable[..., None], write: str) -> None:
    method, path, body, media_type = WRITES[write]

    async def scenario(api: Any) -> None:
        _, before = await api("POST", DEPLOYMENTS, WEB)
        events = await api.watch(f"{DEPLOYMENTS}?watch=true&resourceVersion={before['metadata']['resourceVersion']}")
        more = "&fieldManager=me&force=true" if write == "apply" else ""
        status, answer = await api(method, f"{path}?dryRun=All{more}", body, content_type=media_type)
        assert status == 200, answer
        if body is not None:
            part = "status" if write == "status" else "spec"
            assert answer[part]["replicas"] == 5
        await api.settle()
        assert (await api("GET", f"{DEPLOYMENTS}/web"))[1] == before
        assert events.short == []

    play(scenario)


def test_dry_run_gets_the_same_error_as_the_write(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CONFIGMAPS, {"metadata": {"name": "x"}})
        assert (await api("POST", f"{CONFIGMAPS}?dryRun=All", {"metadata": {"name": "x"}}))[0] == 409
        assert (await api("POST", f"{CONFIGMAPS}?dryRun=All", {"metadata": {"name": "No_Good"}}))[0] == 422
        assert (await api("DELETE", f"{CONFIGMAPS}/y?dryRun=All"))[0] == 404
        assert (await api("PATCH", f"{CONFIGMAPS}/x?dryRun=Some", {}, content_type=MERGE))[0] == 400

    play(scenario)


def test_a_dry_run_allocates_no_address_and_no_port(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        spec = {"type": "NodePort", "clusterIP": "10.96.9.9", "ports": [{"port": 80, "nodePort": 30099}]}
        for name in ("a", "b"):
            status, answer = await api("POST", f"{SERVICES}?dryRun=All", {"metadata": {"name": name}, "spec": spec})
            assert (status, answer["spec"]["clusterIP"]) == (201, "10.96.9.9")
        status, _ = await api("POST", SERVICES, {"metadata": {"name": "c"}, "spec": spec})
        assert status == 201
        status, answer = await api("POST", f"{SERVICES}?dryRun=All", {"metadata": {"name": "d"}, "spec": spec})
        assert (status, answer["reason"]) == (422, "Invalid")
        assert "already allocated" in answer["message"]

    play(scenario)


ALWAYS_SHOWN = {
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices": ({"addressType": "IPv4"}, ("endpoints", "ports")),
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles": ({}, ("rules",)),
    "/apis/rbac.authorization.k8s.io/v1/clusterroles": ({}, ("rules",)),
}


@pytest.mark.parametrize("path", ALWAYS_SHOWN)
def test_lists_that_kubernetes_always_shows_are_null(play: Callable[..., None], path: str) -> None:
    content, fields = ALWAYS_SHOWN[path]

    async def scenario(api: Any) -> None:
        for name, empty in (("absent", {}), ("empty", dict.fromkeys(fields, ()))):
            _, created = await api("POST", path, {"metadata": {"name": name}, **content, **empty})
            assert {field: created[field] for field in fields} == dict.fromkeys(fields)
            status, again = await api("PUT", f"{path}/{name}", created)
            assert (status, again) == (200, created)

    play(scenario)


def test_behavior_survives_a_write_in_version_1(play: Callable[..., None]) -> None:
    v1, v2 = (f"/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers" for version in ("v1", "v2"))
    target = {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Min",
                              "policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}]}}  # fmt: skip

    async def scenario(api: Any) -> None:
        spec = {"scaleTargetRef": target, "maxReplicas": 3, "behavior": behavior}
        _, created = await api("POST", v2, {"metadata": {"name": "a"}, "spec": spec})
        _, old = await api("GET", f"{v1}/a")
        assert "behavior" not in old["spec"]
        text = old["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/behavior"]
        assert '"ScaleDown":{' in text and '"StabilizationWindowSeconds":60' in text
        old["spec"]["maxReplicas"] = 5
        status, _ = await api("PUT", f"{v1}/a", old)
        _, result = await api("GET", f"{v2}/a")
        assert (status, result["spec"]["maxReplicas"]) == (200, 5)
        assert result["spec"]["behavior"] == created["spec"]["behavior"]
        assert "annotations" not in result["metadata"]

    play(scenario)


_AUTOSCALER_METRICS: tuple[dict[str, Any], ...] = (
    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "64Mi"}}},
    {"type": "ContainerResource", "containerResource": {
        "name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 70}}},
    {"type": "Pods", "pods": {"metric": {"name": "hits", "selector": {"matchLabels": {"a": "b"}}},
                              "target": {"type": "AverageValue", "averageValue": "10"}}},
    {"type": "Object", "object": {
        "describedObject": {"kind": "Ingress", "name": "web", "apiVersion": "networking.k8s.io/v1"},
        "metric": {"name": "hits"}, "target": {"type": "Value", "value": "2k"}}},
    {"type": "Object", "object": {
        "describedObject": {"kind": "Ingress", "name": "web", "apiVersion": "networking.k8s.io/v1"},
        "metric": {"name": "hits"}, "target": {"type": "AverageValue", "averageValue": "3"}}},
    {"type": "External", "external": {"metric": {"name": "queue", "selector": {"matchLabels": {"q": "1"}}},
                                      "target": {"type": "AverageValue", "averageValue": "5"}}},
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
)  # fmt: skip


def test_metrics_survive_a_write_in_version_1(play: Callable[..., None]) -> None:
    v1, v2 = (f"/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers" for version in ("v1", "v2"))
    target = {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}

    async def scenario(api: Any) -> None:
        spec = {"scaleTargetRef": target, "maxReplicas": 3, "metrics": list(_AUTOSCALER_METRICS)}
        status, created = await api("POST", v2, {"metadata": {"name": "a"}, "spec": spec})
        assert status == 201, created
        _, old = await api("GET", f"{v1}/a")
        assert "metrics" not in old["spec"]
        assert old["spec"]["targetCPUUtilizationPercentage"] == 50
        text = old["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"]
        assert '{"name":"memory","targetAverageValue":"64Mi"}' in text
        old["spec"]["maxReplicas"] = 5
        status, _ = await api("PUT", f"{v1}/a", old)
        _, result = await api("GET", f"{v2}/a")
        assert (status, result["spec"]["maxReplicas"]) == (200, 5)
        assert result["spec"]["metrics"] == created["spec"]["metrics"]
        assert "annotations" not in result["metadata"]

    play(scenario)
