import asyncio
import base64
import datetime
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.embedded.apiserver import certificates
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.http.answer import Stream, Streaming
from podwire.http.message import Request, Response, text_response
from podwire.http.server import HttpServer
from podwire.http.tls import server_context
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet

Object = dict[str, Any]

GROUP = "wardle.example.com"
ROOT = f"/apis/{GROUP}/v1"
SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
VERBS = ["create", "delete", "deletecollection", "get", "list", "watch"]
RESOURCES = [
    {"name": "flunders", "singularName": "flunder", "namespaced": True, "kind": "Flunder", "verbs": VERBS,
     "shortNames": ["fl"]},
    {"name": "flunders/status", "singularName": "", "namespaced": True, "kind": "Flunder", "verbs": ["get"]},
]  # fmt: skip


class ExtensionServer:
    """A group of the API in another server: answers, and remembers who asked for what."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.objects: list[Object] = []
        self.deletes = True
        self.broken: Response | None = None
        """The answer to every request for a single object."""
        self.openapi: dict[str, Object] = {}
        self.port = 0

    def answer(self, request: Request) -> Response | Streaming:
        self.asked.append(request)
        if request.path == ROOT:
            listed = {"kind": "APIResourceList", "groupVersion": f"{GROUP}/v1", "resources": RESOURCES}
            return Response(200, json.dumps(listed).encode())
        if request.path in self.openapi:
            return Response(200, json.dumps(self.openapi[request.path]).encode())
        if "/flunders/" in request.path:
            return self._single(request)
        if not request.path.endswith("/flunders"):
            return text_response(404, "nothing here")
        if request.method == "DELETE" and self.deletes:
            self.objects.clear()
        if "watch" in request.query():
            return Streaming(self._events)
        return Response(200, json.dumps({"kind": "FlunderList", "items": self.objects}).encode())

    def _single(self, request: Request) -> Response:
        if self.broken is not None:
            return self.broken
        name = request.path.rpartition("/")[2]
        result = next((obj for obj in self.objects if obj["metadata"]["name"] == name), None)
        if result is None:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            return Response(404, json.dumps(status).encode())
        if request.method == "DELETE":
            self.objects.remove(result)
        return Response(200, json.dumps(result).encode())

    def _events(self, stream: Stream) -> None:
        stream.write(b'{"type":"ADDED"}\n')
        asyncio.get_running_loop().call_later(0.01, stream.close)

    @property
    def by_clients(self) -> list[Request]:
        """Requests that others than the API server itself have made."""
        return [request for request in self.asked if request.headers["x-remote-user"] != "system:kube-aggregator"]


@pytest.fixture
def proxy_settings(settings: ApiServerSettings, tmp_path: Path) -> dict[str, Path]:
    """Settings of the front proxy."""
    now = datetime.datetime.now(datetime.UTC)
    authority = certificates.make_authority("front proxy", now)
    certificates.write_private(tmp_path / "proxy-ca.crt", authority.certificate)
    pair = certificates.issue(authority, "front-proxy-client", (), (), "client", now)
    certificate, key = certificates.write_pair(tmp_path, "proxy", pair)
    return {"proxy_client_ca": tmp_path / "proxy-ca.crt", "proxy_client_certificate": certificate,
            "proxy_client_key": key}  # fmt: skip


@pytest.fixture
def serve(credentials: Path, tmp_path: Path, proxy_settings: dict[str, Path]) -> Callable[[], Any]:
    """An extension API server whose certificate is valid for the Service ``default/ext``."""
    now = datetime.datetime.now(datetime.UTC)
    ca = certificates.KeyPair((credentials / "ca.crt").read_bytes(), (credentials / "ca.key").read_bytes())
    pair = certificates.issue(ca, "ext", (), ("ext.default.svc",), "server", now)
    certificate, key = certificates.write_pair(tmp_path, "ext", pair)

    @asynccontextmanager
    async def run() -> AsyncIterator[ExtensionServer]:
        extension = ExtensionServer()
        server = HttpServer(extension.answer, TaskSet(lambda *_: None), SystemClock())
        tls = server_context(str(certificate), str(key), str(proxy_settings["proxy_client_ca"]))
        _, extension.port = await server.listen("127.0.0.1", 0, tls)
        try:
            yield extension
        finally:
            await server.close()

    return run


@pytest.fixture
def register(credentials: Path) -> Callable[..., Any]:
    """Registers an extension API server, and waits until its APIService has the wanted reason."""
    bundle = base64.b64encode((credentials / "ca.crt").read_bytes()).decode()

    async def write(api: Any, port: int, reason: str = "Passed", **spec: Any) -> Object:
        service = {"metadata": {"name": "ext"}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
        await api("POST", "/api/v1/namespaces/default/services", service)
        body = {
            "metadata": {"name": f"v1.{GROUP}"},
            "spec": {
                "group": GROUP, "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 10,
                "caBundle": bundle, "service": {"namespace": "default", "name": "ext", "port": port}, **spec,
            },
        }  # fmt: skip
        status, answer = await api("POST", SERVICES, body)
        if status == 409:
            merge = "application/merge-patch+json"
            status, answer = await api("PATCH", f"{SERVICES}/v1.{GROUP}", body, content_type=merge)
        assert status in (200, 201), answer
        return await condition(api, reason)

    return write


async def condition(api: Any, reason: str) -> Object:
    """The condition of the APIService, when it has the reason."""
    while True:
        _, result = await api("GET", f"{SERVICES}/v1.{GROUP}")
        conditions: list[Object] = (result.get("status") or {}).get("conditions") or []
        if conditions and conditions[0]["reason"] == reason:
            return conditions[0]
        await asyncio.sleep(0.005)


@pytest.fixture
def play_with_proxy(play: Callable[..., None], proxy_settings: dict[str, Path]) -> Callable[..., None]:
    """Runs a scenario against a server with a front proxy's certificate."""

    def run(scenario: Any) -> None:
        play(scenario, **proxy_settings)

    return run


async def until(api: Any, target: str, text: str) -> Object:
    """The answer to GET when the text is in it."""
    while True:
        _, result = await api("GET", target)
        if text in json.dumps(result):
            return dict(result)
        await asyncio.sleep(0.005)


def decoded(response: Response) -> Any:
    return msgspec.json.decode(response.body)
