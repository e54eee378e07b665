"""TLS of the stand-in server, for HTTPS probes and clients that do not verify certificates.

The first byte of a connection shows whether the client speaks TLS (RFC 8446 section 5.1: 22 is a handshake record). The
certificate is made for the first such connection, so a stand-in without HTTPS clients needs neither the time (30 ms)
nor the memory of the library that makes it.
"""

import asyncio
import os
import ssl
from asyncio.sslproto import SSLProtocol

from podwire.embedded.apiserver import certificates
from podwire.http.tls import server_context
from podwire.runtime.clock import Clock

HANDSHAKE = 22
"""The first byte of a TLS connection."""


def make_context(clock: Clock) -> ssl.SSLContext:
    """The TLS settings with a certificate that an unknown authority has signed."""
    now = clock.now()
    pair = certificates.issue(
        certificates.make_authority("stand-in", now), "stand-in", (), ("stand-in",), "server", now
    )
    files = [os.memfd_create(kind) for kind in ("certificate", "key")]
    try:
        for fd, content in zip(files, (pair.certificate, pair.key), strict=True):
            os.write(fd, content)
        return server_context(*(f"/proc/self/fd/{fd}" for fd in files))
    finally:
        for fd in files:
            os.close(fd)


def decrypt(
    transport: asyncio.Transport, received: bytes, inner: asyncio.Protocol, settings: ssl.SSLContext
) -> None:  # fmt: skip
    """Puts TLS between a connection and the protocol ``inner``; ``received`` has arrived already.

    ``loop.start_tls`` cannot take bytes that have arrived, so the protocol behind it is used here.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    waiter.add_done_callback(lambda done: done.cancelled() or done.exception())  # A failed handshake needs no report.
    outer = SSLProtocol(loop, inner, settings, waiter, server_side=True)
    transport.set_protocol(outer)
    outer.connection_made(transport)
    while received:
        buffer = outer.get_buffer(len(received))
        part, received = received[: len(buffer)], received[len(buffer) :]
        buffer[: len(part)] = part
        outer.buffer_updated(len(part))
