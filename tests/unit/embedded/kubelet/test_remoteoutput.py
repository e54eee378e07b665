"""The output of an ended program: a slow client gets all of it, and a process left behind does not hold the session."""

import asyncio
import os

from podwire.embedded.kubelet.remoteoutput import RemoteOutput
from podwire.runtime.tasks import TaskSet

_LINE = b"x" * 4000


class SlowClient:
    """Takes one message at a time and needs ``turns`` turns of the event loop for each."""

    def __init__(self, turns: int) -> None:
        self.received = b""
        self._turns = turns

    def send(self, channel: int, data: bytes) -> None:
        assert channel == 1
        self.received += data

    async def drain(self) -> None:
        for _ in range(self._turns):
            await asyncio.sleep(0)


async def _session(client: SlowClient, *, left_open: bool, quiet_s: float) -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(lambda name, failure: failures.append(failure))
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    for _ in range(16):
        os.write(writer, _LINE)
    if not left_open:
        os.close(writer)
    output = RemoteOutput(client, ((reader, 1),), tasks, quiet_s)
    await asyncio.wait_for(output.finish(), 60)
    await tasks.close()
    for fd in (reader, writer) if left_open else (reader,):
        os.close(fd)
    assert failures == []


def test_a_slow_client_receives_everything() -> None:
    """No time at all is allowed for silence, and still nothing is lost while the client is busy."""
    client = SlowClient(turns=1000)
    asyncio.run(_session(client, left_open=False, quiet_s=0.0001))
    assert client.received == 16 * _LINE


def test_a_stream_left_open_ends_when_it_is_silent() -> None:
    client = SlowClient(turns=1)
    asyncio.run(_session(client, left_open=True, quiet_s=0.2))
    assert client.received == 16 * _LINE


def test_a_session_without_output_ends_at_once() -> None:
    async def run() -> None:
        output = RemoteOutput(SlowClient(0), (), TaskSet(lambda name, failure: None), quiet_s=3600)
        await asyncio.wait_for(output.finish(), 60)

    asyncio.run(run())
