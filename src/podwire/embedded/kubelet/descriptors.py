"""Reads and writes non-blocking file descriptors (pipes, terminals) in the event loop."""

import asyncio
import os

_CHUNK = 1 << 15


async def read_fd(fd: int) -> bytes:
    """The bytes that a non-blocking descriptor has, at least one; empty at its end."""
    while True:
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            await _ready(fd, reading=True)
        except OSError:  # EIO: no process has the other side of the terminal open.
            return b""


async def write_fd(fd: int, data: bytes) -> bool:
    """Writes everything to a non-blocking descriptor; False when the other end is closed."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            await _ready(fd, reading=False)
        except OSError:
            return False
    return True


async def _ready(fd: int, *, reading: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_reader, loop.remove_reader) if reading else (loop.add_writer, loop.remove_writer)

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(fd, wake)
    try:
        await ready
    finally:
        remove(fd)
