"""Reads the objects of a scripted API: pages, kinds that are not served or must not be read, several API servers."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.cases.upgrade_clusters import VERSIONS, cluster, inventory
from tests.fakes import scripted_http as http

from podwire.errors import ApiError
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.runtime.clock import SystemClock
from podwire.upgrade.inventory.components import api_servers
from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.inventory.read import read_inventory
from podwire.upgrade.plan.compose import make_plan
from podwire.upgrade.plan.targets import Targets
from podwire.upgrade.plan.versions import parse_target

KINDS = {
    "nodes": "Node", "pods": "Pod", "services": "Service", "configmaps": "ConfigMap", "daemonsets": "DaemonSet",
    "deployments": "Deployment", "poddisruptionbudgets": "PodDisruptionBudget",
}  # fmt: skip
UID = "6f2d6a4c-0000-4000-8000-000000000001"


class ScriptedApi:
    """Serves objects; ``forbidden`` are plurals, ``limit`` is the most objects of a page."""

    def __init__(
        self, items: list[dict[str, Any]], version: str, forbidden: tuple[str, ...] = (), limit: int = 4
    ) -> None:
        self.items = items
        self.version = version
        self.forbidden = forbidden
        self.limit = limit
        self.addresses: list[int] = []
        """Ports of further API servers on 127.0.0.1."""

    async def __call__(self, request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        url = urlsplit(request.target)
        status, body = self._answer(url.path, {key: value[0] for key, value in parse_qs(url.query).items()})
        return http.answer(writer, body, status=status)

    def _answer(self, path: str, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if path == "/version":
            return 200, {"gitVersion": self.version}
        if path == "/api/v1/namespaces/kube-system":
            return 200, {"metadata": {"name": "kube-system", "uid": UID}}
        segments = path.split("/")
        namespace = segments[segments.index("namespaces") + 1] if "namespaces" in segments else ""
        plural, name = (segments[-2], segments[-1]) if segments[-2] in KINDS else (segments[-1], "")
        if plural == "endpointslices":
            return 200, {"metadata": {}, "items": [self._slice(port) for port in self.addresses]}
        if plural in self.forbidden:
            return 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": f"{plural} is forbidden"}
        listed = [
            item
            for item in self.items
            if item["kind"] == KINDS.get(plural) and namespace in ("", item["metadata"].get("namespace", ""))
        ]
        if name:
            found_item = next((item for item in listed if item["metadata"]["name"] == name), None)
            return (200, found_item) if found_item else (404, {"kind": "Status", "code": 404, "reason": "NotFound"})
        if plural not in KINDS:
            return 404, {"kind": "Status", "code": 404, "reason": "NotFound"}
        begin = int(query.get("continue") or 0)
        more = str(begin + self.limit) if begin + self.limit < len(listed) else ""
        return 200, {"metadata": {"continue": more}, "items": listed[begin : begin + self.limit]}

    @staticmethod
    def _slice(port: int) -> dict[str, Any]:
        return {
            "metadata": {"name": f"k-{port}"},
            "endpoints": [{"addresses": ["127.0.0.1"]}],
            "ports": [{"port": port}],
        }


def read(api: ScriptedApi, prepare: Callable[[int], None] = lambda port: None) -> Inventory:
    async def run() -> Inventory:
        async with http.ScriptedServer(api) as server:
            prepare(server.port)
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            try:
                return await read_inventory(client)
            finally:
                await client.close()

    return asyncio.run(run())


@pytest.mark.parametrize("layout", VERSIONS)
def test_inventory_is_that_of_the_objects(layout: str) -> None:
    present = read(ScriptedApi(cluster(layout), VERSIONS[layout]))
    expected = inventory(layout)
    assert (present.cluster, present.version, present.unreadable) == (UID, VERSIONS[layout], ())
    assert [node.name for node in present.nodes] == sorted(node.name for node in expected.nodes)
    assert {pod.metadata.name for pod in present.pods} == {pod.metadata.name for pod in expected.pods}
    assert present.config_maps.keys() == expected.config_maps.keys()
    assert len(present.deployments) == len(expected.deployments)


def test_kinds_that_must_not_be_read_are_named() -> None:
    api = ScriptedApi(cluster("kubeadm"), VERSIONS["kubeadm"], ("poddisruptionbudgets", "configmaps"))
    present = read(api)
    assert "PodDisruptionBudget" in present.unreadable
    assert "ConfigMap kube-system/coredns" in present.unreadable
    plan = make_plan(present, Targets(version=parse_target("1.36", "t")))
    assert any(f.object == "PodDisruptionBudget" and "must not be read" in f.message for f in plan.findings)


def test_nodes_that_must_not_be_read_end_the_command() -> None:
    with pytest.raises(ApiError, match="nodes is forbidden"):
        read(ScriptedApi(cluster("kubeadm"), VERSIONS["kubeadm"], ("nodes",)))


def test_every_api_server_is_asked() -> None:
    first = ScriptedApi(cluster("k3s"), "v1.35.1+k3s1")

    async def run() -> Inventory:
        async with (
            http.ScriptedServer(first) as one_server,
            http.ScriptedServer(ScriptedApi([], "v1.34.9+k3s1")) as other,
        ):
            first.addresses = [one_server.port, other.port, 1]
            client = Client(ApiConfig(f"http://127.0.0.1:{one_server.port}"), SystemClock())
            try:
                return await read_inventory(client)
            finally:
                await client.close()

    present = asyncio.run(run())
    assert sorted(present.servers.values()) == ["", "v1.34.9+k3s1", "v1.35.1+k3s1"]
    assert {str(version) for _, version in api_servers(present)} == {"None", "1.34.9+k3s1", "1.35.1+k3s1"}
    plan = make_plan(present, Targets(version=parse_target("1.36", "t")))
    assert plan.from_version == "1.34.9+k3s1"
    assert any("127.0.0.1:1 did not answer" in finding.message for finding in plan.findings)


def test_single_api_server_is_not_asked_twice() -> None:
    api = ScriptedApi(cluster("k3s"), VERSIONS["k3s"])
    assert read(api, api.addresses.append).servers == {}
