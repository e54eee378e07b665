"""What a real Envoy refuses is found by the controller, told on the object, and takes nothing else away.

Gateway API lets a filter remove the header Host, Envoy does not; Envoy takes no RSA keys below 2048 bits.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes import scripted_http as http
from tests.fakes.certificates import make_certificate
from tests.kernel.changing_api import ChangingApi, meta, tls_secret, weak_certificate
from tests.kernel.gateway_engine import (
    SETTINGS,
    Answer,
    ClientRequest,
    Engine,
    ask_once,
    hosts_of,
    running_engine,
)

from podwire.cluster.names import GATEWAY_OF_SERVICE, GATEWAY_SERVICE
from podwire.gateway.api.controller import PART, GatewayApiController
from podwire.gateway.api.services import service_name
from podwire.gateway.engines import EngineFeed
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.controller import Environment
from podwire.model.meta import Condition
from podwire.runtime.clock import SystemClock

Json = dict[str, Any]
_WRONG = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["Host"]}}
_HTTP, _HTTPS = 19871, 19872


def _route(name: str, path: str, answer: str = "", *, is_wrong: bool = False) -> Json:
    rule: Json = {
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "backendRefs": [{"name": "web", "port": 80}],
    }
    if answer:
        rule["filters"] = [
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "x-as", "value": answer}]}}
        ]
    if is_wrong:
        rule["filters"] = [_WRONG]
    spec = {"parentRefs": [{"name": "front"}], "rules": [rule]}
    return {"metadata": meta(name), "spec": spec}


def _objects(port: int, *routes: Json) -> dict[str, list[Json]]:
    """A Gateway with an HTTP and an HTTPS port, its Service, routes, and the Service behind them."""
    tls = {"certificateRefs": [{"name": "front"}]}
    gateway = {
        "metadata": meta("front"),
        "spec": {
            "gatewayClassName": "podwire",
            "allowedListeners": {"namespaces": {"from": "Same"}},
            "listeners": [
                {"name": "http", "port": 80, "protocol": "HTTP"},
                {"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls},
            ],
        },
    }
    key = "shop/front"
    labels = {"labels": {GATEWAY_SERVICE: "true"}, "annotations": {GATEWAY_OF_SERVICE: key}}
    ports = [{"port": 80, "targetPort": _HTTP}, {"port": 443, "targetPort": _HTTPS}]
    return {
        "gatewayclasses": [{"metadata": meta("podwire", ""), "spec": {"controllerName": "podwire.io/gateway"}}],
        "gateways": [gateway],
        "httproutes": list(routes),
        "secrets": [tls_secret("front", make_certificate("first.example"))],
        "services": [
            {"metadata": meta("web"), "spec": {"ports": [{"name": "http", "port": 80}]}},
            {"metadata": meta(service_name(key), "kube-system", **labels), "spec": {"ports": ports}},
        ],
        "endpointslices": [
            {
                "metadata": meta("web-1", labels={"kubernetes.io/service-name": "web"}),
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["127.8.0.1"]}],
                "ports": [{"name": "http", "port": port}],
            }
        ],
    }


def _set(name: str, hostname: str) -> Json:
    """A ListenerSet with a listener of HTTPS."""
    tls = {"certificateRefs": [{"name": "front"}]}
    listener = {"name": "own", "port": 443, "protocol": "HTTPS", "hostname": hostname, "tls": tls}
    return {"metadata": meta(name), "spec": {"parentRef": {"name": "front"}, "listeners": [listener]}}


class Served:
    """The controller on an API, with an engine."""

    def __init__(self, api: ChangingApi, controller: GatewayApiController) -> None:
        self.api = api
        self.controller = controller

    async def until(self, is_reached: Callable[[], Awaitable[bool]]) -> None:
        """Waits for a state. Raises: TimeoutError."""
        async with asyncio.timeout(60):
            while not await is_reached():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def ask(self, path: str) -> Answer:
        """The answer to a request of HTTP."""
        return await ask_once(_HTTP, ClientRequest(host="any.example", target=path))

    async def answers(self, path: str, status: int, said: str = "") -> bool:
        """Whether a path is answered with a status, and by the version of a route that says so."""
        answer = await self.ask(path)
        return answer.status == status and (not said or answer.headers.get("x-as") == [said])

    def condition(self, route: str) -> Condition:
        """Whether a route is accepted."""
        parents = self.controller.translation.routes.get(("HTTPRoute", f"shop/{route}"), ())
        return parents[0].conditions[0] if parents else Condition(type="Accepted")


@asynccontextmanager
async def _serving(engine: Engine, *routes: Json) -> AsyncIterator[Served]:
    api = ChangingApi(_objects(engine.backends.port, *routes))
    async with http.ScriptedServer(api.answer) as server:
        client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
        environment = Environment(client, "gateway")
        feed = EngineFeed(engine.discovery, {}, (PART,))
        controller = GatewayApiController(environment, "podwire.io/gateway", "kube-system", SETTINGS, feed)
        engine.discovery.on_answer = controller.answered
        task = asyncio.create_task(environment.run({PART: controller}))
        served = Served(api, controller)

        async def is_translated() -> bool:
            return bool(controller.translation.gateways) and feed.refused() is not None

        try:
            await served.until(is_translated)
            yield served
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            engine.discovery.on_answer = lambda: None
            api.close()
            await client.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with running_engine() as running:
        yield running


def test_a_refused_route_is_named_and_the_others_are_served(engine: Engine) -> None:
    async def scenario() -> None:
        wrong = _route("wrong", "/wrong", is_wrong=True)
        async with _serving(engine, *(_route(f"r{n}", f"/r{n}") for n in range(6)), wrong) as served:

            async def is_named() -> bool:
                return served.condition("wrong").status == "False"

            await served.until(is_named)
            condition = served.condition("wrong")
            assert condition.reason == "UnsupportedValue"
            assert "may not be removed" in condition.message
            for number in range(6):
                assert (await served.ask(f"/r{number}")).status == 200
                assert served.condition(f"r{number}").status == "True"
            served.api.write("httproutes", _route("r0", "/r0", "second"))
            await served.until(lambda: served.answers("/r0", 200, "second"))
            served.api.write("httproutes", _route("wrong", "/right", "right"))
            await served.until(lambda: served.answers("/right", 200, "right"))
            assert served.condition("wrong").status == "True"

    engine.run(scenario())


def test_a_route_that_becomes_wrong_stays_as_it_was(engine: Engine) -> None:
    async def scenario() -> None:
        async with _serving(engine, _route("a", "/a", "first"), _route("b", "/b", "first")) as served:
            await served.until(lambda: served.answers("/a", 200, "first"))
            served.api.write("httproutes", _route("a", "/a", is_wrong=True))
            served.api.write("httproutes", _route("b", "/b", "second"))

            async def is_named() -> bool:
                assert (await served.ask("/a")).status == 200
                return served.condition("a").status == "False"

            await served.until(is_named)
            await served.until(lambda: served.answers("/b", 200, "second"))
            assert await served.answers("/a", 200, "first")

    engine.run(scenario())


def test_a_refused_certificate_leaves_the_last_one(engine: Engine) -> None:
    async def scenario() -> None:
        async with _serving(engine, _route("a", "/a")) as served:
            await served.until(lambda: served.answers("/a", 200))

            async def certificate() -> tuple[str, ...]:
                request = ClientRequest(host="first.example", target="/a", server_name="first.example")
                answer = await ask_once(_HTTPS, request)
                return hosts_of(answer.certificate) if answer.certificate is not None else ()

            async def is_first() -> bool:
                return await certificate() == ("first.example",)

            await served.until(is_first)
            served.api.write("secrets", tls_secret("front", weak_certificate("weak.example")))

            def conditions() -> dict[str, Condition]:
                listeners = served.controller.translation.gateways["shop/front"].listeners
                return {entry.type: entry for entry in listeners[1].conditions}

            async def is_named() -> bool:
                return conditions()["Programmed"].status == "False"

            await served.until(is_named)
            assert "2048" in conditions()["Programmed"].message
            assert await is_first()
            assert (await served.ask("/a")).status == 200
            served.api.write("secrets", tls_secret("front", make_certificate("second.example")))

            async def is_second() -> bool:
                return await certificate() == ("second.example",)

            await served.until(is_second)
            assert conditions()["Programmed"].status == "True"

    engine.run(scenario())


def test_a_refused_listener_set_is_named(engine: Engine) -> None:
    async def scenario() -> None:
        async with _serving(engine, _route("a", "/a")) as served:
            await served.until(lambda: served.answers("/a", 200))
            served.api.write("listenersets", _set("wrong", "a*.example"))
            served.api.write("listenersets", _set("right", "b.example"))

            def programmed(name: str) -> Condition:
                status = served.controller.translation.sets.get(f"shop/{name}")
                return status.conditions[1] if status is not None else Condition(type="Programmed")

            async def is_named() -> bool:
                return programmed("wrong").status == "False" and programmed("right").status == "True"

            await served.until(is_named)
            assert "the engine refused it" in programmed("wrong").message
            assert served.controller.translation.gateways["shop/front"].conditions[1].reason != "Invalid"
            assert await served.answers("/a", 200)

            async def is_served() -> bool:
                request = ClientRequest(host="b.example", server_name="b.example")
                return (await ask_once(_HTTPS, request)).status == 404

            await served.until(is_served)

    engine.run(scenario())
