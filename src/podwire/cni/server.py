"""The agent's end of the CNI socket.

A request is read to its end, passed to one handler together with the namespace's descriptor, and answered.
Requests are handled one after the other: each takes about a millisecond, most of it under the kernel's own
rtnetlink lock, so threads would only wait for each other. Requests that came in while another one was handled are
handled together (``together``, docs/adr/0027-cni-batches.md). While a request waits before it is handled (``before``)
or before it is answered (``after``), other requests continue. A known failure is answered as an error of the
specification; an unexpected failure as code 999, with its traceback in the log.

Guarantees: 1. a request that ends before its frame is complete changes nothing; 2. a descriptor that was passed is
closed when its request is answered; 3. a socket file left by a killed agent is replaced; 4. no more than
:data:`protocol.LIMIT` bytes of a request are kept; 5. no more than :data:`TOGETHER` requests are handled before other
tasks of the agent run.
"""

import array
import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
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
Request = tuple[protocol.CniRequest, str]
"""A request, and the path under which its namespace can be opened (empty when it cannot)."""
Together = Callable[[Sequence[Request], Callable[[protocol.CniRequest, str], bytes]], Iterator[tuple[int, bytes]]]
"""Handles requests that waited together; yields each one's position and answer as soon as it is handled.

The function in the argument handles one request alone and returns its answer.
"""
Answer = bytes | Coroutine[Any, Any, bytes]

TOGETHER = 16
"""The most requests that are handled together: they keep other tasks waiting for some 10 ms."""
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
        together: Together | None = None,
    ) -> None:
        """``together`` None: requests that waited together are handled one by one."""
        self._path = path
        self._handler = handler
        self._log = log
        self._before = before
        self._after = after
        self._together = together or _one_by_one
        self._waiting = TaskSet(lambda task, failure: log.error("cni request failed", failure=failure, task=task))
        self._released: list[tuple[Request, asyncio.Future[bytes]]] = []
        """Requests whose wait has ended, until they are handled in this iteration of the loop."""

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
        """Accepts all connections that wait; their requests are complete unless a program was interrupted."""
        complete: list[Conversation] = []
        for _ in range(TOGETHER):
            try:
                connection, _ = listener.accept()
            except OSError:
                break
            connection.setblocking(False)
            connections.add(connection)
            conversation = Conversation(connection, self._reply, connections.discard)
            if conversation.read():
                complete.append(conversation)
        if len(complete) == 1:
            self._reply(complete[0])
        elif complete:
            self._reply_together(complete)

    def _reply(self, conversation: "Conversation") -> None:
        """Answers and always ends the connection: without an answer the program reports "try again later"."""
        answer: Answer = b""
        try:
            admitted = self._admit(conversation)
            answer = self._answer(admitted, self._handle(*admitted)) if isinstance(admitted, tuple) else admitted
        finally:
            self._send(conversation, answer)

    def _reply_together(self, conversations: Sequence["Conversation"]) -> None:
        """The same for requests that waited together; each is answered as soon as it is handled."""
        waiting = list(conversations)
        try:
            requests: list[Request] = []
            senders: list[Conversation] = []
            for conversation in conversations:
                admitted = self._admit(conversation)
                if isinstance(admitted, tuple):
                    requests.append(admitted)
                    senders.append(conversation)
                else:
                    waiting.remove(conversation)
                    self._send(conversation, admitted)
            for position, answer in self._handled(requests):
                waiting.remove(senders[position])
                self._send(senders[position], self._answer(requests[position], answer))
        finally:
            for conversation in waiting:
                conversation.send(b"")

    def _admit(self, conversation: "Conversation") -> Request | Answer:
        """The request of a conversation when it can be handled at once, otherwise its answer."""
        message, descriptor = conversation.message, conversation.descriptor
        if not message:
            return b""
        try:
            request = protocol.parse(*protocol.split(message))
            waiting = self._before(request)
        except CniError as failure:
            return b"\1" + spec.render_error(failure, _version_of(message))
        netns = f"/proc/self/fd/{descriptor}" if descriptor >= 0 else _visible(request.netns)
        return (request, netns) if waiting is None else self._handle_after(waiting, (request, netns))

    def _answer(self, request: Request, answer: bytes) -> Answer:
        """The answer to a request that was handled, which may have to wait."""
        wait = self._after(*request)
        return answer if wait is None else _answer_after(wait, answer)

    async def _handle_after(self, waiting: Awaitable[None], request: Request) -> bytes:
        try:
            await waiting
        except CniError as failure:
            return b"\1" + spec.render_error(failure, request[0].conf.cni_version)
        loop = asyncio.get_running_loop()
        handled = loop.create_future()
        self._released.append((request, handled))
        if len(self._released) == 1:
            loop.call_soon(self._handle_released)
        answer = await handled
        wait = self._after(*request)
        return answer if wait is None else await _answer_after(wait, answer)

    def _handle_released(self) -> None:
        """Handles the requests whose wait has ended; without an answer they end with an error of the task."""
        released, self._released = self._released[:TOGETHER], self._released[TOGETHER:]
        if self._released:
            asyncio.get_running_loop().call_soon(self._handle_released)
        released = [(request, handled) for request, handled in released if not handled.done()]
        try:
            for position, answer in self._handled([request for request, _ in released]):
                _resolve(released[position][1], answer)
        finally:
            for _, handled in released:
                handled.cancel()

    def _handled(self, requests: Sequence[Request]) -> Iterator[tuple[int, bytes]]:
        """Positions and answers of requests; a single one is not a batch."""
        if len(requests) > 1:
            yield from self._together(requests, self._handle)
        elif requests:
            yield 0, self._handle(*requests[0])

    def _send(self, conversation: "Conversation", answer: Answer) -> None:
        if isinstance(answer, bytes):
            conversation.send(answer)
        else:
            self._waiting.start("cni request", conversation.send_later(answer))

    def _handle(self, request: protocol.CniRequest, netns: str) -> bytes:
        version = request.conf.cni_version
        try:
            return protocol.DONE + self._handler(request, netns)
        except Demand as demand:
            return demand.message
        except CniError as failure:
            return b"\1" + spec.render_error(failure, version)
        except (PodwireError, OSError, ValueError) as failure:
            self._log.error("cni request failed", failure=failure)
            return b"\1" + spec.render_error(CniError(spec.INTERNAL, str(failure)), version)


