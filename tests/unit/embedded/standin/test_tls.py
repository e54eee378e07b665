"""The stand-in server over TLS: a real connection on loopback."""

import asyncio
import ssl

from podwire.embedded.standin import tls
from podwire.runtime.clock import SystemClock


class _Echo(asyncio.Protocol):
    """Sends what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.Transport)
        self._transport.write(data)


class _Encrypting(asyncio.Protocol):
    """Starts TLS with the first bytes of a connection."""

    def __init__(self, settings: ssl.SSLContext) -> None:
        self._settings = settings

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert data[0] == tls.HANDSHAKE
        assert isinstance(self._transport, asyncio.Transport)
        tls.decrypt(self._transport, data, _Echo(), self._settings)


def test_connection_is_decrypted_after_its_first_bytes() -> None:
    async def main() -> bytes:
        settings = tls.make_context(SystemClock())
        server = await asyncio.get_running_loop().create_server(lambda: _Encrypting(settings), "127.0.0.1", 0)
        client = ssl.create_default_context()
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        address = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address, ssl=client)
        writer.write(b"hello\n")
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        server.close()
        return answer

    assert asyncio.run(asyncio.wait_for(main(), 10)) == b"hello\n"
