"""The Kubernetes API client: verbs on resources over a keep-alive pool of HTTP/1.1 connections.

Objects go in as dictionaries or structs of the model and come out as dictionaries, or as ``decode_as``.
A failure of the API is an :class:`~podwire.errors.ApiError` of the fitting class, no answer is
:class:`~podwire.errors.ApiUnreachable`. A read whose kept connection turns out dead is sent once more on a new
one; a write is not, since nobody knows whether it was done.

A connection costs both ends some two milliseconds of CPU, ten times a small request. So a write, of which there are
many at once, waits a moment for one that is in use before it opens another; a read, which may be a list that a watch
goes on from, does not.

Cost: 20 ms to import, about 0.2 ms per small request over TLS, no task or thread while idle.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, overload
from urllib.parse import quote, urlencode

import msgspec

from podwire.errors import (
    AlreadyExists,
    ApiError,
    ApiUnreachable,
    Conflict,
    Disconnected,
    Gone,
    Invalid,
    NotFound,
)
from podwire.http.client import ClientConnection, connect, encode_request
from podwire.kube.config import ApiConfig
from podwire.kube.decode import Page, decode_object, decode_page
from podwire.kube.resources import Json, Resource
from podwire.runtime.clock import Clock

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

T = TypeVar("T")
Body = Mapping[str, Any] | list[Any] | msgspec.Struct

_MAX_CONNECTIONS = 32
_TOKEN_LIFE_S = 60.0


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A whole HTTP answer; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """An HTTP request to the API server; ``path`` is absolute, ``query`` not yet encoded."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: bytes = b""
    headers: Mapping[str, str] | None = None


class _Silent(TimeoutError):
    """No answer began in time."""


