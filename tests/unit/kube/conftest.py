"""A scripted HTTP/1.1 server: a test says what each request gets."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest


@dataclass
class Seen:
    """One request as the server saw it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class ScriptedServer:
    """Answers by ``handler(seen, writer)``; the default helper methods write whole or chunked answers."""

    handler: Callable[[Seen, asyncio.StreamWriter], Awaitable[bool]]
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    server: asyncio.Server | None = None
    port: int = 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader, writer) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                seen = Seen(method, target, headers, body)
                self.seen.append(seen)
                if not await self.handler(seen, writer):
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(writer, value, status=200):
    """Writes a whole JSON answer."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    return True


def open_stream(writer) -> None:
    """Starts a chunked answer."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")


def chunk(writer, value) -> None:
    """One chunk of a chunked answer."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"
    writer.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")


class Http:
    """The helpers as one fixture."""

    Server = ScriptedServer
    answer = staticmethod(answer)
    open_stream = staticmethod(open_stream)
    chunk = staticmethod(chunk)


@pytest.fixture
def http():
    return Http
