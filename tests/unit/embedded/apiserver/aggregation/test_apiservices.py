"""APIServices as objects: those of the server's own groups, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.embedded.apiserver.aggregation.conftest import SERVICES

Play = Callable[..., None]

SERVICE = {"namespace": "default", "name": "s"}
SPEC = {
    "group": "a.example.com",
    "version": "v1",
    "groupPriorityMinimum": 10,
    "versionPriority": 10,
    "service": SERVICE,
}


def test_own_groups_are_local_and_come_back(play: Play) -> None:
    async def scenario(api: Any) -> None:
        _, found = await api("GET", SERVICES)
        names = [item["metadata"]["name"] for item in found["items"]]
        assert names[:3] == ["v1.", "v1.admissionregistration.k8s.io", "v1.apiextensions.k8s.io"]
        assert "v2.autoscaling" in names and "v1.apiregistration.k8s.io" not in names
        apps = next(item for item in found["items"] if item["metadata"]["name"] == "v1.apps")
        assert apps["metadata"]["labels"] == {"kube-aggregator.kubernetes.io/automanaged": "onstart"}
        assert (apps["spec"]["groupPriorityMinimum"], apps["spec"]["versionPriority"]) == (17800, 15)
        (condition,) = apps["status"]["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == ("Available", "True", "Local")
        await api("DELETE", f"{SERVICES}/v1.apps")
        await api.settle()
        assert (await api("GET", f"{SERVICES}/v1.apps"))[0] == 200

    play(scenario)


def test_table_shows_service_and_availability(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", SERVICES, {"metadata": {"name": "v1.a.example.com"}, "spec": SPEC})
        await api.settle()
        accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
        _, table = await api("GET", SERVICES, accept=accept)
        rows = {row["cells"][0]: row["cells"][1:3] for row in table["rows"]}
        assert rows["v1.apps"] == ["Local", "True"]
        assert rows["v1.a.example.com"] == ["default/s", "False (ServiceNotFound)"]

    play(scenario)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("v1.b", {}, 'metadata.name: Invalid value: "v1.b": must be `spec.version+"."+spec.group`: "v1.a.example.com"'),
        ("v2.", {"group": "", "version": "v2"}, "spec.group: Required value: only v1 may have an empty group"),
        ("", {"groupPriorityMinimum": 0}, "spec.groupPriorityMinimum: Invalid value: 0: must be positive"),
        ("", {"versionPriority": 1001}, "spec.versionPriority: Invalid value: 1001: must be positive"),
        ("", {"service": {"name": "s"}}, "spec.service.namespace: Required value"),
        ("", {"caBundle": "YWI=", "insecureSkipTLSVerify": True}, "may not be true if caBundle is present"),
        ("", {"service": None, "caBundle": "YWI="}, 'spec.caBundle: Invalid value: "2 bytes": local'),
    ],
)  # fmt: skip
def test_wrong_api_service_is_refused(play: Play, name: str, change: dict[str, Any], problem: str) -> None:
    async def scenario(api: Any) -> None:
        body = {"metadata": {"name": name or "v1.a.example.com"}, "spec": {**SPEC, **change}}
        status, answer = await api("POST", SERVICES, body)
        assert status == 422 and problem in answer["message"], answer

    play(scenario)
