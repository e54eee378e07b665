"""Keep-alive connections to one API server, and HTTP exchanges on them.

A read whose idle connection turns out to be closed is sent again on a new connection. A write is not sent again,
because the server may have done it. :mod:`podwire.kube.patience` says which answers lead to another try.

A new connection costs both ends some two milliseconds of CPU, ten times a small request. Many writes may come at once,
so a write waits a moment for a busy connection before it opens another one. A read does not wait: it may be the list
before a watch. Connections resume the TLS session of the first one, which halves their cost.

Cost: no task or thread while idle.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from podwire.errors import ApiError, ApiUnreachable, Disconnected
from podwire.http.client import ClientConnection, connect
from podwire.kube.config import ApiConfig
from podwire.kube.decode import decode_failure
from podwire.kube.patience import RETRIES, pause_s, retry_after_s
from podwire.kube.request import ApiAnswer, ApiRequest, RequestEncoder

_MAX_CONNECTIONS = 32
_FIRST_ANSWER_S = 0.1
"""How long other connections wait until the first one has an answer, and thus a session to resume."""


class ApiCall(NamedTuple):
    """A request that has ended; ``status`` is 0 without an answer.

    ``waited_s`` is how long the request waited for others, ``seconds`` how long it took after that.
    """

    method: str
    status: int
    seconds: float
    waited_s: float = 0.0


class _NoAnswerBegan(TimeoutError):
    """No answer began within ``ApiConfig.answer_s``."""


class ApiConnections:
    """Connections to one API server; at most 32 exchanges run at once, streams are not counted."""

    def __init__(self, config: ApiConfig, encoder: RequestEncoder) -> None:
        self.config = config
        self._encoder = encoder
        self._tls = config.ssl_context()
        self._certificate = b""
        """The client certificate of the credential program."""
        self._renewal = asyncio.Lock()
        self._idle: list[ClientConnection] = []
        self._busy = 0
        """The number of exchanges that have a connection, or open one; each returns its connection."""
        self._waiting: deque[asyncio.Future[ClientConnection]] = deque()
        self._exchanges = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._first_answered: asyncio.Event | None = None
        """Set when the first connection has an answer; None before the first connection."""
        self.observe: Callable[[ApiCall], None] = lambda _call: None
        """Called with each request that has ended; of a stream, when its answer begins."""

    def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().abort()

    async def exchange(self, request: ApiRequest) -> ApiAnswer:
        """The whole answer, whatever its status.

        Raises: ApiUnreachable.
        """
        clock, status = self._encoder.clock, 0
        asked_s = clock.monotonic()
        async with self._exchanges:
            begun_s = clock.monotonic()
            try:
                async with asyncio.timeout(self.config.timeout_s):
                    answer = await self._exchange_patiently(request)
                status = answer.status
                return answer
            except Disconnected as failure:
                raise ApiUnreachable(str(failure)) from failure
            except TimeoutError as failure:
                raise self._timed_out(request, failure) from failure
            finally:
                self.observe(ApiCall(request.method, status, clock.monotonic() - begun_s, begun_s - asked_s))

    async def open_stream(self, request: ApiRequest) -> ClientConnection:
        """A connection on which an answer has begun; the caller reads the body and aborts the connection.

        An idle connection is used where there is one: a watch then follows its list without a new connection.

        Raises: ApiError when the status is a failure, ApiUnreachable.
        """
        clock, status = self._encoder.clock, 0
        begun_s = clock.monotonic()
        try:
            async with asyncio.timeout(self.config.timeout_s):
                await self._renew_credentials()
                connection = await self._begin_stream(self._encoder.encode(request))
            status = connection.status
            return connection
        except ApiError as failure:
            status = failure.code
            raise
        except Disconnected as failure:
            raise ApiUnreachable(str(failure)) from failure
        except TimeoutError as failure:
            raise self._timed_out(request, failure) from failure
        finally:
            self.observe(ApiCall(request.method, status, clock.monotonic() - begun_s))

    async def _begin_stream(self, data: bytes) -> ClientConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                try:
                    return await self._begin_stream_on(connection, data)
                except Disconnected:
                    if not connection.untouched:
                        raise
        return await self._begin_stream_on(await self._connect(), data)

    async def _begin_stream_on(self, connection: ClientConnection, data: bytes) -> ClientConnection:
        try:
            connection.send(data)
            await self._wait_for_head(connection)
            if connection.status >= 400:
                raise await self._refusal(connection)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _refusal(self, connection: ClientConnection) -> ApiError:
        """The error of a refused stream; ``details`` has the seconds after which the server wants to be asked again."""
        if connection.status == 401:
            self._encoder.forget()
        failure = decode_failure(connection.status, await connection.body())
        delay = retry_after_s(connection.headers)
        if delay is not None:
            failure.details = {**failure.details, "retryAfterSeconds": delay}
        return failure

    async def _exchange_patiently(self, request: ApiRequest) -> ApiAnswer:
        """One answer; the request is sent again where the API server asks for it, and once with new credentials."""
        clock, renewed = self._encoder.clock, False
        until = math.inf if self.config.timeout_s is None else clock.monotonic() + self.config.timeout_s
        for remaining in reversed(range(RETRIES + 1)):
            await self._renew_credentials()
            answer = await self._exchange(request)
            if answer.status == 401 and not renewed and self._encoder.forget():
                renewed = True
                continue
            pause = pause_s(answer.status, answer.headers, request.path, is_read=request.is_read)
            if pause is None or not remaining or clock.monotonic() + pause >= until:
                break
            await clock.sleep(pause)
        return answer

    async def _renew_credentials(self) -> None:
        """Runs the credential program when it is time; a new client certificate needs new connections.

        Raises: ApiUnreachable.
        """
        if not self._encoder.needs_program:
            return
        async with self._renewal:
            if not self._encoder.needs_program:
                return  # another request has renewed them meanwhile
            await asyncio.to_thread(self._encoder.run_program)
            credentials = self._encoder.credentials
            if credentials is not None and credentials.certificate != self._certificate:
                self._certificate = credentials.certificate
                own = replace(self.config, certificate=credentials.certificate, key=credentials.key)
                self._tls = own.ssl_context()
                self.close()

    async def _exchange(self, request: ApiRequest) -> ApiAnswer:
        data = self._encoder.encode(request)
        while (connection := await self._take_connection(request)) is not None:
            if not connection.alive:
                continue
            try:
                return await self._exchange_on(connection, data)
            except Disconnected:
                if not request.is_read or not connection.untouched:
                    raise
        return await self._exchange_on(None, data)

    async def _take_connection(self, request: ApiRequest) -> ClientConnection | None:
        """A connection that was used before; None when the request is to open a new one."""
        if self._idle:
            return self._idle.pop()
        return None if request.is_read else await self._wait_for_busy()

    async def _wait_for_busy(self) -> ClientConnection | None:
        """A connection that another exchange has given back; None when a new one is to be opened."""
        while busy := self._busy:
            turn: asyncio.Future[ClientConnection] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                async with asyncio.timeout(self.config.turn_s * busy):
                    return await turn
            except TimeoutError:
                if not turn.cancelled():
                    return turn.result()
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self.give_back(turn.result())
                raise
            if self._busy <= busy:
                break  # No other exchange has opened a connection meanwhile.
        return None

    def give_back(self, connection: ClientConnection) -> None:
        """Hands a connection to the exchange that has waited longest, or keeps it idle."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        self._idle.append(connection)

    async def _exchange_on(self, connection: ClientConnection | None, data: bytes) -> ApiAnswer:
        """One exchange on a connection; None: on a new one."""
        self._busy += 1
        try:
            return await self._send_and_read(connection or await self._connect(), data)
        finally:
            self._busy -= 1

    async def _send_and_read(self, connection: ClientConnection, data: bytes) -> ApiAnswer:
        try:
            connection.send(data)
            await self._wait_for_head(connection)
            answer = ApiAnswer(connection.status, connection.headers, await connection.body())
        except BaseException:
            connection.abort()
            raise
        if connection.reusable and connection.alive:
            self.give_back(connection)
        else:
            connection.abort()
        return answer

    async def _wait_for_head(self, connection: ClientConnection) -> None:
        """Returns when the head of an answer has arrived.

        Raises: Disconnected, _NoAnswerBegan.
        """
        try:
            async with asyncio.timeout(self.config.answer_s):
                await connection.head()
        except TimeoutError as failure:
            raise _NoAnswerBegan from failure
        if self._tls is not None and not connection.session_stored and connection.transport is not None:
            connection.session_stored = self._tls.remember(connection.transport)
        if self._first_answered is not None:
            self._first_answered.set()

    def _timed_out(self, request: ApiRequest, failure: TimeoutError) -> ApiUnreachable:
        """The error for a request whose answer did not begin, or did not end, in time."""
        answer_s = math.inf if self.config.answer_s is None else self.config.answer_s
        timeout_s = math.inf if self.config.timeout_s is None else self.config.timeout_s
        waited_s = answer_s if isinstance(failure, _NoAnswerBegan) else timeout_s
        missing = "whole answer" if waited_s > answer_s else "answer"
        return ApiUnreachable(
            f"{self.config.server}: no {missing} to {request.method} {request.path} in {waited_s:g} s"
        )

    async def _wait_for_session(self) -> None:
        """Lets the first connection get its answer, so that the others, those of all informers, resume its session."""
        if self._first_answered is None:
            self._first_answered = asyncio.Event()
        elif not self._first_answered.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_ANSWER_S):
                    await self._first_answered.wait()
            self._first_answered.set()

    async def _connect(self) -> ClientConnection:
        if self._tls is not None:
            await self._wait_for_session()
        url = self.config.url
        host = url.hostname or ""
        port = url.port or (443 if self._tls else 80)
        try:
            async with asyncio.timeout(self.config.answer_s):
                return await connect(host, port, self._tls, self.config.server_name)
        except TimeoutError as failure:
            problem = str(failure) or f"no connection in {self.config.answer_s:g} s"
            raise ApiUnreachable(f"{self.config.server}: {problem}") from failure
        except OSError as failure:
            raise ApiUnreachable(f"{self.config.server}: {failure}") from failure
