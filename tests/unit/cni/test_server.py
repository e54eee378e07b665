"""The agent's end of the CNI socket: which requests are handled together, and how each of them ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from podwire.cni import protocol
from podwire.cni.protocol import CniRequest
from podwire.cni.server import TOGETHER, CniServer, Request
from podwire.observe.log import Log

CONF = b'{"cniVersion": "1.1.0", "name": "podwire"}'


class Pods:
    """Answers each request with its container; ``batches`` are the containers that were handled together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.batches: list[list[str]] = []
        self.waiting: asyncio.Event | None = None
        self.broken_at = -1
        self.server = CniServer(path, self.handle, Log("cni"), self.before, together=self.together)

    def handle(self, request: CniRequest, _netns: str) -> bytes:
        self.batches.append([request.key.container])
        return request.key.container.encode()

    def before(self, _request: CniRequest) -> Awaitable[None] | None:
        return None if self.waiting is None else self._until_open(self.waiting)

    async def _until_open(self, waiting: asyncio.Event) -> None:
        await waiting.wait()

    def together(
        self, requests: Sequence[Request], _alone: Callable[[CniRequest, str], bytes]
    ) -> Iterator[tuple[int, bytes]]:
        self.batches.append([request.key.container for request, _ in requests])
        for position, (request, _) in reversed(list(enumerate(requests))):
            if position == self.broken_at:
                raise RuntimeError("a mistake in the handler")
            yield position, protocol.DONE + request.key.container.encode()


async def call(path: Path, container: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    environment = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0"}
    writer.write(protocol.join(environment, CONF))
    writer.write_eof()
    try:
        return await reader.read()
    finally:
        writer.close()


def ask(pods: Pods, count: int, meanwhile: Callable[[], Any] = lambda: None) -> list[bytes]:
    """The answers to requests that all came in while the loop was busy."""

    async def scenario() -> list[bytes]:
        serving = asyncio.ensure_future(pods.server.run())
        await asyncio.sleep(0.05)
        calls = [asyncio.ensure_future(call(pods.path, f"c{number}")) for number in range(count)]
        await asyncio.sleep(0.1)
        meanwhile()
        answers = await asyncio.wait_for(asyncio.gather(*calls), 10)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return answers

    return asyncio.run(scenario())


def test_single_request_does_not_pass_the_batch(tmp_path: Path) -> None:
    pods = Pods(tmp_path / "s")
    assert ask(pods, 1) == [b"\0c0"]
    assert pods.batches == [["c0"]]


def test_requests_whose_wait_ends_together_are_handled_together(tmp_path: Path) -> None:
    pods = Pods(tmp_path / "s")
    pods.waiting = asyncio.Event()
    assert ask(pods, 5, pods.waiting.set) == [b"\0c%d" % number for number in range(5)]
    assert [sorted(batch) for batch in pods.batches] == [["c0", "c1", "c2", "c3", "c4"]]


def test_other_tasks_run_between_large_batches(tmp_path: Path) -> None:
    pods = Pods(tmp_path / "s")
    pods.waiting = asyncio.Event()
    count = TOGETHER + 3
    assert ask(pods, count, pods.waiting.set) == [b"\0c%d" % number for number in range(count)]
    assert [len(batch) for batch in pods.batches] == [TOGETHER, 3]


@pytest.mark.filterwarnings("error")
def test_a_mistake_in_a_batch_ends_every_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pods = Pods(tmp_path / "s")
    pods.waiting = asyncio.Event()
    pods.broken_at = 1
    answers = ask(pods, 4, pods.waiting.set)
    assert sorted(answers) == [b"", b"", b"\0c2", b"\0c3"], "without an answer the program says: try again later"
    assert "a mistake in the handler" in caplog.text
