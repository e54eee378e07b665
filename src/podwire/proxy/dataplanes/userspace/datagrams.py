"""UDP through the relay: a session for each client, with a socket of its own towards its endpoint.

A datagram is read in place, sent on, and only then taken out of the queue: a worker that dies in between has sent it
twice rather than never. A session ends 30 s after its last datagram, 120 s when there were answers for more than 2 s,
which is when the kernel's connection tracking forgets a flow as well; when its endpoint serves no more; and when that
refuses: the client's next datagram then goes to the next endpoint.
"""

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from podwire.proxy.dataplanes.userspace.choose import Balancer
from podwire.proxy.dataplanes.userspace.loop import READ, Loop
from podwire.proxy.dataplanes.userspace.memory import SESSION, Memory, Slot
from podwire.proxy.dataplanes.userspace.orders import RelayPool, Target
from podwire.proxy.dataplanes.userspace.stream import SO_MARK

IDLE_S = 30.0
STREAM_IDLE_S = 120.0
_STREAM_S = 2.0
_ROUND = 64
"""Datagrams of one socket before others have their turn."""
_SIZE = 65536
_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT

Client = Any
"""A socket address as Python has it."""


class SessionHost(Protocol):
    """What all sessions have in common."""

    loop: Loop
    memory: Memory

    def chosen(self, number: int, client: str, target: Target) -> None:
        """A client has an endpoint for longer than this session."""
        ...


class UdpSession:
    """One client of one pool."""

    __slots__ = ("begun", "client", "server", "slot", "stream", "used")

    def __init__(self, client: Client, server: socket.socket, slot: int, now: float) -> None:
        self.client = client
        self.server = server
        self.slot = slot
        self.begun = now
        self.used = now
        self.stream = False

    def over(self, now: float) -> float:
        """Seconds until it ends if nothing more comes."""
        return self.used + (STREAM_IDLE_S if self.stream else IDLE_S) - now


class UdpSessions:
    """All sessions of one pool and its socket."""

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
        """Takes over other endpoints; sessions with endpoints that serve no more end."""
        self.pool = pool
        allowed = pool.serving | {_text(target) for target in pool.endpoints}
        for session in tuple(self._sessions.values()):
            if _text(session.server.getpeername()[:2]) not in allowed:
                self._end(session)

    def close(self) -> None:
        """Ends all sessions; the socket stays the caller's."""
        for session in tuple(self._sessions.values()):
            self._end(session)
        self.host.loop.ignore(self.listener.fileno())

    def adopt(self, slot: int, client: Client, server: socket.socket) -> None:
        """Goes on with a session of an earlier worker."""
        self._begin(UdpSession(client, server, slot, self.host.loop.now))

    def _from_clients(self, _events: int) -> None:
        for _ in range(_ROUND):
            try:
                data, client = self.listener.recvfrom(_SIZE, _PEEK)
            except BlockingIOError:
                return
            except OSError:
                continue
            session = self._sessions.get(client) or self._new(client)
            if session is not None:
                session.used = self.host.loop.now
                if not _send(partial(session.server.send, data)):
                    self._end(session)
            _drop(self.listener)

    def _new(self, client: Client) -> UdpSession | None:
        if not self.open:
            return None
        host, name = self.host, client[0].partition("%")[0]
        had = self.balancer.recall(name, host.loop.now)
        target = self.balancer.choose(name, host.loop.now)
        if target is None:
            return None
        if self.balancer.affinity_s and target != had:
            host.chosen(self.number, name, target)
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
            self.balancer.forget(name)
            return None
        return self._begin(UdpSession(client, server, slot, host.loop.now))

    def _begin(self, session: UdpSession) -> UdpSession:
        self._sessions[session.client] = session
        self.host.loop.watch(session.server.fileno(), READ, lambda _: self._from_endpoint(session))
        self.host.loop.later(session.over(self.host.loop.now), lambda: self._expire(session))
        return session

    def _from_endpoint(self, session: UdpSession) -> None:
        now = self.host.loop.now
        for _ in range(_ROUND):
            try:
                data = session.server.recv(_SIZE, _PEEK)
            except BlockingIOError:
                return
            except OSError:
                self.balancer.forget(session.client[0])
                self._end(session)
                return
            session.used = now
            session.stream = session.stream or now - session.begun > _STREAM_S
            _send(partial(self.listener.sendto, data, session.client))
            _drop(session.server)

    def _expire(self, session: UdpSession) -> None:
        if self._sessions.get(session.client) is not session:
            return
        left = session.over(self.host.loop.now)
        if left > 0:
            self.host.loop.later(left, lambda: self._expire(session))
        else:
            self._end(session)

    def _end(self, session: UdpSession) -> None:
        del self._sessions[session.client]
        self.host.memory.free(session.slot)
        self.host.loop.close(session.server.detach())


def _send(send: Callable[[], int]) -> bool:
    """Sends a datagram; an error that an earlier one met is told by the first try. Whether it went."""
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
    """Takes the datagram that was read in place out of the queue; the first try may meet an error of before."""
    for _ in range(2):
        try:
            receiver.recv(1, socket.MSG_DONTWAIT)
            return
        except OSError:
            continue


def _text(target: Target) -> str:
    address, port = target
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
