"""TLS sessions between a client of the API and a server, over real sockets."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from podwire.embedded.apiserver import certificates
from podwire.http.client import connect, encode_request
from podwire.http.tls import client_context, server_context, subject_of
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.runtime.clock import SystemClock


class Server:
    """Answers one request a connection, and keeps whether each resumed a session, and its client."""

    def __init__(self, folder: Path) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self.authority = certificates.make_authority("test", now)
        server = certificates.issue(self.authority, "server", (), ("127.0.0.1",), "server", now)
        self.user = certificates.issue(self.authority, "someone", ("group",), (), "client", now)
        certificates.write_pair(folder, "ca", self.authority)
        certificates.write_pair(folder, "server", server)
        self.folder = folder
        self.resumed: list[bool] = []
        self.clients: set[tuple[str, tuple[str, ...]]] = set()

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[int]:
        """Listens with new settings, whose tickets no other settings take."""
        certificate, key, authority = (str(self.folder / name) for name in ("server.crt", "server.key", "ca.crt"))
        context = server_context(certificate, key, authority)
        server = await asyncio.start_server(self._answer, "127.0.0.1", port, ssl=context)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
        self.resumed.append(bool(connection.session_reused))
        self.clients.add(subject_of(connection.getpeercert()))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    def client(self, port: int) -> Client:
        """A client with a certificate."""
        url, user = f"https://127.0.0.1:{port}", self.user
        config = ApiConfig(server=url, ca=self.authority.certificate, certificate=user.certificate, key=user.key)
        return Client(config, SystemClock())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    return Server(tmp_path_factory.mktemp("tls"))


async def ask(client: Client, times: int) -> None:
    await asyncio.gather(*(client.raw("GET", "/") for _ in range(times)))


def test_connections_at_once_resume_the_session_of_the_first(server: Server) -> None:
    async def scenario() -> None:
        async with server.listening() as port:
            server.resumed.clear()
            server.clients.clear()
            await ask(server.client(port), 6)
            assert server.resumed == [False, *[True] * 5]
            assert server.clients == {("someone", ("group",))}

    asyncio.run(scenario())


def test_server_that_forgot_the_session_is_asked_anew(server: Server) -> None:
    async def scenario() -> None:
        async with server.listening() as port:
            client = server.client(port)
            await ask(client, 1)
        async with server.listening(port):
            server.resumed.clear()
            await ask(client, 1)
            await ask(client, 1)
            assert server.resumed == [False, True]

    asyncio.run(scenario())


def test_silent_first_connection_does_not_hold_the_others(server: Server) -> None:
    async def scenario() -> None:
        held: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

        def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held.put_nowait(writer)

        silent = await asyncio.start_server(hold, "127.0.0.1", 0)
        async with server.listening() as port, silent:
            client = server.client(silent.sockets[0].getsockname()[1])
            first = asyncio.ensure_future(client.raw("GET", "/"))
            connection = await held.get()
            client.connections.config = server.client(port).config
            await ask(client, 2)
            first.cancel()
            connection.close()

    asyncio.run(scenario())


class ResumedConnection(asyncio.BaseTransport):
    """A connection that has resumed a session; counts how often its own session is copied."""

    session_reused = True
    copied = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" else default

    @property
    def session(self) -> ssl.SSLSession | None:
        self.copied += 1
        return None


def test_session_of_a_resumed_connection_is_not_copied() -> None:
    context, connection = client_context(), ResumedConnection()
    assert not context.remember(connection)
    context.session = cast(ssl.SSLSession, object())
    assert context.remember(connection)
    assert connection.copied == 1


def test_session_is_kept_once_for_each_connection(server: Server) -> None:
    async def scenario() -> None:
        async with server.listening() as port:
            context = client_context(server.authority.certificate.decode())
            first = await connect("127.0.0.1", port, context)
            first.send(encode_request("GET", "/", [("host", "x")]))
            await first.head()
            assert first.transport is not None and context.remember(first.transport)
            remaining = context.session
            second = await connect("127.0.0.1", port, context)
            second.send(encode_request("GET", "/", [("host", "x")]))
            await second.head()
            assert second.transport is not None and context.remember(second.transport)
            assert remaining is not None and context.session is remaining
            first.abort()
            second.abort()

    asyncio.run(scenario())