class Client:
    """Talks to one API server; ``manager`` is the field manager of its writes."""

    def __init__(self, config: ApiConfig, clock: Clock, *, manager: str = "podwire") -> None:
        self.config = config
        self.clock = clock
        self._manager = manager
        self._ssl = config.ssl_context()
        self._idle: list[ClientConnection] = []
        self._busy = 0
        """Requests that have a connection, or open one, and will give it back."""
        self._waiting: deque[asyncio.Future[ClientConnection]] = deque()
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._token = (0.0, "")

    async def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().abort()
        await self.clock.sleep(0)  # lets the transports go before the loop does

    @overload
    async def get(self, resource: Resource[Any], name: str, namespace: str = "", *, subresource: str = "") -> Json: ...

    @overload
    async def get(
        self, resource: Resource[Any], name: str, namespace: str = "", *, subresource: str = "", decode_as: type[T]
    ) -> T: ...

    async def get(
        self,
        resource: Resource[Any],
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        decode_as: type[Any] = dict,
    ) -> Any:
        """The object.

        Raises: NotFound and the other API errors.
        """
        answer = await self._checked(ApiRequest("GET", resource.path(namespace, name, subresource)))
        return decode_object(answer.body, decode_as)

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> Page[T]:
        """One page of objects (all of them without ``limit``), decoded as the resource's type."""
        given = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "limit": str(limit) if limit else "",
            "continue": continue_,
        }
        query = {key: value for key, value in given.items() if value}
        answer = await self._checked(ApiRequest("GET", resource.path(namespace), query))
        return decode_page(answer.body, resource)

    async def create(
        self, resource: Resource[Any], body: Body, namespace: str = "", *, name: str = "", subresource: str = ""
    ) -> Json:
        """The object as stored; ``name`` only with a ``subresource`` (``binding``, ``eviction``, ``token``).

        Raises: AlreadyExists, Invalid and the other API errors.
        """
        return await self._write("POST", resource.path(namespace, name, subresource), body)

    async def update(
        self, resource: Resource[Any], body: Body, namespace: str = "", *, name: str, subresource: str = ""
    ) -> Json:
        """The object as stored after replacing it whole.

        Raises: Conflict when the body's resourceVersion is not the stored one.
        """
        return await self._write("PUT", resource.path(namespace, name, subresource), body)

    async def patch(
        self,
        resource: Resource[Any],
        name: str,
        body: Body,
        namespace: str = "",
        *,
        patch_type: str = MERGE_PATCH,
        subresource: str = "",
    ) -> Json:
        """The object as stored after the patch; an apply patch takes over fields of other managers."""
        return await self._write("PATCH", resource.path(namespace, name, subresource), body, patch_type)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        namespace: str = "",
        *,
        grace_period_s: int | None = None,
        propagation: str = "",
        uid: str = "",
    ) -> Json:
        """The object or Status answered; ``propagation`` is Background, Foreground or Orphan.

        Raises: NotFound; Conflict when ``uid`` is given and the object has another.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        if propagation:
            options["propagationPolicy"] = propagation
        if uid:
            options["preconditions"] = {"uid": uid}
        headers = {"content-type": "application/json"}
        path = resource.path(namespace, name)
        answer = await self._checked(ApiRequest("DELETE", path, None, msgspec.json.encode(options), headers))
        return decode_object(answer.body, dict)

    async def raw(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> ApiAnswer:
        """The answer, whatever its status.

        Raises: ApiUnreachable.
        """
        return await self._exchange(ApiRequest(method, path, query, body, headers))

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[ClientConnection]:
        """A connection whose answer has its ``status`` and ``headers`` and whose body is read with ``chunks``.

        It is an idle one of the pool where there is one, so that a watch goes on where its list came from: to open one
        costs both ends some two milliseconds of CPU. It is closed at the end.

        Raises: ApiError when the status is a failure, ApiUnreachable.
        """
        try:
            async with asyncio.timeout(self.config.timeout_s):
                connection = await self._begun(self._encode(request))
        except Disconnected as failure:
            raise ApiUnreachable(str(failure)) from failure
        except TimeoutError as failure:
            raise self._late(request, failure) from failure
        try:
            yield connection
        except Disconnected as failure:
            raise ApiUnreachable(str(failure)) from failure
        finally:
            connection.abort()

    async def _begun(self, data: bytes) -> ClientConnection:
        """A connection on which an answer has begun; what was sent is sent again where a kept one turns out dead."""
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                try:
                    return await self._headed(connection, data)
                except Disconnected:
                    if not connection.untouched:
                        raise
        return await self._headed(await self._dial(), data)

    async def _headed(self, connection: ClientConnection, data: bytes) -> ClientConnection:
        try:
            connection.send(data)
            await self._head(connection)
            if connection.status >= 400:
                raise failure_of(connection.status, await connection.body())
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _write(self, method: str, path: str, body: Body, content_type: str = "application/json") -> Json:
        query = {"fieldManager": self._manager}
        if content_type == APPLY_PATCH:
            query["force"] = "true"
        request = ApiRequest(method, path, query, msgspec.json.encode(body), {"content-type": content_type})
        return decode_object((await self._checked(request)).body, dict)

    async def _checked(self, request: ApiRequest) -> ApiAnswer:
        answer = await self._exchange(request)
        if answer.status >= 400:
            raise failure_of(answer.status, answer.body)
        return answer

    async def _exchange(self, request: ApiRequest) -> ApiAnswer:
        async with self._slots:
            try:
                async with asyncio.timeout(self.config.timeout_s):
                    return await self._try(request)
            except Disconnected as failure:
                raise ApiUnreachable(str(failure)) from failure
            except TimeoutError as failure:
                raise self._late(request, failure) from failure

    async def _try(self, request: ApiRequest) -> ApiAnswer:
        data = self._encode(request)
        reads = request.method in ("GET", "HEAD")
        while (connection := self._idle.pop() if self._idle else None if reads else await self._turn()) is not None:
            if not connection.alive:
                continue
            try:
                return await self._once(connection, data)
            except Disconnected:
                if not reads or not connection.untouched:
                    raise
        return await self._once(None, data)

    async def _turn(self) -> ClientConnection | None:
        """A connection that others are done with; None when another is to be opened."""
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
                    self._give_back(turn.result())
                raise
            if self._busy <= busy:
                break  # nobody else has opened one meanwhile
        return None

    def _give_back(self, connection: ClientConnection) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        self._idle.append(connection)

    async def _once(self, connection: ClientConnection | None, data: bytes) -> ApiAnswer:
        """One exchange on a connection; None: on a new one."""
        self._busy += 1
        try:
            return await self._exchanged(connection or await self._dial(), data)
        finally:
            self._busy -= 1

    async def _exchanged(self, connection: ClientConnection, data: bytes) -> ApiAnswer:
        try:
            connection.send(data)
            await self._head(connection)
            answer = ApiAnswer(connection.status, connection.headers, await connection.body())
        except BaseException:
            connection.abort()
            raise
        if connection.reusable and connection.alive:
            self._give_back(connection)
        else:
            connection.abort()
        return answer

    async def _head(self, connection: ClientConnection) -> None:
        """Waits for an answer to begin.

        Raises: Disconnected, _Silent.
        """
        try:
            async with asyncio.timeout(self.config.answer_s):
                await connection.head()
        except TimeoutError as failure:
            raise _Silent from failure

    def _late(self, request: ApiRequest, failure: TimeoutError) -> ApiUnreachable:
        """What there is to say when a request took too long."""
        begins_s, ends_s = (
            math.inf if each is None else each for each in (self.config.answer_s, self.config.timeout_s)
        )
        waited_s = begins_s if isinstance(failure, _Silent) else ends_s
        what = "whole answer" if waited_s > begins_s else "answer"
        return ApiUnreachable(f"{self.config.server}: no {what} to {request.method} {request.path} in {waited_s:g} s")

    async def _dial(self) -> ClientConnection:
        url = self.config.url
        host = url.hostname or ""
        port = url.port or (443 if self._ssl else 80)
        try:
            async with asyncio.timeout(self.config.answer_s):
                connection = await connect(host, port, self._ssl, self.config.server_name)
        except TimeoutError as failure:
            problem = str(failure) or f"no connection in {self.config.answer_s:g} s"
            raise ApiUnreachable(f"{self.config.server}: {problem}") from failure
        except OSError as failure:
            raise ApiUnreachable(f"{self.config.server}: {failure}") from failure
        return connection

    def _encode(self, request: ApiRequest) -> bytes:
        url = self.config.url
        path = url.path.rstrip("/") + request.path
        target = f"{path}?{urlencode(request.query, quote_via=quote)}" if request.query else path
        headers = {"host": url.netloc, "user-agent": self._manager, "accept": "application/json"}
        headers |= request.headers or {}
        if token := self._bearer():
            headers["authorization"] = f"Bearer {token}"
        return encode_request(request.method, target, headers.items(), request.body)

    def _bearer(self) -> str:
        if self.config.token_file is None:
            return self.config.token
        read_at, token = self._token
        now = self.clock.monotonic()
        if not token or now - read_at > _TOKEN_LIFE_S:
            try:
                token = self.config.token_file.read_text().strip()
            except OSError as failure:
                raise ApiUnreachable(f"token file {self.config.token_file}: {failure}") from failure
            self._token = (now, token)
        return token


class _Status(msgspec.Struct):
    reason: str = ""
    message: str = ""
    details: dict[str, Any] | None = None
    kind: str = ""


_CLASSES: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Gone, 422: Invalid}


def failure_of(code: int, body: bytes) -> ApiError:
    """The exception for an answer of failure; the body is a Status or any text."""
    try:
        status = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        status = _Status(message=body[:300].decode(errors="replace").strip() or f"HTTP status {code}")
    if status.reason == "AlreadyExists":
        return AlreadyExists(code, status.reason, status.message, status.details)
    # A watch that is too old ends in a Status event that may carry the code in its reason alone.
    kind = Gone if status.reason in ("Expired", "Gone") else _CLASSES.get(code, ApiError)
    return kind(code, status.reason, status.message, status.details)
