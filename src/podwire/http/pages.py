"""Pages of text lines over HTTP, and the unix socket on which a component serves them to users of its machine.

A page is an iterator of lines. 256 lines are rendered (about a millisecond) and sent as one HTTP chunk; then the event
loop runs once before the next 256 lines. So a page of a hundred megabytes does not take that memory and does not block
the loop. The empty chunk at the end marks a complete page. Only the socket's owner may connect (mode 0600), unlike the
health endpoint, which any machine on the node's network may read. The client is :mod:`podwire.http.fetch`; by hand::

    curl --unix-socket /run/podwire/agent.sock http://agent/state
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from urllib.parse import parse_qs

from podwire.http.answer import Handler, Result, Stream, Streaming
from podwire.http.message import PROBE_LIMITS, TEXT, Request, text_response
from podwire.http.routes import dispatch
from podwire.http.server import HttpServer
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet
from podwire.runtime.unixsockets import listen

Query = Mapping[str, list[str]]

Page = Callable[[Query], Iterator[str]]
"""From the query (``{"part": ["cni"]}``) to the lines without their ends. Raises: ValueError for a wrong query."""

_LINES = 256
_STALLED_S = 30.0


def page_routes(pages: Mapping[str, Page], tasks: TaskSet, clock: Clock) -> dict[str, Handler]:
    """A route for each page; ``tasks`` runs the sending of a page."""
    return {path: _handler(page, tasks, clock) for path, page in pages.items()}


def _handler(page: Page, tasks: TaskSet, clock: Clock) -> Handler:
    def handle(request: Request) -> Result:
        try:
            lines = page(parse_qs(request.raw_query))
        except ValueError as failure:
            return text_response(400, str(failure))
        return Streaming(lambda stream: _start(stream, lines, tasks, clock), 200, TEXT)

    return handle


def _start(stream: Stream, lines: Iterator[str], tasks: TaskSet, clock: Clock) -> None:
    sending = tasks.start("page", _send(stream, lines, clock))

    def stop() -> None:
        sending.cancel()

    stream.on_close = stop


async def _send(stream: Stream, lines: Iterator[str], clock: Clock) -> None:
    """Sends the lines; aborts the connection when rendering fails or the client reads nothing for 30 s."""
    complete = False
    try:
        while chunk := "".join(f"{line}\n" for line in islice(lines, _LINES)).encode():
            stream.write(chunk)
            async with asyncio.timeout(_STALLED_S):
                await stream.drain()
            await clock.sleep(0)
        complete = True
    except TimeoutError:
        pass
    finally:
        stream.on_close = None
        if complete:
            stream.close()
        else:
            stream.abort()


async def serve_pages(path: Path, pages: Mapping[str, Page], tasks: TaskSet, clock: Clock) -> None:
    """Answers on a unix socket until cancelled. Replaces the socket file of a killed process.

    Raises: OSError when the socket cannot be created.
    """
    server = HttpServer(dispatch(page_routes(pages, tasks, clock)), tasks, clock, PROBE_LIMITS)
    await server.listen_on(listen(path))
    await server.run()
