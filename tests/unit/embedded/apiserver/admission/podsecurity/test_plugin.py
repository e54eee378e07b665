"""Pod Security at the API: refusals, warnings, labels of namespaces."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from podwire.http.message import Response

Play = Callable[..., None]
LABEL = "pod-security.kubernetes.io/"
PODS = "/api/v1/namespaces/default/pods"
DEFAULT = "/api/v1/namespaces/default"
MERGE = {"content_type": "application/merge-patch+json"}


def _pod(name: str, **security: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "i", "securityContext": security}]}
    return {"metadata": {"name": name}, "spec": spec}


async def _label(api: Any, **labels: str) -> list[str]:
    """Sets labels of the namespace ``default``; returns the warnings."""
    body = {"metadata": {"labels": {LABEL + key: value for key, value in labels.items()}}}
    return _warnings(await api.raw("PATCH", DEFAULT, json.dumps(body).encode(), **MERGE))


def _warnings(answer: Any) -> list[str]:
    assert isinstance(answer, Response)
    assert answer.status < 300, answer.body
    return [text.partition('"')[2][:-1].replace('\\"', '"') for name, text in answer.headers if name == "Warning"]


def test_a_violating_pod_is_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await _label(api, enforce="baseline")
        status, answer = await api("POST", PODS, _pod("a", privileged=True))
        assert (status, answer["message"]) == (
            403,
            'pods "a" is forbidden: violates PodSecurity "baseline:latest": privileged (container "c" must not set '
            "securityContext.privileged=true)",
        )
        status, _ = await api("POST", PODS, _pod("a"))
        assert status == 201

    play(scenario)


def test_a_workload_gets_a_warning(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await _label(api, enforce="baseline")
        labels = {"matchLabels": {"a": "b"}}
        template = {**_pod("x", privileged=True), "metadata": {"labels": {"a": "b"}}}
        body = {"metadata": {"name": "d"}, "spec": {"selector": labels, "template": template}}
        answer = await api.raw("POST", "/apis/apps/v1/namespaces/default/deployments", json.dumps(body).encode())
        assert _warnings(answer) == [
            'would violate PodSecurity "baseline:latest": privileged (container "c" must not set '
            "securityContext.privileged=true)"
        ]

    play(scenario)


def test_stricter_labels_warn_of_existing_pods(play: Play) -> None:
    async def scenario(api: Any) -> None:
        for name in ("c", "a", "b"):
            await api("POST", PODS, _pod(name, privileged=True))
        await api("POST", PODS, {**_pod("d"), "spec": {**_pod("d")["spec"], "hostNetwork": True}})
        assert await _label(api, enforce="baseline") == [
            'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
            "a (and 2 other pods): privileged",
            "d: host namespaces",
        ]
        assert await _label(api, enforce="privileged") == []

    play(scenario)


def test_wrong_labels_are_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        body = {"metadata": {"name": "x", "labels": {LABEL + "enforce": "strict"}}}
        status, answer = await api("POST", "/api/v1/namespaces", body)
        assert (status, answer["message"]) == (
            422,
            'Namespace "x" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "strict": '
            "must be one of privileged, baseline, restricted",
        )

    play(scenario)


@pytest.mark.parametrize(("image", "status"), [("i", 200), ("other", 403)])
def test_an_update_is_checked_when_images_change(play: Play, image: str, status: int) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", PODS, _pod("a", privileged=True))
        await _label(api, enforce="baseline")
        body = {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
        result, _ = await api("PATCH", f"{PODS}/a", body, content_type="application/strategic-merge-patch+json")
        assert result == status

    play(scenario)
