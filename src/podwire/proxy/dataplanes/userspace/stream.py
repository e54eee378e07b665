"""A TCP connection through the relay: from the client to an endpoint, both ways, with half-close.

Bytes go by splice(2) from one socket through a pipe to the other and do not enter this process. A pipe is filled only
when it is empty, so a receiver that is slow stops the sender: its window closes. The end of one direction is passed on
as such (shutdown), the other goes on. A reset on one side becomes a reset on the other. What is in a pipe when a worker
dies is there for the next one.

An endpoint gets 0.25, 0.5, 1 and 2 s to accept, one try after the other as in Kubernetes' own userspace mode, each with
the next endpoint if there is another; one that refuses costs no time. When all failed the client is reset.
"""

import array
import errno
import fcntl
import os
import socket
import struct
import termios
from typing import Protocol

from podwire.proxy.dataplanes.userspace.choose import Balancer
from podwire.proxy.dataplanes.userspace.loop import BROKEN, READ, WRITE, Loop
from podwire.proxy.dataplanes.userspace.memory import RELAYING, Memory, Slot
from podwire.proxy.dataplanes.userspace.orders import RelayPool, Target

TIMEOUTS_S = (0.25, 0.5, 1.0, 2.0)
_MOST_TRIES = 16
_CHUNK = 1 << 20
_PIPE_SIZE = 1 << 20
_LITTLE = 1 << 15
"""Bytes of one move that are likely to have been all there was."""
_ROUNDS = 8
"""Moves of one direction before others have their turn."""
_FLAGS = 3  # SPLICE_F_MOVE | SPLICE_F_NONBLOCK, linux/splice.h
RESET = struct.pack("ii", 1, 0)
SO_MARK = 36  # asm-generic/socket.h


class StreamHost(Protocol):
    """What connections have in common."""

    loop: Loop
    memory: Memory
    pipes: list[int]
    """Empty pipes."""

    def ended(self, stream: "RelayedConnection") -> None:
        """A connection is no more."""
        ...

    def chosen(self, number: int, client: str, target: Target) -> None:
        """A client has an endpoint for longer than this connection."""
        ...


class Backing(Protocol):
    """The pool that a connection came in by."""

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


def prompt(sock: socket.socket) -> None:
    """Has a socket send at once and notice a peer that is gone; connections to a listening socket inherit it."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def filled(pipe: int) -> int:
    """Bytes in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


class OneDirection:
    """One direction: from ``source`` through ``pipe`` to ``sink``."""

    __slots__ = ("ended", "held", "pipe", "shut", "sink", "source", "wide")

    def __init__(self, source: socket.socket, pipe: int, sink: socket.socket, held: int = 0) -> None:
        self.source = source
        self.sink = sink
        self.pipe = pipe
        self.held = held
        """Bytes in the pipe."""
        self.ended = False
        """The source said that nothing more comes."""
        self.shut = False
        """The sink was told."""
        self.wide = False

    def move(self) -> None:
        """Moves what there is.

        Raises: OSError when a side broke.
        """
        source, pipe, sink = self.source.fileno(), self.pipe, self.sink.fileno()
        for _ in range(_ROUNDS):
            if not self.held and (self.ended or not self._fill(source)):
                break
            little = self.held < _LITTLE
            try:
                while self.held:
                    self.held -= os.splice(pipe, sink, self.held, flags=_FLAGS)
            except BlockingIOError:
                break
            if little:
                break
        if self.ended and not self.held and not self.shut:
            try:
                self.sink.shutdown(socket.SHUT_WR)
            except OSError as failure:
                # An earlier worker told it, and since then the other side has ended too.
                if failure.errno != errno.ENOTCONN:
                    raise
            self.shut = True

    @property
    def wanted(self) -> int:
        """What the source is watched for."""
        return 0 if self.held or self.ended else READ

    @property
    def wanting(self) -> int:
        """What the sink is watched for."""
        return WRITE if self.held else 0

    def _fill(self, source: int) -> bool:
        """Whether there is something in the pipe now."""
        try:
            self.held = os.splice(source, self.pipe, _CHUNK, flags=_FLAGS)
        except BlockingIOError:
            return False
        self.ended = not self.held
        if not self.wide and self.held >= _LITTLE:
            self.wide = True
            try:
                fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
            except OSError:
                pass
        return bool(self.held)


