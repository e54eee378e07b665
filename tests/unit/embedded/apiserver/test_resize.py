"""The subresource ``resize`` of pods."""

from collections.abc import Callable
from typing import Any

PODS = "/api/v1/namespaces/default/pods"
Play = Callable[..., None]


def test_resize_changes_resources_alone(play: Play) -> None:
    async def scenario(api: Any) -> None:
        container = {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "1"}}}
        body = {"metadata": {"name": "a"}, "spec": {"containers": [container]}}
        _, made = await api("POST", PODS, body)
        wanted = made["spec"]
        wanted["containers"][0] |= {"resources": {"requests": {"cpu": "2"}}, "image": "other"}
        wanted["nodeName"] = "elsewhere"
        made["metadata"]["labels"] = {"new": "label"}
        status, answer = await api("PUT", f"{PODS}/a/resize", made)
        assert status == 200, answer
        _, found = await api("GET", f"{PODS}/a")
        assert found["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
        assert found["spec"]["containers"][0]["image"] == "nginx"
        assert "nodeName" not in found["spec"]
        assert "labels" not in found["metadata"]
        assert found["metadata"]["generation"] == 2

    play(scenario)


def test_a_resize_keeps_the_class_of_service(play: Play) -> None:
    async def scenario(api: Any) -> None:
        container = {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "1"}}}
        await api("POST", PODS, {"metadata": {"name": "a"}, "spec": {"containers": [container]}})
        amounts = {"cpu": "1", "memory": "1Gi"}
        patch = {"spec": {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}}
        strategic = "application/strategic-merge-patch+json"
        status, refused = await api("PATCH", f"{PODS}/a/resize", patch, content_type=strategic)
        assert status == 422
        assert "Pod QOS Class may not change as a result of resizing" in refused["message"]

    play(scenario)
