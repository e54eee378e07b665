"""An HTTP/1.1 server on the loopback address: the test's handler writes the answer to each request."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class ReceivedRequest:
    """One request as the server received it."""

    method: str
    target: str
    headers: dict[str, str]
    """With names in lower case."""

    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


Handler = Callable[[ReceivedRequest, asyncio.StreamWriter], Awaitable[bool]]
"""Writes the answer; returns False to close the connection."""


@dataclass
class ScriptedServer:
    """Listens while its ``async with`` block runs, and keeps all requests it received."""

    handler: Handler
    received: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    """Number of connections accepted so far."""

    port: int = 0
    """The port to listen on; 0 takes a free one, whose number is here afterwards."""

    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = ReceivedRequest(method, target, headers, body)
                self.received.append(request)
                if not await self.handler(request, writer):
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(writer: asyncio.StreamWriter, value: Any, status: int = 200) -> bool:
    """Writes a whole answer, a value that is not bytes as JSON; returns True."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    return True


def open_stream(writer: asyncio.StreamWriter) -> None:
    """Writes the head of a chunked answer."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")


def chunk(writer: asyncio.StreamWriter, value: Any) -> None:
    """Writes one chunk of a chunked answer, a value that is not bytes as a line of JSON."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"
    writer.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
