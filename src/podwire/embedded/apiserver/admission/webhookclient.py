"""Calls webhooks: one POST over a new TLS connection, within the time of the webhook."""

import asyncio
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from podwire.embedded.apiserver.admission.review import WebhookFailure
from podwire.embedded.apiserver.admission.webhookconfig import ClientConfig
from podwire.embedded.apiserver.dial import ServiceAddress, ServiceDialer, trusting
from podwire.errors import ApiError, Disconnected
from podwire.http.client import ClientConnection, connect, encode_request

_LIMIT = 3 << 20
"""Bytes of an answer; as many as an object may have."""


class WebhookTarget(NamedTuple):
    """The address of a webhook, and the URL that messages show."""

    url: str
    host: str
    port: int
    path: str
    service: ServiceAddress | None


class WebhookClient:
    """Sends documents to webhooks."""

    def __init__(self, dialer: ServiceDialer) -> None:
        self._dialer = dialer

    async def post(self, config: ClientConfig, body: bytes, timeout_s: int, limit: int = _LIMIT) -> bytes:
        """The body of the webhook's answer, of at most ``limit`` bytes.

        Raises: WebhookFailure when the webhook cannot be reached, is too slow or answers with a failure.
        """
        target = target_of(config, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(target, config.ca_bundle, body, limit)
        except TimeoutError as failure:
            raise WebhookFailure(f'Post "{target.url}": context deadline exceeded') from failure
        except ssl.SSLCertVerificationError as failure:
            problem = f"tls: failed to verify certificate: {failure.verify_message}"
            raise WebhookFailure(f'Post "{target.url}": {problem}') from failure
        except ValueError as failure:
            raise WebhookFailure(f"unable to load root certificates: {failure}") from failure
        except (OSError, ApiError, Disconnected) as failure:
            raise WebhookFailure(f'Post "{target.url}": {_dial_problem(failure, target)}') from failure

    async def _exchange(self, target: WebhookTarget, ca_bundle: str, body: bytes, limit: int) -> bytes:
        context = trusting(ca_bundle)
        connection: ClientConnection
        if target.service is not None:
            connection = await self._dialer.connect(target.service, context)
        else:
            connection = await connect(target.host, target.port, context)
        try:
            headers = (
                ("host", f"{target.host}:{target.port}"), ("content-type", "application/json"),
                ("accept", "application/json"), ("user-agent", "podwire-apiserver/1"),
            )  # fmt: skip
            connection.send(encode_request("POST", target.path, headers, body))
            await connection.head()
            answer = bytearray()
            async for chunk in connection.chunks():
                answer += chunk
                if len(answer) > limit:
                    raise WebhookFailure(f"the answer is longer than {limit} bytes")
        finally:
            connection.abort()
        if not 200 <= connection.status < 300:
            raise WebhookFailure(_status_problem(connection.status, bytes(answer)))
        return bytes(answer)


def target_of(config: ClientConfig, timeout_s: int) -> WebhookTarget:
    """The address and URL of a webhook."""
    if config.service is not None:
        service = ServiceAddress(config.service.namespace, config.service.name, config.service.port)
        path = f"/{config.service.path.lstrip('/')}?timeout={timeout_s}s"
        return WebhookTarget(f"https://{service.host}:{service.port}{path}", service.host, service.port, path, service)
    split_url = urlsplit(config.url or "")
    path = f"{split_url.path or '/'}?timeout={timeout_s}s"
    url = f"https://{split_url.netloc}{path}"
    return WebhookTarget(url, split_url.hostname or "", split_url.port or 443, path, None)


def _dial_problem(failure: Exception, target: WebhookTarget) -> str:
    if isinstance(failure, ConnectionRefusedError):
        return f"dial tcp {target.host}:{target.port}: connect: connection refused"
    return str(failure) or type(failure).__name__


def _status_problem(status: int, body: bytes) -> str:
    """A failure as Kubernetes' client words it."""
    if status == 404:
        return "the server could not find the requested resource"
    text = body.decode(errors="replace").strip()[:2048]
    if status >= 500:
        return f'an error on the server ("{text or "unknown"}") has prevented the request from succeeding'
    return text or f"the server responded with the status code {status}"
