"""Connections to one upstream server over TCP or TLS, used again until they were idle for a while; settings of TLS.

How it works: a connection has one request under way; the next request takes the connection that was idle for the
shortest time, or opens one. A connection that the server has closed meanwhile is noticed when it is used, and the
request is sent again over another one. Sources: RFC 7766 section 6.2 (TCP), RFC 7858 (TLS).
"""

import asyncio
import secrets
import ssl

from podwire.dns.config import ServingTls, TlsConfig
from podwire.dns.links import Address, matches
from podwire.errors import ConfigError
from podwire.http.tls import server_context

_CLIENTS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_IDLE = 64
"""The most idle connections of one server."""


class StreamPool:
    """The connections to a server; without a context they are not encrypted."""

    def __init__(
        self, server: Address, context: ssl.SSLContext | None = None, server_name: str = "", expire_s: float = 10.0
    ) -> None:
        self._server = server
        self._context = context
        self._server_name = (server_name or server[0]) if context is not None else None
        self._expire_s = expire_s
        self._idle: list[_Connection] = []
        self.reused = 0
        self.opened = 0

    async def ask(self, request: bytes) -> bytes:
        """The reply to a request, under the ID of the request.

        Raises: OSError when the server cannot be reached, or its certificate is not valid; EOFError when it closes the
        connection or replies to another request.
        """
        message = secrets.token_bytes(2) + request[2:]
        while self._idle:
            connection = self._idle.pop()
            connection.expiry.cancel()
            try:
                reply = await connection.exchange(message)
            except (OSError, EOFError):
                continue
            self.reused += 1
            return self._checked(request, message, reply, connection)
        self.opened += 1
        reader, writer = await asyncio.open_connection(
            *self._server, ssl=self._context, server_hostname=self._server_name
        )
        connection = _Connection(reader, writer)
        return self._checked(request, message, await connection.exchange(message), connection)

    def _checked(self, request: bytes, message: bytes, reply: bytes, connection: "_Connection") -> bytes:
        if not matches(message, reply):
            connection.close()
            raise EOFError("not the reply to this request")
        if len(self._idle) < _IDLE and self._expire_s > 0:
            connection.expiry = asyncio.get_running_loop().call_later(self._expire_s, self._drop, connection)
            self._idle.append(connection)
        else:
            connection.close()
        return request[:2] + reply[2:]

    def _drop(self, connection: "_Connection") -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        connection.close()

    def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            connection = self._idle.pop()
            connection.expiry.cancel()
            connection.close()


class _Connection:
    """One connection; ``expiry`` closes it while it is idle."""

    expiry: asyncio.TimerHandle

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def exchange(self, message: bytes) -> bytes:
        """The next reply; the connection is closed when there is none."""
        whole = False
        try:
            self._writer.write(len(message).to_bytes(2, "big") + message)
            size = int.from_bytes(await self._reader.readexactly(2), "big")
            reply = await self._reader.readexactly(size)
            whole = True
        finally:
            if not whole:
                self.close()
        return reply

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()


def serving_context(config: ServingTls, source: str) -> ssl.SSLContext:
    """The settings of TLS with clients.

    Raises: ConfigError when a file cannot be read or is no certificate or key.
    """
    try:
        context = server_context(config.certificate, config.key, config.authorities)
    except OSError as failure:
        named = ", ".join(filter(None, (config.certificate, config.key, config.authorities)))
        raise ConfigError(source, "tls", f"cannot use {named}: {failure.strerror or failure}") from failure
    context.set_alpn_protocols(["dot"])
    context.verify_mode = _CLIENTS[config.clients]
    if config.clients != "none" and not config.authorities:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def make_context(config: TlsConfig | None, source: str) -> ssl.SSLContext:
    """The settings of TLS with an upstream server.

    Raises: ConfigError when a file cannot be read or is no certificate or key.
    """
    files = config or TlsConfig()
    try:
        context = ssl.create_default_context(cafile=files.authorities or None)
        if files.certificate:
            context.load_cert_chain(files.certificate, files.key)
    except OSError as failure:
        named = ", ".join(filter(None, (files.certificate, files.key, files.authorities)))
        raise ConfigError(source, "tls", f"cannot use {named}: {failure.strerror or failure}") from failure
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
