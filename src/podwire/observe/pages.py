"""Pages of text on a unix socket of a component, for people on its machine: HTTP/1.1 GET.

A page is an iterator of lines, so that one of a hundred megabytes costs neither that memory nor the loop's time: 256
lines are rendered (about a millisecond), sent, and the loop goes round once before the next. A piece is an HTTP chunk;
the empty one at the end tells that the page is whole. The socket is its owner's alone (mode 0600), unlike the health
endpoint, which everybody on the node's network may ask. The client is :mod:`podwire.observe.fetch`; by hand::

    curl --unix-socket /run/podwire/agent.sock http://agent/state
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from urllib.parse import parse_qs

Query = Mapping[str, list[str]]

Page = Callable[[Query], Iterator[str]]
"""Given the query (``{"part": ["cni"]}``), the lines without their ends. Raises: ValueError for a wrong query."""

_LINES = 256
_HEAD_LIMIT = 8192
_REQUEST_S = 10.0
_STALLED_S = 30.0


class Pages:
    """A component's pages by path (``/state``); ``pause`` lets the loop go round once."""

    def __init__(self, path: Path, pages: Mapping[str, Page], pause: Callable[[], Awaitable[None]]) -> None:
        self._path = path
        self._pages = pages
        self._pause = pause

    async def serve(self) -> None:
        """Answers until cancelled. A socket file that a killed process left is replaced.

        Raises: OSError when the socket cannot be made.
        """
        listener = _listen(self._path)
        server = await asyncio.start_unix_server(self._talk, sock=listener, limit=_HEAD_LIMIT)
        async with server:
            await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        words = head.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ")
        path, _, query = words[1].partition("?") if len(words) == 3 else ("", "", "")
        if words[0] != "GET":
            writer.write(_refusal("405 Method Not Allowed", "only GET"))
        elif path not in self._pages:
            writer.write(_refusal("404 Not Found", f"there is {', '.join(self._pages)}"))
        else:
            try:
                lines = self._pages[path](parse_qs(query))
            except ValueError as failure:
                writer.write(_refusal("400 Bad Request", str(failure)))
            else:
                await self._send(lines, writer)
        await writer.drain()

    async def _send(self, lines: Iterator[str], writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        while piece := "".join(f"{line}\n" for line in islice(lines, _LINES)).encode():
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            async with asyncio.timeout(_STALLED_S):
                await writer.drain()
            await self._pause()
        writer.write(b"0\r\n\r\n")


def _refusal(status: str, problem: str) -> bytes:
    body = f"{problem}\n".encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


def _listen(path: Path) -> socket.socket:
    """A listening socket that takes the place of whatever is at the path, never readable for others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(fresh))
        fresh.chmod(0o600)
        listener.listen()
        fresh.replace(path)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
