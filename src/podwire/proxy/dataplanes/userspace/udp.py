"""UDP through the relay: a session for each client, with a socket of its own towards its endpoint.

The relay reads a datagram without removing it from the queue, sends it, and then removes it. When a worker is killed
in between, the datagram is sent twice, not lost. A session ends 30 s after its last datagram, or 120 s after it when
answers came for more than 2 s (connection tracking in the kernel uses the same time-outs). A session also ends when its
endpoint stops serving or refuses a datagram; the next datagram of the client then goes to the next endpoint.
"""

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from podwire.proxy.dataplanes.userspace.balancer import Balancer
from podwire.proxy.dataplanes.userspace.loop import READ, Loop
from podwire.proxy.dataplanes.userspace.memory import SESSION, Memory, Slot
from podwire.proxy.dataplanes.userspace.messages import RelayPool, Target
from podwire.proxy.dataplanes.userspace.tcp import SO_MARK

IDLE_S = 30.0
STREAM_IDLE_S = 120.0
_STREAM_S = 2.0
_DATAGRAMS = 64
"""Datagrams of one socket before other sockets are handled."""
_MAX_SIZE = 65536
_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT

Client = Any
"""A socket address as Python represents it: (address, port), for IPv6 with flow label and scope."""


class SessionHost(Protocol):
    """The parts of the relay that all sessions share."""

    loop: Loop
    memory: Memory

    def remember_affinity(self, pool: int, client: str, target: Target) -> None:
        """Stores the endpoint that a client of a pool keeps by session affinity."""
        ...


class UdpSession:
    """The session of one client with one pool."""

    __slots__ = ("began", "client", "server", "slot", "stream", "used")

    def __init__(self, client: Client, server: socket.socket, slot: int, now: float) -> None:
        self.client = client
        self.server = server
        self.slot = slot
        self.began = now
        self.used = now
        """The time of the last datagram."""
        self.stream = False
        """Whether answers came for more than 2 s."""

    def idle_timeout(self, now: float) -> float:
        """Seconds until the session ends if no datagram comes."""
        return self.used + (STREAM_IDLE_S if self.stream else IDLE_S) - now


class UdpSessions:
    """All sessions of one pool, and the socket of the pool."""

    def __init__(
        self, host: SessionHost, number: int, pool: RelayPool, balancer: Balancer, listener: socket.socket
    ) -> None:
        self.host = host
        self.number = number
        self.pool = pool
        self.balancer = balancer
        self.listener = listener
        self.open = True
        """Whether new clients are served."""
        self._sessions: dict[Client, UdpSession] = {}
        host.loop.watch(listener.fileno(), READ, self._from_clients)

    def __len__(self) -> int:
        return len(self._sessions)

    def change(self, pool: RelayPool) -> None:
        """Applies changed endpoints; ends sessions with endpoints that stopped serving."""
        self.pool = pool
        allowed = pool.serving | {_text(target) for target in pool.endpoints}
        for session in tuple(self._sessions.values()):
            if _text(session.server.getpeername()[:2]) not in allowed:
                self._end(session)

    def close(self) -> None:
        """Ends all sessions; the caller closes the socket."""
        for session in tuple(self._sessions.values()):
            self._end(session)
        self.host.loop.ignore(self.listener.fileno())

    def adopt(self, slot: int, client: Client, server: socket.socket) -> None:
        """Continues a session of an earlier worker."""
        self._begin(UdpSession(client, server, slot, self.host.loop.now))

    def _from_clients(self, _events: int) -> None:
        for _ in range(_DATAGRAMS):
            try:
                data, client = self.listener.recvfrom(_MAX_SIZE, _PEEK)
            except BlockingIOError:
                return
            except OSError:
                continue
            session = self._sessions.get(client) or self._open(client)
            if session is not None:
                session.used = self.host.loop.now
                if not _send(partial(session.server.send, data)):
                    self._end(session)
            _drop(self.listener)

    def _open(self, client: Client) -> UdpSession | None:
        if not self.open:
            return None
        host, address = self.host, client[0].partition("%")[0]
        previous = self.balancer.recall(address, host.loop.now)
        target = self.balancer.choose(address, host.loop.now)
        if target is None:
            return None
        if self.balancer.affinity_s and target != previous:
            host.remember_affinity(self.number, address, target)
        try:
            server = socket.socket(self.listener.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError:
            return None
        server.setsockopt(socket.SOL_SOCKET, SO_MARK, self.pool.mark)
        slot = -1
        if server.connect_ex(target) == 0:
            fds = (-1, server.fileno(), -1, -1)
            slot = host.memory.take(Slot(SESSION, self.number, fds, client[1], client[0]))
        if slot < 0:
            server.close()
            self.balancer.forget(address)
            return None
        return self._begin(UdpSession(client, server, slot, host.loop.now))

    def _begin(self, session: UdpSession) -> UdpSession:
        self._sessions[session.client] = session
        self.host.loop.watch(session.server.fileno(), READ, lambda _: self._from_endpoint(session))
        self.host.loop.later(session.idle_timeout(self.host.loop.now), lambda: self._expire(session))
        return session

    def _from_endpoint(self, session: UdpSession) -> None:
        now = self.host.loop.now
        for _ in range(_DATAGRAMS):
            try:
                data = session.server.recv(_MAX_SIZE, _PEEK)
            except BlockingIOError:
                return
            except OSError:
                self.balancer.forget(session.client[0])
                self._end(session)
                return
            session.used = now
            session.stream = session.stream or now - session.began > _STREAM_S
            _send(partial(self.listener.sendto, data, session.client))
            _drop(session.server)

    def _expire(self, session: UdpSession) -> None:
        if self._sessions.get(session.client) is not session:
            return
        remaining_s = session.idle_timeout(self.host.loop.now)
        if remaining_s > 0:
            self.host.loop.later(remaining_s, lambda: self._expire(session))
        else:
            self._end(session)

    def _end(self, session: UdpSession) -> None:
        del self._sessions[session.client]
        self.host.memory.free(session.slot)
        self.host.loop.close(session.server.detach())


def _send(send: Callable[[], int]) -> bool:
    """Sends a datagram; returns whether it was sent.

    The first attempt may report an error of an earlier datagram, so a second attempt follows.
    """
    for _ in range(2):
        try:
            send()
            return True
        except BlockingIOError:
            return True
        except OSError:
            continue
    return False


def _drop(receiver: socket.socket) -> None:
    """Removes the datagram that was read from the queue.

    The first attempt may report an error of an earlier datagram, so a second attempt follows.
    """
    for _ in range(2):
        try:
            receiver.recv(1, socket.MSG_DONTWAIT)
            return
        except OSError:
            continue


def _text(target: Target) -> str:
    address, port = target
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
