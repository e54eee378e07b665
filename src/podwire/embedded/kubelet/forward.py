"""Port-forward: connections of the client to ports of the pod, made inside the pod's network namespace.

Two forms over WebSocket. ``SPDY/3.1+portforward.k8s.io`` carries SPDY: for each connection the client opens an error
stream and a data stream that name the port. The other subprotocols have a pair of channels for each port of the query,
data and error, which begin with the port's number. When a port refuses the connection, the error stream has the reason.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from podwire.embedded.kubelet.channels import NONE, V4, V4_BASE64, V5, Channels
from podwire.embedded.kubelet.spdy import Data, Opened, Reset, SpdySession
from podwire.errors import KernelError, ProtocolError
from podwire.kernel import netns
from podwire.runtime.tasks import TaskSet

if TYPE_CHECKING:
    from podwire.http.websocket import WebSocket

TUNNEL = "SPDY/3.1+portforward.k8s.io"
PROTOCOLS = (TUNNEL, V5, V4, V4_BASE64, NONE)
_CHUNK = 1 << 15
_CONNECT_S = 10.0


async def dial(path: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a port on the loopback of the network namespace at ``path`` (empty: this process's), IPv4 first.

    Raises: OSError, KernelError, TimeoutError.
    """
    loop = asyncio.get_running_loop()
    problem: OSError | None = None
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        connection = netns.run_inside(path or None, lambda family=family: socket.socket(family, socket.SOCK_STREAM))  # type: ignore[misc]
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.sock_connect(connection, (address, port))
            return await asyncio.open_connection(sock=connection)
        except OSError as failure:
            connection.close()
            problem = problem or failure
    assert problem is not None
    raise problem


class _Link:
    """One forwarded connection: a queue of data for the pod, and callbacks for data, failure and end."""

    def __init__(self, send: Callable[[bytes], None], fail: Callable[[str], None], done: Callable[[], None]) -> None:
        self.send = send
        self.fail = fail
        self.done = done
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        """Data for the pod; empty bytes end the connection's input."""


class PortForwarder:
    """Serves one client that forwards ports of one pod."""

    def __init__(self, path: str, connection: "WebSocket", tasks: TaskSet) -> None:
        self._path = path
        self._connection = connection
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()

    def _begin(self, link: _Link, port: int) -> None:
        task = self._tasks.start("forward", self._run(link, port))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, link: _Link, port: int) -> None:
        try:
            reader, writer = await dial(self._path, port)
        except (OSError, KernelError, TimeoutError) as failure:
            link.fail(f"failed to connect to localhost:{port} inside the pod: {failure}")
            link.done()
            return
        up = self._tasks.start("forward up", _pump_up(link, writer))
        try:
            while data := await reader.read(_CHUNK):
                link.send(data)
                await self._connection.drain()
        except OSError:
            pass
        finally:
            link.done()
            up.cancel()
            writer.close()

    async def serve_spdy(self) -> None:
        """Serves the tunnelled SPDY form until the client disconnects."""
        session = SpdySession()
        links: dict[int, _Link] = {}
        errors: dict[tuple[str, str], int] = {}
        try:
            while (message := await self._connection.receive()) is not None:
                for event in session.feed(message):
                    if isinstance(event, Opened):
                        self._open(session, links, errors, event)
                    elif isinstance(event, Data) and event.stream in links:
                        _deliver(links[event.stream], event)
                    elif isinstance(event, Reset) and event.stream in links:
                        links.pop(event.stream).incoming.put_nowait(b"")
                if session.reply:
                    self._write(session.reply)
                    session.reply = b""
        except ProtocolError:
            pass
        finally:
            self._end()

    def _write(self, data: bytes) -> None:
        self._connection.send(data)

    def _open(
        self, session: SpdySession, links: dict[int, _Link], errors: dict[tuple[str, str], int], event: Opened
    ) -> None:
        headers = event.headers
        key = (headers.get("port", ""), headers.get("requestid", ""))
        if not key[0].isdigit():
            self._write(session.refuse(event.stream))
            return
        self._write(session.accept(event.stream))
        if headers.get("streamtype") == "error":
            errors[key] = event.stream
            return
        stream, error = event.stream, errors.pop(key, 0)

        def fail(text: str) -> None:
            self._write(session.send(error, text.encode()))

        def done() -> None:
            links.pop(stream, None)
            self._write(session.send(stream, b"", fin=True) + session.send(error, b"", fin=True))

        link = links[stream] = _Link(lambda data: self._write(session.send(stream, data)), fail, done)
        self._begin(link, int(key[0]))

    async def serve_channels(self, channels: Channels, ports: tuple[int, ...]) -> None:
        """Serves the form with channels until the client disconnects; one connection per port."""
        links: dict[int, _Link] = {}
        for number, port in enumerate(ports):
            data_channel, error_channel = 2 * number, 2 * number + 1
            head = struct.pack("<H", port)
            channels.send(data_channel, head)
            channels.send(error_channel, head)
            links[2 * number] = link = _Link(
                lambda data, channel=data_channel: channels.send(channel, data),  # type: ignore[misc]
                lambda text, channel=error_channel: channels.send(channel, text.encode()),  # type: ignore[misc]
                self._connection.close if len(ports) == 1 else lambda: None,
            )
            self._begin(link, port)
        while (message := await channels.receive()) is not None:
            if message[0] in links:
                links[message[0]].incoming.put_nowait(message[1])
        self._end()

    def _end(self) -> None:
        for task in tuple(self._running):
            task.cancel()
        self._connection.close()


def _deliver(link: _Link, event: Data) -> None:
    if event.data:
        link.incoming.put_nowait(event.data)
    if event.fin:
        link.incoming.put_nowait(b"")


async def _pump_up(link: _Link, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await link.incoming.get():
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        return
