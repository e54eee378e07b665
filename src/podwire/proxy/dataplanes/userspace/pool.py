"""The pools of one worker of the relay, with their listening sockets."""

import random
import socket

from podwire.proxy.dataplanes.userspace.balancer import Balancer
from podwire.proxy.dataplanes.userspace.memory import Listener
from podwire.proxy.dataplanes.userspace.messages import RelayPool
from podwire.proxy.dataplanes.userspace.tcp import set_tcp_options
from podwire.proxy.dataplanes.userspace.udp import UdpSessions

_BACKLOG = 4096
_IP_FREEBIND = 15  # linux/in.h
_IPV6_FREEBIND = 78  # linux/in6.h


class ServedPool:
    """A pool with its listening socket."""

    def __init__(self, number: int, pool: RelayPool, sock: socket.socket) -> None:
        self.number = number
        self.pool = pool
        self.sock = sock
        self.balancer = Balancer(pool.endpoints, pool.affinity_s, random.randrange(1 << 16))
        self.sessions: UdpSessions | None = None
        """The sessions of a UDP pool."""
        self.retired = False

    @property
    def port(self) -> int:
        """The port on which the pool listens."""
        return int(self.sock.getsockname()[1])

    def entry(self) -> Listener:
        """The entry of this pool in the journal."""
        return Listener(self.number, self.pool, self.sock.fileno(), self.retired)


class RemovedPool:
    """Stands for a pool that was removed, while its last connections continue."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pool = RelayPool(key="", protocol="tcp", address="", endpoints=())
        self.balancer = Balancer()


def listen(pool: RelayPool) -> socket.socket:
    """A listening socket for a pool on a free port; the node does not need to have the address yet.

    Raises: OSError.
    """
    family = socket.AF_INET6 if ":" in pool.address else socket.AF_INET
    udp = pool.protocol == "udp"
    sock = socket.socket(family, (socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) | socket.SOCK_NONBLOCK)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        sock.bind((pool.address, 0))
        if udp:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        else:
            set_tcp_options(sock)
            sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def listening_socket(pool: RelayPool, fd: int) -> socket.socket:
    """The listening socket that an earlier worker opened for a pool, from its descriptor.

    Raises: OSError.
    """
    family = socket.AF_INET6 if ":" in pool.address else socket.AF_INET
    return socket.socket(family, socket.SOCK_DGRAM if pool.protocol == "udp" else socket.SOCK_STREAM, 0, fd)
