"""The subresource ``ephemeralcontainers`` of pods: one may add to them, and to nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

PODS = "/api/v1/namespaces/default/pods"
DEBUG = PODS + "/p/ephemeralcontainers"
STRATEGIC = "application/strategic-merge-patch+json"
POD: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
SHELL = {"name": "d", "image": "busybox", "stdin": True, "tty": True, "targetContainerName": "c"}


def _patch(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"ephemeralContainers": list(containers)}}


def test_ephemeral_containers_are_added_and_other_fields_stay(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", PODS, POD)
        body = {**_patch(SHELL), "metadata": {"labels": {"a": "b"}}}
        status, pod = await api("PATCH", DEBUG, body, content_type=STRATEGIC)
        (added,) = pod["spec"]["ephemeralContainers"]
        assert (status, added["name"], added["imagePullPolicy"], added["tty"]) == (200, "d", "Always", True)
        assert "labels" not in pod["metadata"]
        status, pod = await api("PATCH", DEBUG, _patch({"name": "e", "image": "x"}), content_type=STRATEGIC)
        assert sorted(c["name"] for c in pod["spec"]["ephemeralContainers"]) == ["d", "e"]
        pod["spec"]["containers"][0]["image"] = "other"
        pod["spec"]["ephemeralContainers"].append({"name": "f", "image": "y"})
        status, pod = await api("PUT", DEBUG, pod)
        assert (status, len(pod["spec"]["ephemeralContainers"])) == (200, 3)
        assert pod["spec"]["containers"][0]["image"] == "i"

    play(scenario)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({**SHELL, "image": "other"}, 'existing ephemeral containers "d" may not be changed'),
    ({"name": "c", "image": "i"}, 'spec.ephemeralContainers[0].name: Duplicate value: "c"'),
    ({"name": "e", "image": "i", "ports": [{"containerPort": 1}]}, "ports: Forbidden: cannot be set for an Ephemeral"),
    ({"name": "e", "image": "i", "targetContainerName": "no"}, 'targetContainerName: Not found: "no"'),
]


@pytest.mark.parametrize(("container", "problem"), WRONG, ids=lambda value: str(value)[:20])
def test_refused_changes_of_ephemeral_containers(
    play: Callable[..., None], container: dict[str, Any], problem: str
) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", PODS, POD)
        await api("PATCH", DEBUG, _patch(SHELL), content_type=STRATEGIC)
        status, failure = await api("PATCH", DEBUG, _patch(container), content_type=STRATEGIC)
        assert status == 422 and problem in failure["message"], failure

    play(scenario)


def test_ephemeral_containers_cannot_be_removed_or_created_with_the_pod(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", PODS, POD)
        _, pod = await api("PATCH", DEBUG, _patch(SHELL), content_type=STRATEGIC)
        pod["spec"]["ephemeralContainers"] = []
        status, failure = await api("PUT", DEBUG, pod)
        assert status == 422 and 'existing ephemeral containers "d" may not be removed' in failure["message"]
        early = {"metadata": {"name": "q"}, "spec": {**POD["spec"], "ephemeralContainers": [SHELL]}}
        status, failure = await api("POST", PODS, early)
        assert status == 422 and "spec.ephemeralContainers: Forbidden: cannot be set on create" in failure["message"]

    play(scenario)
