"""LimitRanges: defaults, refusals, and their words."""

from collections.abc import Callable
from typing import Any

import pytest

from podwire.embedded.apiserver.admission.limitranges import ANNOTATION, check_claim, check_pod

Play = Callable[..., None]
Object = dict[str, Any]
LIMITS = "/api/v1/namespaces/default/limitranges"
PODS = "/api/v1/namespaces/default/pods"


def _range(**item: Any) -> Object:
    return {"metadata": {"name": "limits"}, "spec": {"limits": [{"type": "Container", **item}]}}


def _pod(requests: Object | None = None, limits: Object | None = None) -> Object:
    resources = {"requests": requests or {}, "limits": limits or {}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}}


@pytest.mark.parametrize(
    ("item", "requests", "limits", "expected"),
    [
        ({"min": {"cpu": "100m"}}, {}, {}, "minimum cpu usage per Container is 100m.  No request is specified"),
        ({"min": {"cpu": "100m"}}, {"cpu": "50m"}, {},
         "minimum cpu usage per Container is 100m, but request is 50m"),
        ({"min": {"memory": "1Gi"}}, {"memory": "1Gi"}, {"memory": "512Mi"},
         "minimum memory usage per Container is 1Gi, but limit is 512Mi"),
        ({"max": {"cpu": "1"}}, {}, {}, "maximum cpu usage per Container is 1.  No limit is specified"),
        ({"max": {"cpu": "1"}}, {}, {"cpu": "1500m"}, "maximum cpu usage per Container is 1, but limit is 1500m"),
        ({"max": {"cpu": "1"}}, {"cpu": "2"}, {"cpu": "1"}, "maximum cpu usage per Container is 1, but request is 2"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, {"cpu": "100m"}, {"cpu": "250m"},
         "cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, {}, {"cpu": "1"},
         "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, {"cpu": "1"}, {},
         "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0"),
        ({"type": "Pod", "max": {"cpu": "1"}}, {}, {"cpu": "2"}, "maximum cpu usage per Pod is 1, but limit is 2"),
        ({"max": {"cpu": "1"}, "min": {"cpu": "100m"}}, {"cpu": "100m"}, {"cpu": "1"}, None),
    ],
)  # fmt: skip
def test_pods_outside_of_limits(item: Object, requests: Object, limits: Object, expected: str | None) -> None:
    assert check_pod(_pod(requests, limits)["spec"], _range(**item)) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ("500Mi", ["minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"]),
        ("1Gi", []),
        ("6Gi", ["maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 6Gi"]),
    ],
)
def test_claims_outside_of_limits(storage: str, expected: list[str]) -> None:
    item = {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "5Gi"}}
    assert check_claim({"resources": {"requests": {"storage": storage}}}, _range(**item)) == expected


def test_a_pod_gets_the_defaults(play: Play) -> None:
    async def scenario(api: Any) -> None:
        body = _range(default={"cpu": "500m"}, defaultRequest={"cpu": "100m", "memory": "64Mi"})
        status, _ = await api("POST", LIMITS, body)
        assert status == 201
        _, pod = await api("POST", PODS, _pod())
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources == {"limits": {"cpu": "500m"}, "requests": {"cpu": "100m", "memory": "64Mi"}}
        assert pod["metadata"]["annotations"][ANNOTATION] == (
            "LimitRanger plugin set: cpu, memory request for container c; cpu limit for container c"
        )
        assert pod["status"]["qosClass"] == "Burstable"

    play(scenario)


def test_maximum_and_minimum_are_defaults(play: Play) -> None:
    async def scenario(api: Any) -> None:
        _, result = await api("POST", LIMITS, _range(max={"cpu": "1"}, min={"memory": "64Mi"}))
        (item,) = result["spec"]["limits"]
        assert (item["default"], item["defaultRequest"]) == ({"cpu": "1"}, {"cpu": "1", "memory": "64Mi"})

    play(scenario)


def test_all_refusals_are_listed(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", LIMITS, _range(max={"cpu": "1", "memory": "1Gi"}))
        status, answer = await api("POST", PODS, _pod(limits={"cpu": "2", "memory": "2Gi"}))
        assert (status, answer["message"]) == (
            403,
            'pods "p" is forbidden: [maximum cpu usage per Container is 1, but limit is 2, maximum memory usage per '
            "Container is 1Gi, but limit is 2Gi]",
        )

    play(scenario)
