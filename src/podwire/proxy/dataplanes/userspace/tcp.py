"""A TCP connection through the relay: from the client to an endpoint, both ways, with half-close.

splice(2) moves the bytes from one socket through a pipe to the other; they do not enter this process. A pipe is filled
only when it is empty, so a slow receiver stops the sender: the sender's TCP window closes. When one side ends its
direction, the relay shuts down that direction on the other side (shutdown(2)), and the other direction continues. A
reset on one side becomes a reset on the other. The bytes that are in a pipe when a worker is killed stay there for the
next worker.

The relay waits 0.25, 0.5, 1 and then 2 s for an endpoint to accept, as Kubernetes' own userspace mode. Each attempt
takes the next endpoint if there is more than one. An endpoint that refuses takes no time. When all attempts have
failed, the client gets a reset.
"""

import array
import errno
import fcntl
import os
import socket
import struct
import termios
from typing import Protocol

from podwire.proxy.dataplanes.userspace.balancer import Balancer
from podwire.proxy.dataplanes.userspace.loop import BROKEN, READ, WRITE, Loop
from podwire.proxy.dataplanes.userspace.memory import RELAYING, Memory, Slot
from podwire.proxy.dataplanes.userspace.messages import RelayPool, Target

CONNECT_TIMEOUTS_S = (0.25, 0.5, 1.0, 2.0)
_MAX_ATTEMPTS = 16
_CHUNK = 1 << 20
_PIPE_SIZE = 1 << 20
_SMALL = 1 << 15
"""When one splice moved fewer bytes than this, the source is probably empty now."""
_ROUNDS = 8
"""Splices of one direction before other descriptors are handled."""
_FLAGS = 3  # SPLICE_F_MOVE | SPLICE_F_NONBLOCK, linux/splice.h
RESET = struct.pack("ii", 1, 0)
SO_MARK = 36  # asm-generic/socket.h


class ConnectionHost(Protocol):
    """The parts of the relay that all its connections share."""

    loop: Loop
    memory: Memory
    pipes: list[int]
    """Empty pipes."""

    def ended(self, stream: "RelayedConnection") -> None:
        """Is called when a connection has ended."""
        ...

    def remember_affinity(self, pool: int, client: str, target: Target) -> None:
        """Stores the endpoint that a client of a pool keeps by session affinity."""
        ...


class ConnectionPool(Protocol):
    """The pool that accepted a connection."""

    number: int
    pool: RelayPool
    balancer: Balancer


