"""Rules and defaults of HorizontalPodAutoscalers."""

from collections.abc import Callable
from typing import Any

import pytest

SCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
HALF = {"type": "Utilization", "averageUtilization": 50}


def scaler(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "web"}, "spec": {"scaleTargetRef": TARGET, "maxReplicas": 3, **spec}}


def metric(target: dict[str, Any], kind: str = "Resource", field: str = "resource", **more: Any) -> dict[str, Any]:
    return scaler(metrics=[{"type": kind, field: {"name": "cpu", "target": target, **more}}])


def behavior(**rules: Any) -> dict[str, Any]:
    return scaler(behavior={"scaleDown": rules})


WRONG: list[tuple[dict[str, Any], str]] = [
    (scaler(minReplicas=0), "spec.minReplicas"),
    (scaler(minReplicas=5), "spec.maxReplicas"),
    (scaler(scaleTargetRef={"kind": "Deployment", "name": ""}), "spec.scaleTargetRef.name"),
    (scaler(metrics=[{"type": "Weather"}]), "spec.metrics[0].type"),
    (scaler(metrics=[{"type": "Resource"}]), "spec.metrics[0].resource"),
    (metric({"type": "Utilization", "averageUtilization": 0}), "spec.metrics[0].resource.target.averageUtilization"),
    (metric({"type": "Utilization"}), "spec.metrics[0].resource.target.averageUtilization"),
    (metric({**HALF, "averageValue": "1"}), "spec.metrics[0].resource.target.averageValue"),
    (metric({"type": "Some", "averageValue": "1"}), "spec.metrics[0].resource.target.type"),
    (metric(HALF, "ContainerResource", "containerResource", container=""),
     "spec.metrics[0].containerResource.container"),
    (behavior(stabilizationWindowSeconds=4000), "spec.behavior.scaleDown.stabilizationWindowSeconds"),
    (behavior(selectPolicy="All"), "spec.behavior.scaleDown.selectPolicy"),
    (behavior(policies=[{"type": "Pods", "value": 0, "periodSeconds": 15}]),
     "spec.behavior.scaleDown.policies[0].value"),
    (behavior(policies=[{"type": "Pods", "value": 1, "periodSeconds": 2000}]),
     "spec.behavior.scaleDown.policies[0].periodSeconds"),
]  # fmt: skip


def test_wrong_autoscalers_are_refused_with_their_field(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        for body, field in WRONG:
            status, answer = await api("POST", SCALERS, body)
            assert status == 422, (field, answer)
            assert [cause["field"] for cause in answer["details"]["causes"]] == [field]

    play(scenario)


def test_behavior_gets_the_defaults_of_both_directions(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        status, created = await api("POST", SCALERS, behavior(stabilizationWindowSeconds=0))
        assert status == 201, created
        percent = {"type": "Percent", "value": 100, "periodSeconds": 15}
        assert created["spec"]["behavior"] == {
            "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
                        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, percent]},
            "scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [percent]},
        }  # fmt: skip

    play(scenario)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_use_of_cpu_shows_in_both_versions(play: Callable[..., None], version: str) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", SCALERS, metric(HALF))
        current = {"name": "cpu", "current": {"averageUtilization": 40, "averageValue": "20m"}}
        status = {"desiredReplicas": 1, "currentMetrics": [{"type": "Resource", "resource": current}]}
        await api("PATCH", f"{SCALERS}/web/status", {"status": status}, content_type="application/merge-patch+json")
        _, result = await api("GET", f"{SCALERS.replace('v2', version)}/web")
        shown = result["status"]
        used = shown["currentCPUUtilizationPercentage"] if version == "v1" else (
            shown["currentMetrics"][0]["resource"]["current"]["averageUtilization"]
        )  # fmt: skip
        assert used == 40

    play(scenario)
