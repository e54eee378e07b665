"""Watches over WebSocket, with a real client on a socket."""

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, TextMessage

from podwire.embedded.apiserver.server import ApiServer
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.runtime.clock import SystemClock

MAPS = "/api/v1/namespaces/default/configmaps"


def head(protocols: str = "", target: str = f"{MAPS}?watch=true&fieldSelector=metadata.name%3Da") -> bytes:
    lines = [
        f"GET {target} HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
        *([f"Sec-WebSocket-Protocol: {protocols}"] if protocols else []),
    ]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.fixture
def dial(settings: ApiServerSettings, credentials: Path) -> Callable[[Any], None]:
    """Runs a scenario with a server and a function that connects to it."""

    def run(scenario: Any) -> None:
        async def body() -> None:
            server = ApiServer(settings, SystemClock())
            ((host, port),) = await server.start()
            context = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.load_cert_chain(credentials / "admin.crt", credentials / "admin.key")

            async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                return await asyncio.open_connection(host, port, ssl=context)

            try:
                await scenario(server, connect)
            finally:
                await server.close()

        asyncio.run(asyncio.wait_for(body(), 20))

    return run


def put(server: ApiServer, value: str) -> None:
    meta = {"name": "a", "namespace": "default", "uid": "u"}
    server.store.put("/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"k": value}})


def test_events_are_text_messages_of_json(dial: Callable[[Any], None]) -> None:
    async def scenario(server: ApiServer, connect: Any) -> None:
        put(server, "1")
        reader, writer = await connect()
        writer.write(head("base64.binary.k8s.io"))
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 ") and b"Sec-WebSocket-Protocol: base64.binary.k8s.io" in answer
        frames = Connection(ConnectionType.CLIENT)
        events: list[dict[str, Any]] = []
        while len(events) < 3:
            frames.receive_data(await reader.read(1 << 16))
            for message in frames.events():
                assert isinstance(message, TextMessage)
                events.append(json.loads(message.data))
                put(server, str(len(events) + 1))
        assert [(event["type"], event["object"]["data"]["k"]) for event in events] == [
            ("ADDED", "1"), ("MODIFIED", "2"), ("MODIFIED", "3"),
        ]  # fmt: skip
        assert server._watcher.users()
        writer.write(frames.send(CloseConnection(1000)))
        await reader.read()
        writer.close()
        assert not server._watcher.users()

    dial(scenario)


def test_several_subprotocols_are_refused(dial: Callable[[Any], None]) -> None:
    async def scenario(_: ApiServer, connect: Any) -> None:
        reader, writer = await connect()
        writer.write(head("one, two"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        writer.close()

    dial(scenario)


def test_watch_over_a_socket_ends_in_time(dial: Callable[[Any], None]) -> None:
    async def scenario(server: ApiServer, connect: Any) -> None:
        reader, writer = await connect()
        version = server.store.version
        writer.write(head(target=f"{MAPS}?watch=true&resourceVersion={version}&timeoutSeconds=1"))
        await reader.readuntil(b"\r\n\r\n")
        frames = Connection(ConnectionType.CLIENT)
        frames.receive_data(await reader.read(1 << 16))
        (event,) = [event for event in frames.events() if isinstance(event, CloseConnection)]
        assert event.code == 1000
        writer.close()

    dial(scenario)
