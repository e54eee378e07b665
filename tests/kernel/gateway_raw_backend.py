"""A backend that keeps every byte that it gets, and answers requests as a strict reader of HTTP/1.1 counts them."""

import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec
from tests.fakes.ports import free_port
from tests.kernel.gateway_engine import SETTINGS, Engine, running_engine

from podwire.gateway.routes import (
    EntryBackend,
    EntryEndpoint,
    EntryListener,
    EntryRoute,
    Forward,
    GatewayEntry,
    RequestMatch,
    RouteLimits,
    RouteTable,
    VirtualHost,
    WeightedBackend,
)

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


class RawBackend:
    """Takes connections until it is closed; ``received`` has the bytes of each."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.received: list[bytearray] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = bytearray()
        self.received.append(data)
        answered = 0
        """The bytes of requests that have their answer."""
        with connection, suppress(ConnectionError):  # The engine resets connections that it has given up.
            while chunk := connection.recv(65536):
                data += chunk
                for request in requests_of(bytes(data[answered:])):
                    connection.sendall(_UPGRADED if b"\r\nupgrade: websocket\r\n" in head_of(request) else _ANSWER)
                    answered += len(request)


class Site(NamedTuple):
    """An engine, the port of its listener, and the backend behind it."""

    engine: Engine
    port: int
    backend: RawBackend


@contextmanager
def raw_site(hosts: Mapping[str, int], **settings: Any) -> Iterator[Site]:
    """An engine in front of a backend, with the hosts of :func:`raw_entry`; ``settings`` differ from the usual ones."""
    with running_engine(msgspec.structs.replace(SETTINGS, **settings)) as engine:
        backend, port = RawBackend(), free_port()
        try:
            engine.serve(raw_entry(port, backend.port, hosts))
            yield Site(engine, port, backend)
        finally:
            backend.close()


def raw_entry(port: int, backend_port: int, hosts: Mapping[str, int]) -> GatewayEntry:
    """An entry with a backend for all hosts; each host with its limit for bodies, which the engine then holds."""
    forward = Forward(backends=(WeightedBackend(key="shop/web:80"),), timeout=20)
    table = tuple(
        VirtualHost(
            hosts=(host,),
            routes=(
                EntryRoute(
                    source="Ingress shop/web",
                    match=RequestMatch(),
                    action=forward,
                    limits=RouteLimits(body_bytes=limit),
                ),
            ),
        )
        for host, limit in hosts.items()
    )
    endpoint = EntryEndpoint(address="127.0.0.1", port=backend_port)
    return GatewayEntry(
        listeners=(EntryListener(name="web", port=port, protocol="HTTP", table="web"),),
        tables={"web": RouteTable(name="web", hosts=table)},
        backends={"shop/web:80": EntryBackend(key="shop/web:80", endpoints=(endpoint,))},
    )


def requests_of(data: bytes) -> list[bytes]:
    """The complete requests in a stream, each with its body: lines end with CR LF alone."""
    requests = []
    while (end := _length(data)) is not None:
        requests.append(data[:end])
        data = data[end:]
    return requests


def head_of(request: bytes) -> bytes:
    """A request up to the end of its headers."""
    return request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _length(data: bytes) -> int | None:
    """The length of the first request in a stream; None while it is not complete."""
    if b"\r\n\r\n" not in data:
        return None
    head = head_of(data)
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked\r\n", head):
        return _length_of_chunks(data, len(head))
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)\r\n", head)
    end = len(head) + (int(length[1]) if length else 0)
    return end if end <= len(data) else None


def _length_of_chunks(data: bytes, start: int) -> int | None:
    while (line_end := data.find(b"\r\n", start)) >= 0:
        size = int(data[start:line_end].partition(b";")[0], 16)
        start = line_end + 2 + size + (2 if size else 0)
        if size == 0:
            end = data.find(b"\r\n\r\n", line_end)
            return end + 4 if end >= 0 else None
    return None
