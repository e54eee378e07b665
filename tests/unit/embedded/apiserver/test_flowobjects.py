"""The FlowSchemas and PriorityLevelConfigurations of a new cluster."""

from collections.abc import Callable
from typing import Any

ROOT = "/apis/flowcontrol.apiserver.k8s.io/v1"


def test_new_cluster_has_the_suggested_objects(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        _, levels = await api("GET", f"{ROOT}/prioritylevelconfigurations")
        names = [item["metadata"]["name"] for item in levels["items"]]
        assert names == ["catch-all", "exempt", "global-default", "leader-election", "node-high", "system",
                         "workload-high", "workload-low"]  # fmt: skip
        _, schemas = await api("GET", f"{ROOT}/flowschemas")
        order = sorted(schemas["items"], key=lambda item: item["spec"]["matchingPrecedence"])
        assert [order[0]["metadata"]["name"], order[-1]["metadata"]["name"]] == ["exempt", "catch-all"]
        assert all(item["spec"]["priorityLevelConfiguration"]["name"] in names for item in order)
        for item in (*levels["items"], *order):
            kind = "flowschemas" if item in order else "prioritylevelconfigurations"
            status, result = await api("PUT", f"{ROOT}/{kind}/{item['metadata']['name']}", item)
            assert (status, result["metadata"]["generation"]) == (200, 1), result

    play(scenario)


def test_mandatory_objects_come_back(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        for name in ("exempt", "probes"):
            await api("DELETE", f"{ROOT}/flowschemas/{name}")
        await api.settle()
        assert (await api("GET", f"{ROOT}/flowschemas/exempt"))[0] == 200
        assert (await api("GET", f"{ROOT}/flowschemas/probes"))[0] == 404

    play(scenario)
