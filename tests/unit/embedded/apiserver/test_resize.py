"""The subresource ``resize`` of pods."""

from collections.abc import Callable
from typing import Any

PODS = "/api/v1/namespaces/default/pods"
Play = Callable[..., None]


def test_resize_changes_resources_alone(play: Play) -> None:
    async def scenario(api: Any) -> None:
        container = {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "1"}}}
        body = {"metadata": {"name": "a"}, "spec": {"containers": [container]}}
        _, created = await api("POST", PODS, body)
        expected = created["spec"]
        expected["containers"][0] |= {"resources": {"requests": {"cpu": "2"}}, "image": "other"}
        expected["nodeName"] = "elsewhere"
        created["metadata"]["labels"] = {"new": "label"}
        status, answer = await api("PUT", f"{PODS}/a/resize", created)
        assert status == 200, answer
        _, result = await api("GET", f"{PODS}/a")
        assert result["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
        assert result["spec"]["containers"][0]["image"] == "nginx"
        assert "nodeName" not in result["spec"]
        assert "labels" not in result["metadata"]
        assert result["metadata"]["generation"] == 2

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
