"""Pages over a unix socket: whole, refused, broken off, and what else the loop does meanwhile."""

import asyncio
import socket
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from podwire.errors import ProtocolError
from podwire.http.fetch import fetch
from podwire.http.pages import Page, Query, serve_pages
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet

T = TypeVar("T")


def answers(path: Path) -> None:
    """Returns when somebody listens."""
    until = time.monotonic() + 60
    while True:
        with socket.socket(socket.AF_UNIX) as item:
            try:
                item.connect(str(path))
            except OSError:
                assert time.monotonic() < until, "nobody listens"
                time.sleep(0.001)
            else:
                return


def served(path: Path, page: Page, body: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        tasks = TaskSet(lambda name, failure: None)
        server = asyncio.ensure_future(serve_pages(path, {"/state": page}, tasks, SystemClock()))
        try:
            await asyncio.to_thread(answers, path)
            return await body()
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)

    return asyncio.run(main())


def ask(path: Path, target: str = "/state", page: Page = lambda _: iter(("a", "b"))) -> list[str]:
    return served(path, page, lambda: asyncio.to_thread(lambda: list(fetch(path, target))))


def test_a_page_comes_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    asked: list[Query] = []

    def page(query: Query) -> Iterator[str]:
        asked.append(query)
        return (f"line {number}" for number in range(1000))

    assert ask(path, "/state?part=cni&part=proxy", page) == [f"line {n}\n" for n in range(1000)]
    assert asked == [{"part": ["cni", "proxy"]}]
    assert ask(path, "/state", lambda _: iter(())) == []


def test_the_socket_is_private_and_replaces_a_stale_one(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def mode() -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert served(path, lambda _: iter(("x",)), mode) == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["agent.sock"]


def refuse(_: Query) -> Iterator[str]:
    raise ValueError("no part x; there is cni")


@pytest.mark.parametrize(
    ("target", "arguments"),
    [("/else", "no page /else; the pages are /state"), ("/state?part=x", "no part x; there is")],
)
def test_wrong_queries_and_paths_are_refused(tmp_path: Path, target: str, arguments: str) -> None:
    with pytest.raises(ProtocolError, match=arguments):
        ask(tmp_path / "s", target, refuse)


def test_only_get(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def post() -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"POST /state HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    assert served(path, lambda _: iter(()), post).startswith(b"HTTP/1.1 405")


def test_an_incomplete_page_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    async def answer() -> list[str]:
        reading = asyncio.ensure_future(asyncio.to_thread(lambda: list(fetch(path, "/state"))))
        with (await asyncio.to_thread(listener.accept))[0] as item:
            item.recv(4096)
            item.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nab\n")
        return await reading

    with listener, pytest.raises(ProtocolError, match="incomplete"):
        asyncio.run(answer())


def test_a_silent_socket_times_out(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(FileNotFoundError):
        list(fetch(path, "/state"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        with pytest.raises(ConnectionRefusedError):
            list(fetch(path, "/state"))
        listener.listen()
        with pytest.raises(TimeoutError):
            list(fetch(path, "/state", 0.05))


def test_a_long_page_does_not_block_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "s"
    since = worst = 0

    def long(_: Query) -> Iterator[str]:
        nonlocal since, worst
        for number in range(20_000):
            since += 1
            worst = max(worst, since)
            yield f"{number:040}"

    async def other_work() -> None:
        nonlocal since
        while True:
            since = 0
            await asyncio.sleep(0)

    async def body() -> int:
        other = asyncio.ensure_future(other_work())
        try:
            return await asyncio.to_thread(lambda: sum(1 for _ in fetch(path, "/state")))
        finally:
            other.cancel()

    assert served(path, long, body) == 20_000
    assert worst <= 512, "lines that were made between two rounds of the loop"
