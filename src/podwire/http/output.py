"""The output of one connection of the HTTP server: writes, waits for slow clients, and closes."""

import asyncio
from collections.abc import Callable


class ClientOutput:
    """Writes to one client; after the client has disconnected, writes are dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream_finished: Callable[[], None]) -> None:
        """``stream_finished`` is called when a streamed body is complete."""
        self.transport: asyncio.Transport | None = None
        """None before the connection is made, and after it is lost or handed over."""
        self._loop = loop
        self._stream_finished = stream_finished
        self._drained: asyncio.Future[None] | None = None
        self._paused = False

    def pause(self) -> None:
        """The client reads too slowly."""
        self._paused = True

    def resume(self) -> None:
        """The client reads fast enough again."""
        self._paused = False
        self.release()

    def release(self) -> None:
        """Ends the wait of :meth:`drain`."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def stream_finished(self) -> None:
        """The streamed body is complete."""
        self._stream_finished()

    def send(self, data: bytes) -> None:
        """Writes to the client if it is still connected."""
        if self.transport is not None:
            self.transport.write(data)

    def buffered(self) -> int:
        """Bytes that the client has not read yet."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    async def drain(self) -> None:
        """Returns when the write buffer is low, or the client has disconnected."""
        if self._paused and self.transport is not None:
            self._drained = self._loop.create_future()
            await self._drained

    def abort(self) -> None:
        """Closes the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Closes after the buffered data has been sent."""
        if self.transport is not None:
            self.transport.close()

    def expire(self) -> None:
        """Closes an overdue connection; aborts it when the client has not read the rest since the last call."""
        if self.transport is not None and self.transport.is_closing():
            self.transport.abort()
        else:
            self.close()
