"""APIServices as objects: those of the server's own groups, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.clock import FakeClock
from tests.unit.embedded.apiserver.aggregation.conftest import SERVICES

from podwire.embedded.apiserver.aggregation.local import PAUSE_S

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
        _, result = await api("GET", SERVICES)
        names = [item["metadata"]["name"] for item in result["items"]]
        assert names[:3] == ["v1.", "v1.admissionregistration.k8s.io", "v1.apiextensions.k8s.io"]
        assert "v2.autoscaling" in names and "v1.apiregistration.k8s.io" not in names
        apps = next(item for item in result["items"] if item["metadata"]["name"] == "v1.apps")
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


METRICS = f"{SERVICES}/v1beta1.metrics.k8s.io"
INSTALLED: dict[str, Any] = {
    "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
    "metadata": {"name": "v1beta1.metrics.k8s.io", "labels": {"k8s-app": "metrics-server"}},
    "spec": {
        "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
        "insecureSkipTLSVerify": True, "service": {"namespace": "kube-system", "name": "metrics-server"},
    },
}  # fmt: skip


async def reason(api: Any) -> str:
    """The reason of the condition of the APIService of metrics.k8s.io, when the server has nothing left to do."""
    await api.settle()
    _, result = await api("GET", METRICS)
    (condition,) = result["status"]["conditions"]
    return str(condition["reason"])


def test_metrics_are_listed_as_local(play: Play) -> None:
    async def scenario(api: Any) -> None:
        accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
        _, table = await api("GET", SERVICES, accept=accept)
        rows = {row["cells"][0]: row["cells"][1:3] for row in table["rows"]}
        assert rows["v1beta1.metrics.k8s.io"] == ["Local", "True"]

    play(scenario)


@pytest.mark.parametrize(
    ("method", "target", "content_type", "status"),
    [
        ("POST", SERVICES, "application/json", 201),
        ("PATCH", METRICS, "application/merge-patch+json", 200),
        ("PATCH", f"{METRICS}?fieldManager=chart", "application/apply-patch+yaml", 200),
    ],
)
def test_installed_metrics_replace_the_local_ones_and_leave(
    play: Play, method: str, target: str, content_type: str, status: int
) -> None:
    clock = FakeClock()

    async def scenario(api: Any) -> None:
        events = await api.watch(f"{SERVICES}?watch=true&fieldSelector=metadata.name=v1beta1.metrics.k8s.io")
        result, answer = await api(method, target, INSTALLED, content_type=content_type)
        assert (result, answer.get("spec", {}).get("service", {}).get("port")) == (status, 443), answer
        assert await reason(api) == "ServiceNotFound"
        assert (await api.raw("GET", "/apis/metrics.k8s.io/v1beta1/nodes")).status == 503
        assert (await api("DELETE", METRICS))[0] == 200
        await api.settle()
        assert (await api("GET", METRICS))[0] == 404, "tools wait until what they delete is gone"
        assert (await api("GET", "/apis/metrics.k8s.io/v1beta1/nodes"))[0] == 200
        await clock.advance(PAUSE_S)
        assert await reason(api) == "Local"
        types = [event["type"] for event in events.seen if event["type"] != "MODIFIED"]
        replaced = ["DELETED", "ADDED"] if method == "POST" else []
        assert types == ["ADDED", *replaced, "DELETED", "ADDED"]

    play(scenario, clock=clock)


def test_second_installed_service_is_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        local = {**INSTALLED, "spec": {**INSTALLED["spec"], "service": None, "insecureSkipTLSVerify": False}}
        assert (await api("POST", SERVICES, local))[0] == 409
        assert (await api("POST", f"{SERVICES}?dryRun=All", INSTALLED))[0] == 201
        assert await reason(api) == "Local"
        assert (await api("POST", SERVICES, INSTALLED))[0] == 201
        assert (await api("POST", SERVICES, INSTALLED))[0] == 409
        apps = {**INSTALLED, "metadata": {"name": "v1.apps"},
                "spec": {**INSTALLED["spec"], "group": "apps", "version": "v1"}}  # fmt: skip
        assert (await api("POST", SERVICES, apps))[0] == 409

    play(scenario)


def test_helm_does_not_find_the_local_metrics(play: Play) -> None:
    async def scenario(api: Any) -> None:
        for agent, status in (("Helm/4.3.1", 404), ("helm/v3.9 (linux/amd64)", 404), ("kubectl/v1.37.1", 200)):
            assert (await api("GET", METRICS, user_agent=agent))[0] == status
        assert (await api("GET", f"{SERVICES}/v1.apps", user_agent="Helm/4.3.1"))[0] == 200
        assert (await api("POST", SERVICES, INSTALLED, user_agent="Helm/4.3.1"))[0] == 201
        assert (await api("GET", METRICS, user_agent="Helm/4.3.1"))[0] == 200

    play(scenario)
