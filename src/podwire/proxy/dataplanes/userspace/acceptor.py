"""Accepts TCP connections for the pools of one worker of the relay, and keeps the open ones."""

import errno
import socket
from collections.abc import Callable

from podwire.observe.log import Log
from podwire.proxy.dataplanes.userspace.loop import READ, Loop
from podwire.proxy.dataplanes.userspace.memory import ACCEPTED, Memory, Slot
from podwire.proxy.dataplanes.userspace.messages import Target
from podwire.proxy.dataplanes.userspace.pool import ServedPool
from podwire.proxy.dataplanes.userspace.tcp import ConnectionPool, RelayedConnection, bytes_in_pipe

_ACCEPTS = 64
"""Connections of one pool that are accepted before other descriptors are handled."""
_PAUSE_S = 0.1
_SPARE_PIPES = 64


class Acceptor:
    """The TCP connections of one worker."""

    def __init__(
        self,
        memory: Memory,
        loop: Loop,
        remember_affinity: Callable[[int, str, Target], None],
        connection_ended: Callable[[], None],
    ) -> None:
        """``connection_ended`` is called after each connection that has ended."""
        self.memory = memory
        self.loop = loop
        self.pipes: list[int] = []
        self._remember_affinity = remember_affinity
        self._connection_ended = connection_ended
        self._connections: set[RelayedConnection] = set()
        self._log = Log("relay")

    def __len__(self) -> int:
        return len(self._connections)

    def start(self, pool: ServedPool) -> None:
        """Accepts the connections of a pool from now on."""
        self.loop.watch(pool.sock.fileno(), READ, lambda _: self.accept(pool))

    def accept(self, pool: ServedPool) -> None:
        """Accepts connections that wait for a pool, a limited number at a time."""
        for _ in range(_ACCEPTS):
            if self.memory.full:
                self._pause(pool, "all slots are in use")
                return
            try:
                client, address = pool.sock.accept()
            except BlockingIOError:
                return
            except OSError as failure:
                if failure.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(pool, failure.strerror or "")
                    return
                continue
            self.begin(pool, client, address[0])

    def _pause(self, pool: ServedPool, problem: str) -> None:
        """Stops accepting for 0.1 s; new connections wait in the backlog of the listening socket."""
        self._log.warning("cannot accept a connection", pool=pool.pool.key, problem=problem)
        self.loop.ignore(pool.sock.fileno())
        self.loop.later(_PAUSE_S, lambda: self._accept_again(pool))

    def _accept_again(self, pool: ServedPool) -> None:
        if pool.sock.fileno() >= 0:  # else the pool was removed during the pause
            self.start(pool)

    def begin(self, pool: ServedPool, client: socket.socket, address: str) -> None:
        """Takes a slot for an accepted client and connects it; closes the client when no slot is free."""
        client.setblocking(False)
        slot = self.memory.take(Slot(ACCEPTED, pool.number, (client.fileno(), -1, -1, -1), 0, ""))
        if slot < 0:
            client.close()
        else:
            self.connect(pool, client, slot, address)

    def connect(self, pool: ConnectionPool, client: socket.socket, slot: int, address: str) -> None:
        """Connects a client that has a slot to an endpoint."""
        connection = RelayedConnection(self, pool, client, slot)
        connection.address = address
        self._connections.add(connection)
        try:
            connection.connect()
        except OSError as failure:
            self._log.warning("cannot connect to an endpoint", pool=pool.pool.key, problem=failure.strerror)
            connection.reset()

    def resume(
        self, pool: ConnectionPool, slot: int, sides: tuple[socket.socket, socket.socket], pipes: tuple[int, int]
    ) -> None:
        """Continues a connection of an earlier worker between ``sides`` (client and endpoint).

        Raises: OSError.
        """
        client, server = sides
        held = (bytes_in_pipe(pipes[0]), bytes_in_pipe(pipes[1]))
        connection = RelayedConnection(self, pool, client, slot)
        self._connections.add(connection)
        connection.join(server, pipes, held)

    def remember_affinity(self, pool: int, client: str, target: Target) -> None:
        """Stores the endpoint that a client of a pool keeps by session affinity."""
        self._remember_affinity(pool, client, target)

    def ended(self, connection: RelayedConnection) -> None:
        """Is called when a connection has ended."""
        self._connections.discard(connection)
        while len(self.pipes) > _SPARE_PIPES:
            self.loop.close(self.pipes.pop())
        self._connection_ended()
