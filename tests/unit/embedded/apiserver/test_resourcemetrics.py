"""metrics.k8s.io through the API server, which asks a kubelet of the test's own over TLS."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.embedded.metrics.usage import ContainerUsage, PodUsage, Usage, UsageReport
from podwire.http.message import Request, Response
from podwire.http.server import HttpServer
from podwire.http.tls import server_context
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet

PATH = "/apis/metrics.k8s.io/v1beta1"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class Kubelet:
    """Reports a usage for each pod that it was told of, and counts how often it was asked."""

    def __init__(self, settings: ApiServerSettings) -> None:
        self._settings = settings
        self.uids: dict[str, str] = {}
        self.asked = 0

    def handle(self, request: Request) -> Response:
        assert request.path == "/usage"
        self.asked += 1
        usage = Usage(1000.0, 0.0, 1, 64 << 20, 15.0, 250_000_000)
        pods = tuple(
            PodUsage("default", name, uid, 0.0, tuple(ContainerUsage(c, c, "", usage) for c in ("x", "y")))
            for name, uid in self.uids.items()
        )
        return Response(200, msgspec.json.encode(UsageReport("n", usage, pods)))

    async def join(self, api: Any) -> HttpServer:
        """Listens, and makes a Node that leads here, one that leads nowhere, and pods."""
        settings = self._settings
        server = HttpServer(self.handle, TaskSet(lambda *_: None), SystemClock())
        tls = server_context(str(settings.certificate), str(settings.key), str(settings.client_ca))
        _, port = await server.listen("127.0.0.1", 0, tls)
        for name, chosen in (("n", port), ("away", 1)):
            status = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": chosen}},
            }
            labels = {"zone": "a"} if name == "n" else {}
            await api("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "status": status})
        await api("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        for name, node in (("web", "n"), ("young", "n"), ("far", "away")):
            status, pod = await api("POST", "/api/v1/namespaces/default/pods", {
                "metadata": {"name": name, "labels": {"app": name}},
                "spec": {"nodeName": node, "containers": [{"name": c, "image": "i"} for c in ("x", "y")]},
            })  # fmt: skip
            assert status == 201, pod
            if name == "web":
                self.uids[name] = pod["metadata"]["uid"]
        return server


def with_kubelet(
    play: Callable[..., None], settings: ApiServerSettings, body: Callable[[Any, Kubelet], Any]
) -> None:  # fmt: skip
    async def scenario(api: Any) -> None:
        kubelet = Kubelet(settings)
        server = await kubelet.join(api)
        try:
            await body(api, kubelet)
        finally:
            await server.close()

    play(scenario)


def test_pods_and_nodes_with_samples_are_listed(play: Callable[..., None], settings: ApiServerSettings) -> None:
    async def body(api: Any, kubelet: Kubelet) -> None:
        status, pods = await api("GET", f"{PATH}/pods")
        assert (status, pods["kind"]) == (200, "PodMetricsList")
        assert [item["metadata"]["name"] for item in pods["items"]] == ["web"]
        assert pods["items"][0]["containers"][0] == {"name": "x", "usage": {"cpu": "250m", "memory": "64Mi"}}
        _, nodes = await api("GET", f"{PATH}/nodes?labelSelector=zone%3Da")
        assert [item["metadata"]["name"] for item in nodes["items"]] == ["n"]
        _, none = await api("GET", f"{PATH}/namespaces/default/pods?labelSelector=app%3Dyoung")
        assert none["items"] == []
        assert kubelet.asked == 1

    with_kubelet(play, settings, body)


def test_missing_metrics_are_not_found(play: Callable[..., None], settings: ApiServerSettings) -> None:
    async def body(api: Any, _: Kubelet) -> None:
        expected = {
            "namespaces/default/pods/young": 'podmetrics.metrics.k8s.io "default/young" not found',
            "namespaces/default/pods/none": 'pods "default/none" not found',
            "nodes/away": 'nodemetrics.metrics.k8s.io "away" not found',
            "nodes/none": 'nodes "none" not found',
        }
        for path, message in expected.items():
            status, answer = await api("GET", f"{PATH}/{path}")
            assert (status, answer["message"]) == (404, message)
        assert (await api("GET", f"{PATH}/nodes/n"))[1]["usage"] == {"cpu": "250m", "memory": "64Mi"}
        assert (await api("GET", f"{PATH}/pods?watch=true"))[0] == 405
        assert (await api("DELETE", f"{PATH}/nodes/n"))[0] == 405

    with_kubelet(play, settings, body)


def test_tables_sum_containers_and_show_the_window(play: Callable[..., None], settings: ApiServerSettings) -> None:
    async def body(api: Any, _: Kubelet) -> None:
        _, table = await api("GET", f"{PATH}/pods", accept=TABLE)
        assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "cpu", "memory", "Window"]
        assert [row["cells"] for row in table["rows"]] == [["web", "500m", "128Mi", "15s"]]

    with_kubelet(play, settings, body)


def test_the_group_is_discovered_and_described(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        _, result = await api("GET", PATH)
        assert {r["name"]: (r["kind"], r["namespaced"], r["verbs"]) for r in result["resources"]} == {
            "nodes": ("NodeMetrics", False, ["get", "list"]), "pods": ("PodMetrics", True, ["get", "list"]),
        }  # fmt: skip
        _, document = await api("GET", "/openapi/v3/apis/metrics.k8s.io/v1beta1")
        assert "window" in json.dumps(document["components"]["schemas"])

    play(scenario)


def test_view_may_read_metrics(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        for name in ("view", "edit", "admin"):
            _, role = await api("GET", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}")
            rule = {"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}
            assert rule in role["rules"]

    play(scenario)
