"""Rules and defaults of resource.k8s.io."""

from collections.abc import Callable
from typing import Any

import pytest

RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
TEMPLATES = f"{RESOURCE}/namespaces/default/resourceclaimtemplates"
SLICES = f"{RESOURCE}/resourceslices"
CLASSES = f"{RESOURCE}/deviceclasses"
MERGE = "application/merge-patch+json"


def claim(**request: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "spec": {"devices": {"requests": [{"name": "gpu", **request}]}}}


def resource_slice(**spec: Any) -> dict[str, Any]:
    pool = {"name": "node-1", "resourceSliceCount": 1}
    return {"metadata": {"name": "x"}, "spec": {"driver": "gpu.example.com", "pool": pool, "nodeName": "n", **spec}}


EXACT = {"deviceClassName": "gpu.example.com"}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    (CLAIMS, claim(), "spec.devices.requests[0]"),
    (CLAIMS, claim(exactly=EXACT, firstAvailable=[{"name": "a", **EXACT}]), "spec.devices.requests[0]"),
    (CLAIMS, claim(exactly={}), "spec.devices.requests[0].exactly.deviceClassName"),
    (CLAIMS, claim(exactly={**EXACT, "count": -1}), "spec.devices.requests[0].exactly.count"),
    (CLAIMS, claim(exactly={**EXACT, "allocationMode": "Some"}), "spec.devices.requests[0].exactly.allocationMode"),
    (TEMPLATES, {"metadata": {"name": "x"}, "spec": {"spec": claim()["spec"]}}, "spec.spec.devices.requests[0]"),
    (SLICES, resource_slice(driver="No_Good"), "spec.driver"),
    (SLICES, resource_slice(allNodes=True), "spec"),
    (SLICES, resource_slice(devices=[{"name": "a"}, {"name": "a"}]), "spec.devices[1].name"),
    (CLASSES, {"metadata": {"name": "x"}, "spec": {"selectors": [{}]}}, "spec.selectors[0].cel.expression"),
]


@pytest.mark.parametrize(("path", "body", "field"), WRONG)
def test_wrong_device_objects_are_refused(
    play: Callable[..., None], path: str, body: dict[str, Any], field: str
) -> None:
    async def scenario(api: Any) -> None:
        status, answer = await api("POST", path, body)
        assert status == 422, answer
        assert [cause["field"] for cause in answer["details"]["causes"]] == [field]

    play(scenario)


def test_claims_get_defaults_and_keep_their_spec(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        status, created = await api("POST", CLAIMS, claim(exactly=EXACT))
        assert status == 201, created
        exactly = created["spec"]["devices"]["requests"][0]["exactly"]
        assert (exactly["allocationMode"], exactly["count"]) == ("ExactCount", 1)
        changed = claim(exactly={**EXACT, "count": 2})["spec"]
        assert (await api("PATCH", f"{CLAIMS}/x", {"spec": changed}, content_type=MERGE))[0] == 422
        reserved = [{"resource": "pods", "name": "p", "uid": "u"}]
        _, after = await api("PATCH", f"{CLAIMS}/x/status", {"status": {"reservedFor": reserved}}, content_type=MERGE)
        assert after["status"] == {"reservedFor": reserved}

    play(scenario)


def test_slices_are_selected_by_driver_and_node(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        status, created = await api("POST", SLICES, resource_slice(devices=[{"name": "a"}]))
        assert (status, created["metadata"]["generation"]) == (201, 1)
        for selector, count in (("spec.driver=gpu.example.com", 1), ("spec.nodeName=other", 0)):
            _, result = await api("GET", f"{SLICES}?fieldSelector={selector}")
            assert len(result["items"]) == count
        for field, value in (("driver", "other.example.com"), ("nodeName", "other")):
            assert (await api("PATCH", f"{SLICES}/x", {"spec": {field: value}}, content_type=MERGE))[0] == 422

    play(scenario)
