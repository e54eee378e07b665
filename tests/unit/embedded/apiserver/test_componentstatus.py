"""``kubectl get componentstatuses``: what the API server knows of the control plane."""

from collections.abc import Callable
from typing import Any

from podwire.http.message import Response

PATH = "/api/v1/componentstatuses"
MANAGER, SCHEDULER = "system:kube-controller-manager", "system:kube-scheduler"
WATCHED = ((MANAGER, {"controller-manager", "scheduler"}), (SCHEDULER, {"scheduler"}))
"""Users, and the components that are healthy while the user has a watch open."""
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def _rows(answer: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {row["cells"][0]: (row["cells"][1], row["cells"][2]) for row in answer["rows"]}


def test_components_are_healthy_while_they_watch(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        _, before = await api("GET", PATH, accept=TABLE)
        assert _rows(before)["etcd-0"] == ("Healthy", "ok")
        assert _rows(before)["controller-manager"] == ("Unhealthy", f"no watch of user {MANAGER} is open")
        assert _rows(before)["scheduler"] == ("Unhealthy", f"no watch of user {SCHEDULER} or {MANAGER} is open")
        for user, components in WATCHED:
            subject = {"subject": ((("organizationName", "system:masters"),), (("commonName", user),))}
            events = await api.watch("/api/v1/pods?watch=1", user=subject)
            _, during = await api("GET", PATH, accept=TABLE)
            assert _rows(during) == {**_rows(before), **dict.fromkeys(components, ("Healthy", "ok"))}
            assert events.on_close is not None
            events.on_close()
            assert _rows((await api("GET", PATH, accept=TABLE))[1]) == _rows(before)

    play(scenario)


def test_objects_and_lists_have_their_kinds(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        answer = await api.raw("GET", f"{PATH}/etcd-0")
        assert isinstance(answer, Response)
        assert ("Warning", '299 - "v1 ComponentStatus is deprecated in v1.19+"') in answer.headers
        status, entry = await api("GET", f"{PATH}/etcd-0")
        assert status == 200 and entry["conditions"] == [{"type": "Healthy", "status": "True", "message": "ok"}]
        _, listed = await api("GET", PATH)
        assert listed["kind"] == "ComponentStatusList"
        assert [item["metadata"]["name"] for item in listed["items"]] == ["controller-manager", "etcd-0", "scheduler"]

    play(scenario)


def test_computed_kinds_cannot_be_written_or_watched(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        assert (await api("GET", f"{PATH}/etcd-1"))[0] == 404
        assert (await api("POST", PATH, {"metadata": {"name": "a"}}))[0] == 405
        assert (await api("DELETE", f"{PATH}/etcd-0"))[0] == 405
        assert (await api("GET", f"{PATH}?watch=true"))[0] == 405

    play(scenario)
