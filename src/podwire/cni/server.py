"""The agent's end of the CNI socket.

A request is read to its end, passed to one handler together with the namespace's descriptor, and answered.
Requests are handled one after the other: each takes about a millisecond, most of it under the kernel's own
rtnetlink lock, so threads would only wait for each other. While a request waits before it is handled (``before``) or
before it is answered (``after``), other requests continue. A known failure is answered as an error of the
specification; an unexpected failure as code 999, with its traceback in the log.

Guarantees: 1. a request that ends before its frame is complete changes nothing; 2. a descriptor that was passed is
closed when its request is answered; 3. a socket file left by a killed agent is replaced; 4. no more than
:data:`protocol.LIMIT` bytes of a request are kept.
"""

import array
import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from podwire.cni import protocol, spec
from podwire.cni.delegation import Demand
from podwire.errors import CniError, PodwireError
from podwire.observe.log import Log
from podwire.runtime.tasks import TaskSet
from podwire.runtime.unixsockets import listen

Handler = Callable[[protocol.CniRequest, str], bytes]
"""Answers a request, given the path under which its namespace can be opened (empty when it cannot)."""
Before = Callable[[protocol.CniRequest], Awaitable[None] | None]
"""Returns what to await before a request is handled, or None. Raises: CniError, which is the answer then."""
After = Callable[[protocol.CniRequest, str], Awaitable[None] | None]
"""Returns what to await between handling a request and sending its answer, or None. Raises nothing."""
Answer = bytes | Coroutine[Any, Any, bytes]

_BACKLOG = 256
_CHUNK_BYTES = 1 << 16
_ANCILLARY_BYTES = socket.CMSG_SPACE(struct.calcsize("i"))
_SEND_S = 1.0
"""The time limit for a program that does not read its answer (an answer fits into the socket's buffer)."""


class CniServer:
    """Listens on a unix socket and answers CNI requests."""

    def __init__(
        self,
        path: Path,
        handler: Handler,
        log: Log,
        before: Before = lambda _: None,
        after: After = lambda _request, _netns: None,
    ) -> None:
        self._path = path
        self._handler = handler
        self._log = log
        self._before = before
        self._after = after
        self._waiting = TaskSet(lambda task, failure: log.error("cni request failed", failure=failure, task=task))

    async def run(self) -> None:
        """Serves until cancelled."""
        listener = listen(self._path, _BACKLOG)
        loop = asyncio.get_running_loop()
        connections: set[socket.socket] = set()
        loop.add_reader(listener, self._accept, listener, connections)
        try:
            await loop.create_future()
        finally:
            loop.remove_reader(listener)
            listener.close()
            await self._waiting.close()
            for connection in tuple(connections):
                loop.remove_reader(connection)
                connection.close()

    def _accept(self, listener: socket.socket, connections: set[socket.socket]) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        connections.add(connection)
        Conversation(connection, self._answer, connections.discard, self._waiting).start()

    def _answer(self, message: bytes, descriptor: int) -> Answer:
        try:
            request = protocol.parse(*protocol.split(message))
            waiting = self._before(request)
        except CniError as failure:
            return b"\1" + spec.render_error(failure, _version_of(message))
        netns = f"/proc/self/fd/{descriptor}" if descriptor >= 0 else _visible(request.netns)
        if waiting is not None:
            return self._handle_after(waiting, request, netns)
        answer = self._handle(request, netns)
        wait = self._after(request, netns)
        return answer if wait is None else _answer_after(wait, answer)

    async def _handle_after(self, waiting: Awaitable[None], request: protocol.CniRequest, netns: str) -> bytes:
        try:
            await waiting
        except CniError as failure:
            return b"\1" + spec.render_error(failure, request.conf.cni_version)
        answer = self._handle(request, netns)
        wait = self._after(request, netns)
        return answer if wait is None else await _answer_after(wait, answer)

    def _handle(self, request: protocol.CniRequest, netns: str) -> bytes:
        version = request.conf.cni_version
        try:
            return b"\0" + self._handler(request, netns)
        except Demand as demand:
            return demand.message
        except CniError as failure:
            return b"\1" + spec.render_error(failure, version)
        except (PodwireError, OSError, ValueError) as failure:
            self._log.error("cni request failed", failure=failure)
            return b"\1" + spec.render_error(CniError(spec.INTERNAL, str(failure)), version)


async def _answer_after(waiting: Awaitable[None], answer: bytes) -> bytes:
    await waiting
    return answer


class Conversation:
    """One request and its answer, read in callbacks of readable events; a task runs only while an answer must wait."""

    def __init__(
        self,
        connection: socket.socket,
        answer: Callable[[bytes, int], Answer],
        ended: Callable[[socket.socket], None],
        waiting: TaskSet,
    ) -> None:
        self._connection = connection
        self._answer = answer
        self._ended = ended
        self._waiting = waiting
        self._message = bytearray()
        self._descriptor = -1
        self._loop = asyncio.get_running_loop()
        self._watched = False

    def start(self) -> None:
        """Reads the request: at once what there is, and the rest when it comes."""
        self._read()

    def _read(self) -> None:
        while True:
            try:
                chunk, ancillary, _, _ = self._connection.recvmsg(_CHUNK_BYTES, _ANCILLARY_BYTES)
            except BlockingIOError:
                if not self._watched:
                    self._watched = True
                    self._loop.add_reader(self._connection, self._read)
                return
            except OSError:
                self._end()
                return
            self._keep_descriptor(ancillary)
            self._message += chunk
            if len(self._message) > protocol.LIMIT + _CHUNK_BYTES:
                self._end()
                return
            if not chunk:
                self._unwatch()
                self._reply()
                return

    def _keep_descriptor(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                for descriptor in array.array("i", data[: len(data) - len(data) % 4]):
                    if self._descriptor >= 0:
                        os.close(descriptor)
                    else:
                        self._descriptor = descriptor

    def _reply(self) -> None:
        """Answers and always ends the connection: without an answer the program reports "try again later"."""
        answer: Answer = b""
        try:
            if self._message:
                answer = self._answer(bytes(self._message), self._descriptor)
        finally:
            if isinstance(answer, bytes):
                self._send(answer)
        if not isinstance(answer, bytes):
            self._waiting.start("cni request", self._send_later(answer))

    async def _send_later(self, answer: Coroutine[Any, Any, bytes]) -> None:
        message = b""
        try:
            message = await answer
        finally:
            self._send(message)

    def _send(self, answer: bytes) -> None:
        try:
            sent = self._connection.send(answer) if answer else 0
            if sent < len(answer):
                self._connection.settimeout(_SEND_S)
                self._connection.sendall(answer[sent:])
        except OSError:
            pass
        finally:
            self._end()

    def _unwatch(self) -> None:
        if self._watched:
            self._loop.remove_reader(self._connection)
            self._watched = False

    def _end(self) -> None:
        self._unwatch()
        self._connection.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._ended(self._connection)


def _version_of(message: bytes) -> str:
    """The CNI version for an error about a message, which may be malformed."""
    try:
        _, stdin = protocol.split(message)
        return spec.parse_config(spec.decode_config(stdin)).cni_version
    except CniError:
        return spec.VERSIONS[-2]


def _visible(netns: str) -> str:
    return netns if netns and Path(netns).exists() else ""
