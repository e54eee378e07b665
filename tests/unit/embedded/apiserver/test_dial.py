"""TLS inside TLS, as to a pod behind its kubelet."""

import asyncio
import base64
import contextlib
import ssl
from pathlib import Path

import pytest

from podwire.embedded.apiserver.dial import make_context, start_tls
from podwire.http.client import connect
from podwire.http.tls import server_context


def test_refused_certificate_inside_tls_is_named(credentials: Path) -> None:
    tls = server_context(str(credentials / "server.crt"), str(credentials / "server.key"))

    async def body() -> None:
        inner = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls)

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    writer.write(data)
            writer.close()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            out, back = await asyncio.open_connection(*inner.sockets[0].getsockname())
            await asyncio.gather(copy(reader, back), copy(out, writer))

        async with inner, await asyncio.start_server(relay, "127.0.0.1", 0, ssl=tls) as outer:
            bundle = base64.b64encode((credentials / "ca.crt").read_bytes()).decode()
            host, port = outer.sockets[0].getsockname()
            plain = await connect(host, port, make_context(bundle))
            with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
                await start_tls(plain, make_context(""), "localhost")

    asyncio.run(asyncio.wait_for(body(), 20))
