"""What a real Envoy refuses of an Ingress is told on that Ingress, and takes nothing else away.

Envoy takes no prefix of one letter, no time-out of zero for connections, and no RSA keys below 2048 bits.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes import scripted_http as http
from tests.fakes.certificates import make_certificate
from tests.fakes.ports import free_port
from tests.kernel.changing_api import ChangingApi, meta, tls_secret, weak_certificate
from tests.kernel.gateway_engine import (
    SETTINGS,
    ClientRequest,
    Engine,
    ask_once,
    certificate_for,
    hosts_of,
    running_engine,
)

from podwire.gateway.engines import EngineFeed
from podwire.gateway.ingress.annotations import PREFIX
from podwire.gateway.ingress.controller import PART, IngressController, IngressOptions
from podwire.gateway.ingress.translate import IngressPorts
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.controller import Environment
from podwire.runtime.clock import SystemClock

Json = dict[str, Any]
_HOST = "shared.example"


def _ingress(name: str, path: str, *, host: str = _HOST, tls: str = "", **annotations: str) -> Json:
    """An Ingress with a path of a host; ``annotations`` have underscores for hyphens."""
    named = {PREFIX + key.replace("_", "-"): text for key, text in annotations.items()}
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    rule = {"host": host, "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}
    spec = {"ingressClassName": "podwire", "rules": [rule]} | ({"tls": [{"secretName": tls}]} if tls else {})
    return {"metadata": meta(name, annotations=named), "spec": spec}


def _objects(port: int, *ingresses: Json) -> dict[str, list[Json]]:
    slices = {
        "metadata": meta("web-1", labels={"kubernetes.io/service-name": "web"}),
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.8.0.1"]}],
        "ports": [{"name": "http", "port": port}],
    }
    return {
        "ingressclasses": [{"metadata": meta("podwire", ""), "spec": {"controller": "podwire.io/ingress"}}],
        "ingresses": list(ingresses),
        "services": [{"metadata": meta("web"), "spec": {"ports": [{"name": "http", "port": 80}]}}],
        "endpointslices": [slices],
        "secrets": [tls_secret("cert", make_certificate("first.example"))],
    }


class Served:
    """The controller on an API, with an engine."""

    def __init__(self, api: ChangingApi, ports: IngressPorts) -> None:
        self.api = api
        self.ports = ports

    async def until(self, is_reached: Callable[[], Awaitable[bool]]) -> None:
        """Waits for a state. Raises: TimeoutError."""
        async with asyncio.timeout(60):
            while not await is_reached():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def answers(self, path: str, status: int, *, host: str = _HOST, said: str = "") -> bool:
        """Whether a path is answered with a status, and the backend got a prefix that says which version it is."""
        answer = await ask_once(self.ports.http, ClientRequest(host=host, target=path))
        headers = {name.lower(): text for name, text in answer.backend.get("headers", {}).items()}
        return answer.status == status and (not said or headers.get("x-forwarded-prefix") == said)

    async def events(self) -> list[tuple[str, str]]:
        """The object and the text of each Event about a refusal."""
        events = [event for event in self.api.events if event["reason"] == "Refused"]
        return [(event["involvedObject"]["name"], event["message"]) for event in events]


@asynccontextmanager
async def _serving(engine: Engine, *ingresses: Json) -> AsyncIterator[Served]:
    api = ChangingApi(_objects(engine.backends.port, *ingresses))
    async with http.ScriptedServer(api.answer) as server:
        client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
        environment = Environment(client, "gateway")
        feed = EngineFeed(engine.discovery, {}, (PART,))
        ports = IngressPorts(free_port(), free_port())
        options = IngressOptions(
            controller="podwire.io/ingress",
            ports=ports,
            default_certificate=certificate_for("default", ("default.invalid",)),
        )
        controller = IngressController(environment, options, SETTINGS, feed)
        engine.discovery.on_answer = controller.answered
        task = asyncio.create_task(environment.run({PART: controller}))
        try:
            yield Served(api, ports)
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


def test_a_refused_ingress_is_named_and_others_are_served(engine: Engine) -> None:
    async def scenario() -> None:
        good = [_ingress(f"i{number}", f"/i{number}") for number in range(5)]
        async with _serving(engine, *good, _ingress("wrong", "f")) as served:

            async def is_named() -> bool:
                return bool(await served.events())

            await served.until(is_named)
            for number in range(5):
                assert await served.answers(f"/i{number}", 200)
            served.api.write("ingresses", _ingress("i0", "/i0", x_forwarded_prefix="/second"))
            await served.until(lambda: served.answers("/i0", 200, said="/second"))
            served.api.write("ingresses", _ingress("wrong", "/right"))
            await served.until(lambda: served.answers("/right", 200))
            assert {name for name, _ in await served.events()} == {"wrong"}

    engine.run(scenario())


def test_an_ingress_that_becomes_wrong_stays_as_it_was(engine: Engine) -> None:
    async def scenario() -> None:
        async with _serving(engine, _ingress("a", "/a"), _ingress("b", "/b", host="other.example")) as served:
            await served.until(lambda: served.answers("/a", 200))
            served.api.write("ingresses", _ingress("a", "/a", proxy_connect_timeout="0"))
            served.api.write("ingresses", _ingress("b", "/b", host="other.example", x_forwarded_prefix="/second"))

            async def is_named() -> bool:
                assert await served.answers("/a", 200)
                return [name for name, _ in await served.events()] == ["a"]

            await served.until(is_named)
            await served.until(lambda: served.answers("/b", 200, host="other.example", said="/second"))
            assert await served.answers("/a", 200)

    engine.run(scenario())


def test_a_refused_certificate_of_an_ingress_leaves_the_last_one(engine: Engine) -> None:
    async def scenario() -> None:
        async with _serving(engine, _ingress("a", "/", host="first.example", tls="cert")) as served:

            async def certificate() -> tuple[str, ...]:
                request = ClientRequest(host="first.example", server_name="first.example")
                answer = await ask_once(served.ports.https, request)
                return hosts_of(answer.certificate) if answer.certificate is not None else ()

            async def is_first() -> bool:
                return await certificate() == ("first.example",)

            async def is_second() -> bool:
                return await certificate() == ("second.example",)

            await served.until(is_first)
            served.api.write("secrets", tls_secret("cert", weak_certificate("first.example")))

            async def is_named() -> bool:
                assert await is_first()
                return any("2048" in event["message"] for event in served.api.events)

            await served.until(is_named)
            served.api.write("secrets", tls_secret("cert", make_certificate("second.example")))
            await served.until(is_second)

    engine.run(scenario())