class RelayedConnection:
    """One client's connection."""

    __slots__ = ("back", "backing", "client", "host", "name", "server", "slot", "there", "tried", "tries")

    def __init__(self, host: StreamHost, backing: Backing, client: socket.socket, slot: int) -> None:
        self.host = host
        self.backing = backing
        self.client = client
        self.slot = slot
        self.name = ""
        """The client's address."""
        self.server: socket.socket | None = None
        self.there: OneDirection | None = None
        self.back: OneDirection | None = None
        self.tried: set[Target] = set()
        self.tries = 0

    def connect(self) -> None:
        """Begins with the next endpoint."""
        while self.tries < _MOST_TRIES:
            target = self._next()
            if target is None:
                break
            self.tries += 1
            server = _begin(target, self.backing.pool.mark)
            if server is not None:
                self._wait_for(server, target)
                return
            self._failed(target)
        self.reset()

    def _wait_for(self, server: socket.socket, target: Target) -> None:
        self.server = server
        loop = self.host.loop
        loop.watch(server.fileno(), WRITE, lambda _: self._answered(target))
        loop.later(TIMEOUTS_S[min(self.tries, len(TIMEOUTS_S)) - 1], lambda: self._late(server, target))

    def _next(self) -> Target | None:
        now = self.host.loop.now
        balancer = self.backing.balancer
        had = balancer.recall(self.name, now)
        target = balancer.choose(self.name, now, self.tried)
        if target is None and self.tries < len(TIMEOUTS_S):
            self.tried.clear()
            target = balancer.choose(self.name, now)
        if target is not None and balancer.affinity_s and target != had:
            self.host.chosen(self.backing.number, self.name, target)
        return target

    def _failed(self, target: Target) -> None:
        self.tried.add(target)
        self.backing.balancer.forget(self.name)

    def _late(self, server: socket.socket, target: Target) -> None:
        if self.server is server and self.there is None:
            self._again(server, target)

    def _answered(self, target: Target) -> None:
        server = self.server
        assert server is not None, "it was watched"
        if server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._again(server, target)
        else:
            pipes = self.host.pipes
            fresh = (pipes.pop() if pipes else open_pipe(), pipes.pop() if pipes else open_pipe())
            self.join(server, fresh, (0, 0))

    def _again(self, server: socket.socket, target: Target) -> None:
        self.host.loop.close(server.detach())
        self.server = None
        self._failed(target)
        self.connect()

    def join(self, server: socket.socket, pipes: tuple[int, int], held: tuple[int, int]) -> None:
        """Both sides are there: bytes begin to go, or go on; ``held`` are those in the pipes."""
        self.server = server
        fds = (self.client.fileno(), server.fileno(), *pipes)
        self.host.memory.fill(self.slot, Slot(RELAYING, self.backing.number, fds, 0, ""))
        self.there = OneDirection(self.client, pipes[0], server, held[0])
        self.back = OneDirection(server, pipes[1], self.client, held[1])
        self._ready(READ | WRITE, self.there, self.back)

    def _client_ready(self, events: int) -> None:
        self._ready(events, self.there, self.back)

    def _server_ready(self, events: int) -> None:
        self._ready(events, self.back, self.there)

    def _ready(self, events: int, out: OneDirection | None, into: OneDirection | None) -> None:
        """One side has events: moves what can be moved on the way from it (``out``) and to it (``into``)."""
        there, back, server = self.there, self.back, self.server
        assert out is not None and into is not None, "joined before"
        assert there is not None and back is not None and server is not None, "joined before"
        try:
            if events & BROKEN:
                raise ConnectionResetError
            if events & WRITE:
                into.move()
            if events & ~WRITE:
                out.move()
        except OSError:
            self.reset()
            return
        if there.shut and back.shut:
            self._finish(there, back)
            return
        loop = self.host.loop
        loop.watch(self.client.fileno(), there.wanted | back.wanting, self._client_ready)
        loop.watch(server.fileno(), back.wanted | there.wanting, self._server_ready)

    def _finish(self, there: OneDirection, back: OneDirection) -> None:
        """All is said: pipes are empty."""
        self.host.memory.free(self.slot)
        self.host.pipes += (there.pipe, back.pipe)
        self._close()

    def reset(self) -> None:
        """Ends both sides at once."""
        self.host.memory.free(self.slot)
        for way in (self.there, self.back):
            if way is not None:
                self.host.loop.close(way.pipe)
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
    """A connection that is being made, None where that failed at once."""
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        server.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
        prompt(server)
        if server.connect_ex(target) in (0, errno.EINPROGRESS):
            return server
    except OSError:
        pass
    server.close()
    return None
