"""The few lines of HTTP that health endpoints need: one GET, one answer, closed.

Requests other than GET, heads above 8 KiB, and clients that take more than 10 s are refused or dropped. What answers
is a function from the path to bytes, so every endpoint is tested without a socket.
"""

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from podwire.observe.pages import Page

Answer = Callable[[str], bytes]
"""From a path without its query to the whole answer (:func:`response`)."""

Pages = Mapping[str, Page]
"""Pages by path, which are given the query as well, and are sent whole."""
NO_PAGES: Pages = {}

HEAD_LIMIT = 8192
_REQUEST_S = 10.0


def response(
    status: str, body: bytes, kind: str = "text/plain; charset=utf-8", headers: Mapping[str, str] | None = None
) -> bytes:
    """A whole answer; ``status`` is such as ``200 OK``, ``headers`` come behind the usual ones."""
    fields = {"content-type": kind, "content-length": str(len(body)), "connection": "close", **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def reply(head: bytes, answer: Answer, pages: Pages = NO_PAGES) -> bytes:
    """The answer to a request's head; ``answer`` is asked for what is none of the ``pages``."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or words[0] != b"GET":
        return response("405 Method Not Allowed", b"only GET\n")
    path, _, query = words[1].decode("ascii", "replace").partition("?")
    if path not in pages:
        return answer(path)
    try:
        lines = pages[path](parse_qs(query))
    except ValueError as failure:
        return response("400 Bad Request", f"{failure}\n".encode())
    return response("200 OK", "".join(f"{line}\n" for line in lines).encode())


async def talk(
    answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pages: Pages = NO_PAGES
) -> None:
    """Serves one connection, to its end."""
    try:
        async with asyncio.timeout(_REQUEST_S):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(reply(head, answer, pages))
            await writer.drain()
    except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()
