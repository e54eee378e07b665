"""Backends on every address of 127.0.0.0/8 that tell what they got: HTTP, HTTPS, gRPC and UDP."""

import asyncio
import json
import re
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc

_PKTINFO = getattr(socket, "IP_PKTINFO", 8)


class Backends:
    """Servers of HTTP and of datagrams; each answer tells the address of the server and the request.

    A request says with ``X-Backend-Headers: name:value,...`` what headers its answer has, and with a path such as
    ``/status/401`` its status. With ``padding=1000`` in the path it is longer, with ``/chunked`` it comes in chunks.
    A path below ``/retry`` fails with ``responseCode``, after the delay, until it was asked for more than
    ``succeedAfter`` times.
    """

    def __init__(self) -> None:
        self.port = self.tls_port = self.udp_port = 0
        self.connections = 0
        self.peers: set[str] = set()
        self.requests: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        self._server_names: dict[ssl.SSLObject, str] = {}
        self._server: asyncio.Server | None = None
        self._tls_server: asyncio.Server | None = None
        self._datagrams: socket.socket | None = None

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, "0.0.0.0", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.setsockopt(socket.IPPROTO_IP, _PKTINFO, 1)
        self._datagrams.bind(("0.0.0.0", 0))
        self.udp_port = self._datagrams.getsockname()[1]
        threading.Thread(target=_answer_datagrams, args=(self._datagrams,), daemon=True).start()

    async def start_tls(self, chain: Path, key: Path, authority: Path) -> None:
        """Listens with TLS; certificates of clients that the authority signed are told."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.sni_callback = self._named
        self._tls_server = await asyncio.start_server(self._serve, "0.0.0.0", 0, ssl=context)
        self.tls_port = self._tls_server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Ends the servers."""
        for server in (self._server, self._tls_server, self._datagrams):
            if server is not None:
                server.close()

    def _named(self, connection: Any, name: str | None, _context: ssl.SSLContext) -> None:
        self._server_names[connection] = name or ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.peers.add(writer.get_extra_info("peername")[0])
        secure = writer.get_extra_info("ssl_object")
        told: dict[str, str] = {}
        if secure is not None:
            told = {"server_name": self._server_names.get(secure, ""), "client": _subject(secure.getpeercert())}
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = _headers(head[1:])
                if headers.get("upgrade") == "websocket":
                    await _echo(reader, writer)
                    return
                await _read_body(reader, headers)
                address = writer.get_extra_info("sockname")[0]
                padding = re.search(r"padding=(\d+)", head[0])
                told["padding"] = "x" * int(padding[1] if padding else 0)
                body = json.dumps({"address": address, "line": head[0], "headers": headers, **told}).encode()
                self.requests[address] += 1
                status = self._status(head[0])
                if status != 200 or "responseCode" not in head[0]:
                    await asyncio.sleep(_delay_s(head[0]))
                more = "".join(
                    f"{pair.strip()}\r\n" for pair in headers.get("x-backend-headers", "").split(",") if pair
                )
                writer.write(f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n{more}".encode())
                if "/chunked" in head[0]:
                    writer.write(b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
                else:
                    writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            writer.close()

    def _status(self, line: str) -> int:
        path = line.split()[1]
        if asked := re.search(r"/status/(\d{3})", path):
            return int(asked[1])
        wanted = re.search(r"responseCode=(\d+)&succeedAfter=(\d+)", path)
        if wanted is None:
            return 200
        self._attempts[path] += 1
        return 200 if self._attempts[path] > int(wanted[2]) else int(wanted[1])


def _headers(lines: Iterable[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, separator, text = line.partition(":")
        if separator:
            known = headers.get(name.lower())
            headers[name.lower()] = text.strip() if known is None else f"{known},{text.strip()}"
    return headers


def _subject(certificate: Any) -> str:
    """The common name of a client's certificate, empty for none."""
    names = [text for part in (certificate or {}).get("subject", ()) for name, text in part if name == "commonName"]
    return str(names[0]) if names else ""


def _answer_datagrams(server: socket.socket) -> None:
    """Answers each datagram from the address that it came to, with that address."""
    while True:
        try:
            _, extra, _, client = server.recvmsg(2048, 256)
        except OSError:
            return
        info = next((data for _, kind, data in extra if kind == _PKTINFO), None)
        if info is None:  # The socket is being closed.
            continue
        own = info[8:12]
        source = struct.pack("=I4s4s", 0, own, b"\0" * 4)
        server.sendmsg([socket.inet_ntoa(own).encode()], [(socket.IPPROTO_IP, _PKTINFO, source)], 0, client)


class GrpcBackends:
    """Servers of gRPC at addresses, which take any method and answer with their address."""

    def __init__(self) -> None:
        self.port = 0
        self._servers: list[grpc.aio.Server] = []

    async def start(self, addresses: Iterable[str]) -> None:
        """Listens at all addresses, at one port."""
        for address in addresses:
            server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            server.add_generic_rpc_handlers((_AnyMethod(address),))
            self.port = server.add_insecure_port(f"{address}:{self.port}")
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        """Ends all."""
        for server in self._servers:
            await server.stop(0)


class _AnyMethod(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every unary call with the address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def service(self, _call: object) -> Any:
        """The handler of a call."""

        async def answer(_request: bytes, context: Any) -> bytes:
            metadata = dict(context.invocation_metadata())
            return json.dumps({"address": self._address, "metadata": metadata}, default=repr).encode()

        return grpc.unary_unary_rpc_method_handler(answer)


def _delay_s(line: str) -> float:
    """How long the answer to a request takes, as its query says in milliseconds or seconds."""
    delay = re.search(r"[?&]delay=([\d.]+)(ms|s)", line)
    return float(delay[1]) * (0.001 if delay[2] == "ms" else 1) if delay else 0


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes after the handshake of a WebSocket, as it is."""
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    while data := await reader.read(4096):
        writer.write(data)
    writer.close()


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> None:
    if "content-length" in headers:
        await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        size = 1
        while size:
            size = int(await reader.readline(), 16)
            await reader.readexactly(size + 2)
