import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes import apiserver_state
from tests.unit.embedded.apiserver.converted_tabs import DEFINITIONS, Converter, definition

from podwire.embedded.apiserver.server import ApiServer
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.http.answer import Result, Streaming
from podwire.http.message import Request, Response
from podwire.http.server import HttpServer
from podwire.http.tls import server_context
from podwire.runtime.clock import Clock, SystemClock
from podwire.runtime.tasks import TaskSet

ADMIN = {"subject": ((("organizationName", "system:masters"),), (("commonName", "admin"),))}


class Events:
    """A watch's stream: collects events as objects."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.closed = self.aborted = False
        self.buffered = 0
        self.on_close: Callable[[], None] | None = None

    def write_framed(self, chunk: bytes) -> None:
        while chunk:
            size, _, rest = chunk.partition(b"\r\n")
            data, chunk = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
            self.seen.extend(json.loads(line) for line in data.splitlines())

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    @property
    def short(self) -> list[str]:
        return [f"{e['type']} {e['object']['metadata'].get('name', '')}".strip() for e in self.seen]


class Harness:
    """An API server without sockets."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    async def raw(
        self, method: str, target: str, body: bytes = b"", *, user: dict[str, Any] | None = ADMIN, **headers: str
    ) -> Result:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(method, target, sent, body)
        request.peer_certificate = user
        result = self.server.api.handle(request)
        return await result if isinstance(result, Awaitable) else result

    async def __call__(self, method: str, target: str, body: Any = None, **more: Any) -> tuple[int, dict[str, Any]]:
        data = b"" if body is None else json.dumps(body).encode()
        result = await self.raw(method, target, data, **more)
        assert isinstance(result, Response), result
        return result.status, json.loads(result.body) if result.body else {}

    async def watch(self, target: str, accept: str = "", user: dict[str, Any] = ADMIN) -> Events:
        headers: dict[str, Any] = {"accept": accept} if accept else {}
        result = await self.raw("GET", target, user=user, **headers)
        assert isinstance(result, Streaming), result
        events = Events()
        result.start(events)  # type: ignore[arg-type]
        return events

    async def settle(self, turns: int = 20) -> None:
        """Until nothing is left to do for the garbage collector and the like."""
        store = self.server.store
        for _ in range(turns):
            await asyncio.sleep(0.002)
            pending = store.durable(store.version)
            if pending is not None:
                await pending


@pytest.fixture
def settings(credentials: Path, filled_state: Path, tmp_path: Path) -> ApiServerSettings:
    """Settings of a server that finds the state of a first start."""
    state = shutil.copyfile(filled_state, tmp_path / "api.db")
    return apiserver_state.settings_with(credentials, state)


@pytest.fixture
def no_state(tmp_path: Path) -> Path:
    """Where a server that starts for the first time puts its state."""
    return tmp_path / "first.db"


Scenario = Callable[[Harness], Awaitable[None]]


@pytest.fixture
def play(settings: ApiServerSettings) -> Iterator[Callable[..., None]]:
    """Runs a coroutine function against a server of its own; a second call finds the state of the first.

    Keyword arguments replace settings of the server, ``clock`` its clock.
    """

    def run(scenario: Scenario, clock: Clock | None = None, **changes: Any) -> None:
        async def body() -> None:
            server = ApiServer(msgspec.structs.replace(settings, **changes), clock or SystemClock())
            try:
                await server.start()
                await scenario(Harness(server))
            finally:
                await server.close()

        asyncio.run(asyncio.wait_for(body(), 20))

    yield run


@pytest.fixture
def converter(credentials: Path) -> Callable[[], Any]:
    @asynccontextmanager
    async def run() -> AsyncIterator[Converter]:
        hook = Converter()
        handle = lambda request: hook.answer(request)  # noqa: E731, PLW0108  tests replace it
        server = HttpServer(handle, TaskSet(lambda *_: None), SystemClock())
        tls = server_context(str(credentials / "server.crt"), str(credentials / "server.key"))
        host, port = await server.listen("127.0.0.1", 0, tls)
        hook.url = f"https://{host}:{port}/convert"
        hook.bundle = base64.b64encode((credentials / "ca.crt").read_bytes()).decode()
        try:
            yield hook
        finally:
            await server.close()

    return run


@pytest.fixture
def define(credentials: Path) -> Callable[..., Any]:
    bundle = base64.b64encode((credentials / "ca.crt").read_bytes()).decode()

    async def write(api: Any, url: str) -> None:
        status, answer = await api("POST", DEFINITIONS, definition(url, bundle))
        assert status == 201, answer

    return write
