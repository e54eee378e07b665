"""The output of one exec or attach session on its way to the client.

A stream may stay open after its program has ended, because a background process of the program still holds it. The
session then ends when the stream has been silent for a time. A slow client still gets all output: the time starts again
whenever the client receives data, and does not run while the connection is full.
"""

import asyncio
from typing import Protocol

from podwire.embedded.kubelet.descriptors import read_fd
from podwire.runtime.tasks import TaskSet

_QUIET_S = 1.0
"""Seconds of silence on the streams of an ended program until the session ends."""


class OutputClient(Protocol):
    """The methods of :class:`podwire.embedded.kubelet.channels.Channels` that output needs."""

    def send(self, channel: int, data: bytes) -> None:
        """Queues bytes of a channel."""

    async def drain(self) -> None:
        """Waits until the connection takes more."""


class RemoteOutput:
    """Copies streams of a program to the client's channels until it is cancelled or the streams end."""

    def __init__(
        self, client: OutputClient, outputs: tuple[tuple[int, int], ...], tasks: TaskSet, quiet_s: float = _QUIET_S
    ) -> None:
        """``outputs`` has the non-blocking descriptor and the channel of each stream."""
        self._client = client
        self._quiet_s = quiet_s
        self._reads = 0
        self._sending = 0
        self.tasks = tuple(tasks.start("output", self._copy(fd, channel)) for fd, channel in outputs)

    async def finish(self) -> None:
        """Waits until the client has what an ended program wrote."""
        while any(not task.done() for task in self.tasks):
            reads = self._reads
            await asyncio.wait(self.tasks, timeout=self._quiet_s)
            if reads == self._reads and not self._sending:
                return

    async def _copy(self, fd: int, channel: int) -> None:
        while data := await read_fd(fd):
            self._reads += 1
            self._client.send(channel, data)
            self._sending += 1
            try:
                await self._client.drain()
            finally:
                self._sending -= 1