def open_pipe() -> int:
    """One descriptor for both ends of a new pipe."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        return os.open(f"/proc/self/fd/{reading}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(reading)
        os.close(writing)


def set_tcp_options(sock: socket.socket) -> None:
    """Sets no-delay and keepalive; accepted connections inherit both from the listening socket."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def bytes_in_pipe(pipe: int) -> int:
    """The number of bytes in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


class Splice:
    """One direction of a connection: from ``source`` through ``pipe`` to ``sink``."""

    __slots__ = ("enlarged", "held", "pipe", "sink", "sink_shut", "source", "source_ended")

    def __init__(self, source: socket.socket, pipe: int, sink: socket.socket, held: int = 0) -> None:
        self.source = source
        self.sink = sink
        self.pipe = pipe
        self.held = held
        """Bytes in the pipe."""
        self.source_ended = False
        """Whether the source has closed its direction."""
        self.sink_shut = False
        """Whether the end was passed on to the sink."""
        self.enlarged = False
        """Whether the pipe got its larger size."""

    def move(self) -> None:
        """Moves available bytes, and passes on the end of the source when the pipe is empty.

        Raises: OSError when one side is broken.
        """
        source, pipe, sink = self.source.fileno(), self.pipe, self.sink.fileno()
        for _ in range(_ROUNDS):
            if not self.held and (self.source_ended or not self._fill(source)):
                break
            source_empty = self.held < _SMALL
            try:
                while self.held:
                    self.held -= os.splice(pipe, sink, self.held, flags=_FLAGS)
            except BlockingIOError:
                break
            if source_empty:
                break
        if self.source_ended and not self.held and not self.sink_shut:
            try:
                self.sink.shutdown(socket.SHUT_WR)
            except OSError as failure:
                # An earlier worker shut the sink down already, and the peer of the sink has closed since.
                if failure.errno != errno.ENOTCONN:
                    raise
            self.sink_shut = True

    @property
    def source_events(self) -> int:
        """The events for which the source is watched."""
        return 0 if self.held or self.source_ended else READ

    @property
    def sink_events(self) -> int:
        """The events for which the sink is watched."""
        return WRITE if self.held else 0

    def _fill(self, source: int) -> bool:
        """Moves bytes from the source to the pipe; returns whether the pipe holds bytes."""
        try:
            self.held = os.splice(source, self.pipe, _CHUNK, flags=_FLAGS)
        except BlockingIOError:
            return False
        self.source_ended = not self.held
        if not self.enlarged and self.held >= _SMALL:
            self.enlarged = True
            try:
                fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
            except OSError:
                pass
        return bool(self.held)


class RelayedConnection:
    """The connection of one client and the connection to its endpoint."""

    __slots__ = ("address", "attempts", "client", "failed", "host", "pool", "server", "slot", "to_client", "to_server")

    def __init__(self, host: ConnectionHost, pool: ConnectionPool, client: socket.socket, slot: int) -> None:
        self.host = host
        self.pool = pool
        self.client = client
        self.slot = slot
        self.address = ""
        """The client's address."""
        self.server: socket.socket | None = None
        self.to_server: Splice | None = None
        self.to_client: Splice | None = None
        self.failed: set[Target] = set()
        """Endpoints that did not accept."""
        self.attempts = 0

    def connect(self) -> None:
        """Begins to connect to the next endpoint; resets the client when no endpoint is left."""
        while self.attempts < _MAX_ATTEMPTS:
            target = self._next()
            if target is None:
                break
            self.attempts += 1
            server = _begin(target, self.pool.pool.mark)
            if server is not None:
                self._await_connected(server, target)
                return
            self._exclude(target)
        self.reset()

    def _await_connected(self, server: socket.socket, target: Target) -> None:
        self.server = server
        loop = self.host.loop
        loop.watch(server.fileno(), WRITE, lambda _: self._connected(target))
        timeout_s = CONNECT_TIMEOUTS_S[min(self.attempts, len(CONNECT_TIMEOUTS_S)) - 1]
        loop.later(timeout_s, lambda: self._timed_out(server, target))

    def _next(self) -> Target | None:
        now = self.host.loop.now
        balancer = self.pool.balancer
        previous = balancer.recall(self.address, now)
        target = balancer.choose(self.address, now, self.failed)
        if target is None and self.attempts < len(CONNECT_TIMEOUTS_S):
            self.failed.clear()
            target = balancer.choose(self.address, now)
        if target is not None and balancer.affinity_s and target != previous:
            self.host.remember_affinity(self.pool.number, self.address, target)
        return target

    def _exclude(self, target: Target) -> None:
        self.failed.add(target)
        self.pool.balancer.forget(self.address)

    def _timed_out(self, server: socket.socket, target: Target) -> None:
        if self.server is server and self.to_server is None:
            self._retry(server, target)

    def _connected(self, target: Target) -> None:
        server = self.server
        assert server is not None, "the socket was watched"
        if server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._retry(server, target)
        else:
            spare = self.host.pipes
            pipes = (spare.pop() if spare else open_pipe(), spare.pop() if spare else open_pipe())
            self.join(server, pipes, (0, 0))

    def _retry(self, server: socket.socket, target: Target) -> None:
        self.host.loop.close(server.detach())
        self.server = None
        self._exclude(target)
        self.connect()

    def join(self, server: socket.socket, pipes: tuple[int, int], held: tuple[int, int]) -> None:
        """Starts moving bytes between the client and ``server``; ``held`` is the number of bytes in each pipe."""
        self.server = server
        fds = (self.client.fileno(), server.fileno(), *pipes)
        self.host.memory.fill(self.slot, Slot(RELAYING, self.pool.number, fds, 0, ""))
        self.to_server = Splice(self.client, pipes[0], server, held[0])
        self.to_client = Splice(server, pipes[1], self.client, held[1])
        self._ready(READ | WRITE, self.to_server, self.to_client)

    def _client_ready(self, events: int) -> None:
        self._ready(events, self.to_server, self.to_client)

    def _server_ready(self, events: int) -> None:
        self._ready(events, self.to_client, self.to_server)

    def _ready(self, events: int, outgoing: Splice | None, incoming: Splice | None) -> None:
        """Handles the events of one side: moves bytes from it (``outgoing``) and to it (``incoming``)."""
        to_server, to_client, server = self.to_server, self.to_client, self.server
        assert outgoing is not None and incoming is not None, "joined before"
        assert to_server is not None and to_client is not None and server is not None, "joined before"
        try:
            if events & BROKEN:
                raise ConnectionResetError
            if events & WRITE:
                incoming.move()
            if events & ~WRITE:
                outgoing.move()
        except OSError:
            self.reset()
            return
        if to_server.sink_shut and to_client.sink_shut:
            self._finish(to_server, to_client)
            return
        loop = self.host.loop
        loop.watch(self.client.fileno(), to_server.source_events | to_client.sink_events, self._client_ready)
        loop.watch(server.fileno(), to_client.source_events | to_server.sink_events, self._server_ready)

    def _finish(self, to_server: Splice, to_client: Splice) -> None:
        """Ends a connection of which both directions are closed; the empty pipes are used again."""
        self.host.memory.free(self.slot)
        self.host.pipes += (to_server.pipe, to_client.pipe)
        self._close()

    def reset(self) -> None:
        """Resets both sides."""
        self.host.memory.free(self.slot)
        for splice in (self.to_server, self.to_client):
            if splice is not None:
                self.host.loop.close(splice.pipe)
        for side in (self.client, self.server):
            if side is not None:
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._close()

    def _close(self) -> None:
        for side in (self.client, self.server):
            if side is not None:
                self.host.loop.close(side.detach())
        self.server = None
        self.host.ended(self)


def _begin(target: Target, mark: int) -> socket.socket | None:
    """A socket that is connecting to an endpoint; None when connecting failed at once."""
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        server.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
        set_tcp_options(server)
        if server.connect_ex(target) in (0, errno.EINPROGRESS):
            return server
    except OSError:
        pass
    server.close()
    return None
