"""What a real Envoy refuses is found by the controller, told on the object, and takes nothing else away.

Gateway API lets a filter remove the header Host, Envoy does not; Envoy takes no RSA keys below 2048 bits.
"""

import asyncio
import base64
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from tests.fakes import scripted_http as http
from tests.fakes.certificates import make_certificate
from tests.kernel.gateway_engine import SETTINGS, Answer, ClientRequest, Engine, ask_once, hosts_of

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


class ChangingApi:
    """An API that lists objects by plural and sends what is written later to watches."""

    def __init__(self, listed: dict[str, list[Json]]) -> None:
        self._listed = listed
        self._watches: dict[str, list[asyncio.Queue[Json | None]]] = {}
        self._written: dict[str, list[Json]] = {}
        self._version = 10

    def write(self, plural: str, value: Json) -> None:
        """Changes or makes an object."""
        self._version += 1
        value = value | {"metadata": value["metadata"] | {"resourceVersion": str(self._version)}}
        self._written.setdefault(plural, []).append(value)
        for queue in self._watches.get(plural, []):
            queue.put_nowait(value)

    def close(self) -> None:
        """Ends all watches."""
        for queue in (queue for queues in self._watches.values() for queue in queues):
            queue.put_nowait(None)

    async def answer(self, received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        """Answers one request."""
        path, _, query = received.target.partition("?")
        plural = path.rpartition("/")[2]
        if "watch=true" not in query:
            return http.answer(writer, {"metadata": {"resourceVersion": "2"}, "items": self._listed.get(plural, [])})
        queue: asyncio.Queue[Json | None] = asyncio.Queue()
        for earlier in self._written.get(plural, []):
            queue.put_nowait(earlier)
        self._watches.setdefault(plural, []).append(queue)
        http.open_stream(writer)
        while (value := await queue.get()) is not None:
            http.chunk(writer, {"type": "MODIFIED", "object": value})
            await writer.drain()
        return False


def _meta(name: str, namespace: str = "shop", **more: Any) -> Json:
    return {"name": name, "namespace": namespace, "resourceVersion": "1", "uid": name, "generation": 1, **more}


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
    return {"metadata": _meta(name), "spec": spec}


def _secret(name: str, pair: tuple[str, str]) -> Json:
    chain, key = (base64.b64encode(text.encode()).decode() for text in pair)
    return {"metadata": _meta(name), "type": "kubernetes.io/tls", "data": {"tls.crt": chain, "tls.key": key}}


def _weak_certificate(host: str) -> tuple[str, str]:
    """A certificate with a key of 1024 bits."""
    key = rsa.generate_private_key(65537, 1024)  # noqa: S505
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), text.decode()


def _objects(port: int, *routes: Json) -> dict[str, list[Json]]:
    """A Gateway with an HTTP and an HTTPS port, its Service, routes, and the Service behind them."""
    tls = {"certificateRefs": [{"name": "front"}]}
    gateway = {
        "metadata": _meta("front"),
        "spec": {
            "gatewayClassName": "podwire",
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
        "gatewayclasses": [{"metadata": _meta("podwire", ""), "spec": {"controllerName": "podwire.io/gateway"}}],
        "gateways": [gateway],
        "httproutes": list(routes),
        "secrets": [_secret("front", make_certificate("first.example"))],
        "services": [
            {"metadata": _meta("web"), "spec": {"ports": [{"name": "http", "port": 80}]}},
            {"metadata": _meta(service_name(key), "kube-system", **labels), "spec": {"ports": ports}},
        ],
        "endpointslices": [
            {
                "metadata": _meta("web-1", labels={"kubernetes.io/service-name": "web"}),
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["127.8.0.1"]}],
                "ports": [{"name": "http", "port": port}],
            }
        ],
    }


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
    with TemporaryDirectory(prefix="gw") as directory:
        running = Engine(Path(directory))
        yield running
        running.close()


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
            served.api.write("secrets", _secret("front", _weak_certificate("weak.example")))

            def conditions() -> dict[str, Condition]:
                listeners = served.controller.translation.gateways["shop/front"].listeners
                return {entry.type: entry for entry in listeners[1].conditions}

            async def is_named() -> bool:
                return conditions()["Programmed"].status == "False"

            await served.until(is_named)
            assert "2048" in conditions()["Programmed"].message
            assert await is_first()
            assert (await served.ask("/a")).status == 200
            served.api.write("secrets", _secret("front", make_certificate("second.example")))

            async def is_second() -> bool:
                return await certificate() == ("second.example",)

            await served.until(is_second)
            assert conditions()["Programmed"].status == "True"

    engine.run(scenario())