def _one_by_one(
    requests: Sequence[Request], handle: Callable[[protocol.CniRequest, str], bytes]
) -> Iterator[tuple[int, bytes]]:
    for position, request in enumerate(requests):
        yield position, handle(*request)


def _resolve(handled: "asyncio.Future[bytes]", answer: bytes) -> None:
    """Hands over an answer; the task that waits for it may be cancelled already."""
    if not handled.done():
        handled.set_result(answer)


async def _answer_after(waiting: Awaitable[None], answer: bytes) -> bytes:
    await waiting
    return answer


class Conversation:
    """One request and its answer, read in callbacks of readable events; a task runs only while an answer must wait."""

    def __init__(
        self,
        connection: socket.socket,
        complete: Callable[["Conversation"], None],
        ended: Callable[[socket.socket], None],
    ) -> None:
        """``complete`` is called when the request is complete and :meth:`read` did not say so."""
        self._connection = connection
        self._complete = complete
        self._ended = ended
        self._received = bytearray()
        self.descriptor = -1
        """The namespace that the program handed over; -1: none."""
        self._loop = asyncio.get_running_loop()
        self._watched = False

    @property
    def message(self) -> bytes:
        """What was received."""
        return bytes(self._received)

    def read(self) -> bool:
        """Reads what there is, and the rest when it comes; whether the request is complete already."""
        while True:
            try:
                chunk, ancillary, _, _ = self._connection.recvmsg(_CHUNK_BYTES, _ANCILLARY_BYTES)
            except BlockingIOError:
                if not self._watched:
                    self._watched = True
                    self._loop.add_reader(self._connection, self._read_more)
                return False
            except OSError:
                self._end()
                return False
            if ancillary:
                self._keep_descriptor(ancillary)
            self._received += chunk
            if len(self._received) > protocol.LIMIT + _CHUNK_BYTES:
                self._end()
                return False
            if not chunk:
                self._unwatch()
                return True

    def _read_more(self) -> None:
        if self.read():
            self._complete(self)

    def _keep_descriptor(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                for descriptor in array.array("i", data[: len(data) - len(data) % 4]):
                    if self.descriptor >= 0:
                        os.close(descriptor)
                    else:
                        self.descriptor = descriptor

    async def send_later(self, answer: Coroutine[Any, Any, bytes]) -> None:
        """Sends an answer when it is there, and ends the connection in any case."""
        message = b""
        try:
            message = await answer
        finally:
            self.send(message)

    def send(self, answer: bytes) -> None:
        """Sends the answer, if any, and ends the connection."""
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
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
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
