"""Requests to extension API servers, on behalf of clients and of this server itself.

Each request opens its own connection to a ready endpoint of the extension's Service.
Source: ``k8s.io/kube-aggregator/pkg/apiserver/handler_proxy.go``.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import NamedTuple

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.aggregation.extensions import Extension, Extensions
from podwire.embedded.apiserver.aggregation.frontproxy import PREFIX, FrontProxy, identity_headers
from podwire.embedded.apiserver.calls import UserInfo
from podwire.embedded.apiserver.dial import ServiceDialer
from podwire.embedded.apiserver.relay import RequestRelay, passed_headers
from podwire.errors import ApiError, Disconnected
from podwire.http.answer import Result
from podwire.http.client import ClientConnection, encode_request
from podwire.http.message import Request, text_response

AGGREGATOR = UserInfo("system:kube-aggregator", ("system:masters",))
"""The user of the server's own requests."""
_CONNECT_S = 10.0
_ANSWER_S = 60.0
_LIMIT = 32 << 20
"""Bytes of a document; the OpenAPI document of Kubernetes itself has 4 MB."""


class FetchedDocument(NamedTuple):
    """The answer to a request of this server itself."""

    status: int
    body: bytes


class ExtensionClient:
    """Sends requests to extension API servers."""

    def __init__(self, extensions: Extensions, dialer: ServiceDialer, proxy: FrontProxy, relay: RequestRelay) -> None:
        self._extensions = extensions
        self._dialer = dialer
        self._proxy = proxy
        self._relay = relay
        self.on_deletion: Callable[[], None] = lambda: None
        """Called when a client's request may have deleted objects of an extension."""

    async def _connect(self, extension: Extension) -> ClientConnection:
        context = self._proxy.context(extension.ca_bundle, insecure=extension.insecure)
        async with asyncio.timeout(_CONNECT_S):
            return await self._dialer.connect(extension.service, context)

    async def carry(self, extension: Extension, request: Request, user: UserInfo) -> Result:
        """The answer of the extension to a client's request, or 503 when the extension cannot be reached."""
        if not self._extensions.is_available(extension):
            return text_response(503, "service unavailable")
        headers = [(name, value) for name, value in passed_headers(request) if not name.startswith(PREFIX)]
        headers += [("x-forwarded-for", request.peer), *identity_headers(user)]
        target = ("host", f"{extension.service.host}:{extension.service.port}")
        sent = encode_request(request.method, request.target, (target, *headers), request.body)
        try:
            connection = await self._connect(extension)
            answer = await self._relay.exchange(connection, (request.method, sent), _ANSWER_S)
            if request.method == "DELETE":
                self.on_deletion()
            return answer
        except ApiError:
            return text_response(503, "service unavailable")
        except (OSError, ValueError, TimeoutError, Disconnected) as failure:
            return text_response(503, f"error trying to reach service: {describe_failure(failure)}")

    async def ask(
        self, extension: Extension, method: str, target: str, accept: str, body: bytes = b""
    ) -> FetchedDocument:
        """The answer to a request of the server itself.

        Raises: OSError, ValueError, Disconnected, ApiError.
        """
        connection = await self._connect(extension)
        try:
            headers = (
                ("host", f"{extension.service.host}:{extension.service.port}"), ("accept", accept),
                ("content-type", "application/json"), *identity_headers(AGGREGATOR),
            )  # fmt: skip
            connection.send(encode_request(method, target, headers, body))
            await connection.head()
            answer = bytearray()
            async for chunk in connection.chunks():
                answer += chunk
                if len(answer) > _LIMIT:
                    raise failures.bad_request(f"the answer is longer than {_LIMIT} bytes")
            return FetchedDocument(connection.status, bytes(answer))
        finally:
            connection.abort()


def describe_failure(failure: Exception) -> str:
    """Why an extension API server could not be asked."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: {failure.verify_message}"
    if isinstance(failure, TimeoutError):
        return "context deadline exceeded"
    if isinstance(failure, ValueError):
        return f"unable to load root certificates: {failure}"
    return str(failure) or type(failure).__name__
