"""A minimal HTTP responder for probes and scrapes: GET, one reply, close."""

import asyncio
from collections.abc import Callable

Page = Callable[[], tuple[int, str, bytes]]
"""Makes a reply: status, content type, body."""

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_READ_S = 5.0


async def serve_pages(address: str, port: int, pages: dict[str, Page]) -> asyncio.Server:
    """Serves ``pages`` by path until the returned server is closed.

    Raises: OSError when the address cannot be bound.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_respond(head, pages))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, address, port, limit=8192)


def _respond(head: bytes, pages: dict[str, Page]) -> bytes:
    words = head.split(b"\r\n", 1)[0].split()
    method, target = (words[0], words[1].decode("latin-1")) if len(words) == 3 else (b"", "")
    page = pages.get(target.partition("?")[0])
    if method not in (b"GET", b"HEAD"):
        status, kind, body = 405, "text/plain", b"GET only\n"
    elif page is None:
        status, kind, body = 404, "text/plain", b"not found\n"
    else:
        status, kind, body = page()
    lines = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return lines.encode() + (b"" if method == b"HEAD" else body)
