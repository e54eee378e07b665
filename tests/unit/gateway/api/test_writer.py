"""What is written to an API: every status that it takes, Services, and no status of a Gateway that left."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.fakes import scripted_http as http

from podwire.cluster.names import GATEWAY_OF_SERVICE
from podwire.gateway.api.controller import PART, GatewayApiController
from podwire.gateway.api.writer import GatewayApiWriter
from podwire.gateway.engines import EngineFeed
from podwire.gateway.envoy.ads import DiscoveryServer
from podwire.gateway.envoy.settings import EngineSettings
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.controller import Environment
from podwire.runtime.clock import SystemClock
from podwire.runtime.supervise import Supervisor

Json = dict[str, Any]


class WritableApi:
    """An API that takes what is written and tells watches, but for objects that it refuses by name."""

    def __init__(self, objects: dict[str, list[Json]], refused: frozenset[str] = frozenset()) -> None:
        self.objects = {plural: {item["metadata"]["name"]: item for item in items} for plural, items in objects.items()}
        self._refused = refused
        self._watches: dict[str, list[asyncio.Queue[Json | None]]] = {}
        self._version = 10
        self.written: list[str] = []
        """What was asked for, in order: the plural and name of each object."""

    def status(self, plural: str, name: str) -> dict[str, str]:
        """The status of each condition of an object."""
        conditions = self.objects[plural][name].get("status", {}).get("conditions", [])
        return {entry["type"]: entry["status"] for entry in conditions}

    def change(self, plural: str, value: Json, kind: str = "MODIFIED") -> Json:
        """Changes, makes or removes an object."""
        self._version += 1
        value = value | {"metadata": value["metadata"] | {"resourceVersion": str(self._version)}}
        known = self.objects.setdefault(plural, {})
        known[value["metadata"]["name"]] = value
        if kind == "DELETED":
            del known[value["metadata"]["name"]]
        for queue in self._watches.get(plural, []):
            queue.put_nowait({"type": kind, "object": value})
        return value

    def close(self) -> None:
        """Ends all watches."""
        for queue in (queue for queues in self._watches.values() for queue in queues):
            queue.put_nowait(None)

    async def answer(self, received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        """Answers one request."""
        path, _, query = received.target.partition("?")
        if received.method in ("PATCH", "POST", "DELETE"):
            return self._write(received, path.removesuffix("/status").split("/"), writer)
        plural = path.rpartition("/")[2]
        if "watch=true" not in query:
            items = list(self.objects.get(plural, {}).values())
            return http.answer(writer, {"metadata": {"resourceVersion": "2"}, "items": items})
        queue: asyncio.Queue[Json | None] = asyncio.Queue()
        self._watches.setdefault(plural, []).append(queue)
        http.open_stream(writer)
        while (event := await queue.get()) is not None:
            http.chunk(writer, event)
            await writer.drain()
        return False

    def _write(self, received: http.ReceivedRequest, parts: list[str], writer: asyncio.StreamWriter) -> bool:
        if received.method == "POST":
            plural, name = parts[-1], received.json["metadata"].get("name", "")
        else:
            plural, name = parts[-2:]
        self.written.append(f"{plural}/{name}")
        if any(text in name for text in self._refused):
            failure = {"kind": "Status", "code": 422, "reason": "Invalid", "message": f"{name} is wrong"}
            return http.answer(writer, failure, 422)
        if received.method == "POST":
            return http.answer(writer, self.change(plural, received.json, "ADDED"), 201)
        if received.method == "DELETE":
            return http.answer(writer, self.change(plural, self.objects[plural][name], "DELETED"))
        own = self.objects[plural][name]
        fields = {field: value for field, value in received.json.items() if field in ("spec", "status")}
        return http.answer(writer, self.change(plural, own | fields))


def _meta(name: str, namespace: str = "shop") -> Json:
    return {"name": name, "namespace": namespace, "resourceVersion": "1", "uid": name, "generation": 1}


def _objects(*gateways: str) -> dict[str, list[Json]]:
    """Gateways that take ListenerSets, with one of the first."""
    listeners = [{"name": "http", "port": 80, "protocol": "HTTP"}]
    allowed = {"namespaces": {"from": "All"}}
    more = [{"name": "more", "port": 81, "protocol": "HTTP"}]
    return {
        "gatewayclasses": [{"metadata": _meta("podwire", ""), "spec": {"controllerName": "podwire.io/gateway"}}],
        "gateways": [
            {
                "metadata": _meta(name),
                "spec": {"gatewayClassName": "podwire", "listeners": listeners, "allowedListeners": allowed},
            }
            for name in gateways
        ],
        "listenersets": [{"metadata": _meta("more"), "spec": {"parentRef": {"name": gateways[0]}, "listeners": more}}],
    }


def _play(api: WritableApi, folder: Path, scenario: Callable[[], Awaitable[None]]) -> None:
    """Runs the controller and the writer on an API."""

    async def run() -> None:
        async with http.ScriptedServer(api.answer) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            environment = Environment(client, "gateway")
            feed = EngineFeed(DiscoveryServer(folder / "discovery.sock", lambda _refusal: None), {}, (PART,))
            controller = GatewayApiController(environment, "podwire.io/gateway", "kube-system", EngineSettings(), feed)
            writer = GatewayApiWriter(environment, controller, "Cluster")
            tasks = [asyncio.create_task(environment.run({PART: controller})), asyncio.create_task(_lead(writer))]
            try:
                async with asyncio.timeout(60):
                    await scenario()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                api.close()
                await client.close()

    asyncio.run(run())


async def _lead(writer: GatewayApiWriter) -> None:
    async with Supervisor(SystemClock(), lambda _name, _failure: None) as supervisor:
        writer.start(supervisor)


async def _until(is_reached: Callable[[], bool]) -> None:
    while not is_reached():  # noqa: ASYNC110 - the API of this test has no signal
        await asyncio.sleep(0.01)


def test_an_object_that_is_refused_keeps_no_other_one_back(tmp_path: Path) -> None:
    api = WritableApi(_objects("bad", "good"), frozenset({"bad"}))

    async def scenario() -> None:
        await _until(lambda: bool(api.status("gateways", "good")) and len(api.objects.get("services", {})) == 1)
        await _until(lambda: bool(api.status("listenersets", "more")))

    _play(api, tmp_path, scenario)
    assert "gateways/bad" in api.written
    assert not api.status("gateways", "bad")
    (service,) = api.objects["services"].values()
    assert service["metadata"]["annotations"][GATEWAY_OF_SERVICE] == "shop/good"
    assert service["spec"]["externalTrafficPolicy"] == "Cluster"


def test_a_listener_set_whose_gateway_left_waits_again(tmp_path: Path) -> None:
    api = WritableApi(_objects("front"))

    async def scenario() -> None:
        await _until(lambda: api.status("listenersets", "more").get("Accepted") == "True")
        await _until(lambda: bool(api.objects.get("services")))
        api.change("gateways", api.objects["gateways"]["front"], "DELETED")
        await _until(lambda: api.status("listenersets", "more").get("Accepted") == "Unknown")
        await _until(lambda: not api.objects["services"])

    _play(api, tmp_path, scenario)
    status = api.objects["listenersets"]["more"]["status"]
    assert {entry["reason"] for entry in status["conditions"]} == {"Pending"}
    assert status["listeners"] == []
