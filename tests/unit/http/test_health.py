"""The routes of a component, without a socket and over one."""

import asyncio

import pytest

from podwire.http.health import health_routes
from podwire.http.message import PROBE_LIMITS, Request, Response
from podwire.http.routes import dispatch
from podwire.http.server import HttpServer
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet

HANDLER = dispatch(health_routes(list, lambda: ["routing: no pod CIDR", "cni: no socket"], lambda: b"up 1\n"))


def ask(path: str, method: str = "GET") -> tuple[int, bytes]:
    answer = HANDLER(Request(method, path, {}, b""))
    assert isinstance(answer, Response)
    return answer.status, answer.body


def test_problems_are_answered_line_by_line() -> None:
    assert ask("/healthz") == ask("/livez") == (200, b"ok\n")
    assert ask("/readyz?verbose") == (503, b"routing: no pod CIDR\ncni: no socket\n")
    assert ask("/metrics") == (200, b"up 1\n")


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/metrics", 405), ("GET", "/x", 404)])
def test_other_methods_and_paths_are_refused(method: str, path: str, status: int) -> None:
    assert ask(path, method)[0] == status


def test_an_unknown_path_names_the_known_ones() -> None:
    assert ask("/x")[1] == b"no page /x; the pages are /healthz /livez /readyz /metrics\n"


async def exchange(port: int, sent: bytes) -> bytes:
    """What comes back until the server closes; empty when the server resets the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    writer.write_eof()
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def test_probe_connections_are_closed_after_one_answer() -> None:
    async def scenario() -> None:
        tasks = TaskSet(lambda name, failure: None)
        server = HttpServer(HANDLER, tasks, SystemClock(), PROBE_LIMITS)
        _, port = await server.listen("127.0.0.1", 0)
        answer = await exchange(port, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"Connection: close\r\n\r\nok\n")
        assert await exchange(port, b"GET /healthz") == b""
        assert b" 431 " in await exchange(port, b"GET /" + b"x" * (3 * PROBE_LIMITS.header_bytes))
        await server.close()

    asyncio.run(scenario())
