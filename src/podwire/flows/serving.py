"""The server of numbered flows: answers each message with the message; blocking, one thread.

It listens on the port of numbers (TCP and UDP), the port of HTTP, and the port that policies deny, which answers
numbers, too: a probe of a denied port counts what a policy let through, so a server must be there.
"""

import contextlib
import selectors
import socket

from podwire.flows.messages import DENIED_PORT, HTTP_PORT, PORT, split_requests

_SEND_S = 5.0
_MOST_UNREAD = 1 << 16
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_BUFFER = 8 << 20
"""Bytes: with the default of 208 KiB a server that waits a second for a processor loses datagrams by itself."""


def serve(port: int = PORT, http_port: int = HTTP_PORT, denied_port: int = DENIED_PORT) -> None:
    """Answers messages on the ports, of both families where the machine has both; never returns.

    Raises: OSError when a port is taken.
    """
    with selectors.DefaultSelector() as selector:
        for number in (port, denied_port):
            selector.register(_listener(number), selectors.EVENT_READ, _accept_numbers)
            selector.register(_datagrams(number), selectors.EVENT_READ, _answer_datagram)
        selector.register(_listener(http_port), selectors.EVENT_READ, _accept_http)
        while True:
            for key, _ in selector.select():
                key.data(selector, key.fileobj)


def _family() -> socket.AddressFamily:
    return socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET


def _listener(port: int) -> socket.socket:
    family = _family()
    return socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024)


def _datagrams(port: int) -> socket.socket:
    family = _family()
    opened = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    widen(opened)
    opened.bind(("", port))
    return opened


def widen(opened: socket.socket) -> None:
    """Gives a socket a large receive buffer; without CAP_NET_ADMIN as large as the machine allows."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)


class _Stream:
    """One connection; requests of HTTP may arrive in parts, numbers are answered as they arrive."""

    def __init__(self, connection: socket.socket, *, http: bool) -> None:
        self.connection = connection
        self._http = http
        self._unread = b""

    def read(self, selector: selectors.BaseSelector, _opened: socket.socket) -> None:
        """Answers what has arrived; closes when the client has gone."""
        try:
            data = self.connection.recv(4096)
            if data and len(self._unread) < _MOST_UNREAD:
                self._answer(data)
                return
        except OSError:
            pass  # the client is gone
        selector.unregister(self.connection)
        self.connection.close()

    def _answer(self, data: bytes) -> None:
        if not self._http:
            self.connection.sendall(data)
            return
        answers, self._unread = split_requests(self._unread + data)
        for answer in answers:
            self.connection.sendall(answer)


def _accept(selector: selectors.BaseSelector, listener: socket.socket, *, http: bool) -> None:
    with contextlib.suppress(OSError):  # the client is gone already
        connection, _ = listener.accept()
        connection.settimeout(_SEND_S)
        selector.register(connection, selectors.EVENT_READ, _Stream(connection, http=http).read)


def _accept_numbers(selector: selectors.BaseSelector, listener: socket.socket) -> None:
    _accept(selector, listener, http=False)


def _accept_http(selector: selectors.BaseSelector, listener: socket.socket) -> None:
    _accept(selector, listener, http=True)


def _answer_datagram(_selector: selectors.BaseSelector, opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        data, peer = opened.recvfrom(4096)
        opened.sendto(data, peer)
