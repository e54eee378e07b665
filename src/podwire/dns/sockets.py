"""Binds the server's sockets before a process serves on them, so that a new process can take them over.

One UDP and one TCP socket per address, and one for TLS if it is served. ``::`` is left out when the machine has no
IPv6.

The sockets of a node's own server are bound to the addresses of the DNS Service, also before the node has a route to
them. Queries are led there while the sockets have the option IP_TRANSPARENT (:mod:`podwire.dns.nodelocal.plan`), which
:func:`take_queries` sets and clears. The option is one of the socket, not of a process: it stays when a worker dies and
the next one takes over the socket. Setting it needs CAP_NET_RAW or CAP_NET_ADMIN.
"""

import contextlib
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

from podwire.dns.names import address_bytes
from podwire.errors import ConfigError

WAKE_S = 0.5
_BUFFER_BYTES = 4 << 20
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_IP_FREEBIND, _IPV6_FREEBIND, _IPV6_TRANSPARENT = 15, 78, 75  # linux/in.h, linux/in6.h
_BACKLOG = 1024


class Bound(NamedTuple):
    """The UDP and the TCP socket of an address, bound; nothing was read from them, and the TCP sockets listen."""

    udp: socket.socket
    tcp: socket.socket
    tls: socket.socket | None = None

    def close(self) -> None:
        """Closes them in this process; other processes that inherited them are not affected."""
        self.udp.close()
        self.tcp.close()
        if self.tls is not None:
            self.tls.close()


def usable(addresses: Iterable[str]) -> tuple[str, ...]:
    """The addresses without ``::`` if the machine has no IPv6."""
    return tuple(address for address in addresses if address != "::" or _has_ipv6())


def bind(addresses: Iterable[str], port: int, *, tls_port: int = 0, early: bool = False) -> tuple[Bound, ...]:
    """Binds every address; port 0 selects one that is free for both protocols.

    ``tls_port`` 0: no sockets for TLS. ``early``: also addresses that the machine does not have yet.

    Raises: OSError when an address cannot be bound.
    """
    with contextlib.ExitStack() as stack:
        bound = []
        for address in usable(addresses):
            udp = _socket(address, socket.SOCK_DGRAM, early=early)
            stack.callback(udp.close)
            _set_receive_buffer(udp)
            # A receive time-out in the kernel, so that closing needs no second system call per datagram.
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(WAKE_S * 1e6)))
            udp.bind((address, port))
            tcp = _listen(address, udp.getsockname()[1], early=early)
            stack.callback(tcp.close)
            tls = _listen(address, tls_port, early=early) if tls_port else None
            if tls is not None:
                stack.callback(tls.close)
            bound.append(Bound(udp, tcp, tls))
        stack.pop_all()
        return tuple(bound)


def served_addresses(listen: Iterable[str]) -> tuple[bytes, ...]:
    """The addresses under which clients reach the server, packed.

    For the unspecified address of a family this is the source address for outgoing packets; nothing is sent for that.
    """
    served = []
    for address in listen:
        packed = address_bytes(address)
        served.append(packed if any(packed) else _source_address(address))
    return tuple(dict.fromkeys(filter(None, served)))


def _source_address(unspecified: str) -> bytes:
    """The source address for packets to other networks; empty without a route."""
    family, remote = (socket.AF_INET6, "2001:db8::1") if ":" in unspecified else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, 9))
            return address_bytes(probe.getsockname()[0])
    except OSError:
        return b""


def _set_receive_buffer(udp: socket.socket) -> None:
    """Room for the requests that arrive while there is no worker; beyond net.core.rmem_max with the right to do so."""
    try:
        udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)


def check_right() -> None:
    """Finds out whether this process may set the option of :func:`take_queries`.

    Raises: ConfigError.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_TRANSPARENT, 1)
        except PermissionError as failure:
            problem = "a node's own server needs the capability NET_RAW or NET_ADMIN to take queries"
            raise ConfigError("podwire dns", "nodeLocal", problem) from failure


def take_queries(sockets: Iterable[Bound], *, enabled: bool) -> None:
    """Sets or clears the option by which the kernel leads queries of the node's pods to the sockets.

    A connection over TCP stays where it began.

    Raises: OSError without the right to set it.
    """
    for bound in sockets:
        for one_socket in (bound.udp, bound.tcp):
            if one_socket.family == socket.AF_INET6:
                one_socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_TRANSPARENT, int(enabled))
            else:
                one_socket.setsockopt(socket.IPPROTO_IP, socket.IP_TRANSPARENT, int(enabled))


def _listen(address: str, port: int, *, early: bool) -> socket.socket:
    opened = _socket(address, socket.SOCK_STREAM, early=early)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((address, port))
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def _socket(address: str, kind: socket.SocketKind, *, early: bool = False) -> socket.socket:
    version6 = ":" in address
    opened = socket.socket(socket.AF_INET6 if version6 else socket.AF_INET, kind)
    if version6:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if early:
        level, option = (socket.IPPROTO_IPV6, _IPV6_FREEBIND) if version6 else (socket.IPPROTO_IP, _IP_FREEBIND)
        opened.setsockopt(level, option, 1)
    return opened


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True
