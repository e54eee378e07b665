"""The kubelet's side of a shim's socket.

The kubelet has one :class:`ShimClient` per pod. Requests have numbers, answers arrive in any order, events go to a
callback. The client uses the socket without asyncio streams, because descriptors travel with the requests. When the
connection ends, all open requests fail and ``lost`` is called once.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from podwire.embedded.kubelet.orders import ContainerOrder, ExecOrder, ShimAnswer, ShimRequest
from podwire.errors import ClusterError
from podwire.runtime import messages

_CHUNK = 1 << 16
_ANSWER_S = 30.0


def listen(path: Path) -> socket.socket:
    """A listening socket at ``path``, which replaces an older socket.

    The socket is bound through a descriptor of its directory, so ``path`` may be longer than a socket address.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with _directory(path) as directory:
        listener.bind(f"/proc/self/fd/{directory.fileno()}/{path.name}")
    listener.listen(4)
    return listener


class _Directory:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def __enter__(self) -> "_Directory":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _directory(path: Path) -> _Directory:
    return _Directory(os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))


class ShimClient:
    """A connection to one shim."""

    def __init__(self, connected: socket.socket, event: Callable[[ShimAnswer], None], lost: Callable[[], None]) -> None:
        self._socket = connected
        self._event = event
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[ShimAnswer]] = {}
        self._number = 0
        self._buffer = b""
        self._sending = asyncio.Lock()
        self.open = True
        self._loop.add_reader(connected, self._read)

    @classmethod
    def connect(cls, path: Path, event: Callable[[ShimAnswer], None], lost: Callable[[], None]) -> "ShimClient":
        """Connects to the shim that listens at ``path``.

        Raises: OSError when no shim listens there.
        """
        connection = socket.socket(socket.AF_UNIX)
        try:
            with _directory(path) as directory:
                connection.connect(f"/proc/self/fd/{directory.fileno()}/{path.name}")
        except OSError:
            connection.close()
            raise
        connection.setblocking(False)
        return cls(connection, event, lost)

    async def start(self, order: ContainerOrder) -> ShimAnswer:
        """Starts a container; the answer has the pid, and the problem when the container did not start.

        Raises: ClusterError when the pod's shim process has ended.
        """
        return await self._ask(ShimRequest(number=self._next(), verb="start", start=order, container=order.name))

    async def exec(self, order: ExecOrder, fds: Sequence[int]) -> ShimAnswer:
        """Runs a program with three descriptors as input, output and errors; an event with its pid reports its end.

        Raises: ClusterError.
        """
        return await self._ask(ShimRequest(number=self._next(), verb="exec", exec=order), fds)

    async def signal(self, container: str, number: int, *, pid: int = 0) -> None:
        """Sends a signal to a container's first process, or to the exec'd process ``pid``.

        Raises: ClusterError.
        """
        await self._ask(ShimRequest(number=self._next(), verb="signal", container=container, signal=number, pid=pid))

    async def attach(self, container: str, fds: Sequence[int]) -> ShimAnswer:
        """Copies a container's output to ``fds[0]`` and its errors to ``fds[1]``, and feeds its input from ``fds[2]``.

        Raises: ClusterError.
        """
        return await self._ask(ShimRequest(number=self._next(), verb="attach", container=container), fds)

    async def end(self) -> None:
        """Tells the shim to end; its remaining children get SIGKILL."""
        if self.open:
            try:
                await self._ask(ShimRequest(number=self._next(), verb="close"))
            except ClusterError:
                pass
        self.close()

    def close(self) -> None:
        """Closes the connection; the shim and its containers keep running."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._fail()

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _ask(self, request: ShimRequest, fds: Sequence[int] = ()) -> ShimAnswer:
        if not self.open:
            raise ClusterError("the pod's shim process has ended")
        answer: asyncio.Future[ShimAnswer] = self._loop.create_future()
        self._waiting[request.number] = answer
        data = messages.frame(msgspec.msgpack.encode(request))
        try:
            async with self._sending, asyncio.timeout(_ANSWER_S):
                sent = 0
                if fds:
                    sent = socket.send_fds(self._socket, [data], list(fds))
                await self._loop.sock_sendall(self._socket, data[sent:])
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except (OSError, TimeoutError) as failure:
            raise ClusterError(f"the shim does not answer: {failure}") from failure
        finally:
            self._waiting.pop(request.number, None)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._lost()
            return
        bodies, self._buffer = messages.split(self._buffer + data)
        for body in bodies:
            self._take(msgspec.msgpack.decode(body, type=ShimAnswer))

    def _take(self, answer: ShimAnswer) -> None:
        if answer.number == 0:
            self._event(answer)
            return
        waiting = self._waiting.pop(answer.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _fail(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClusterError("the pod's shim process has ended"))
        self._waiting.clear()
