"""Restores the pools and connections that an earlier worker of the relay left, when it was killed or replaced.

The memory of the relay (:mod:`.memory`) names the descriptors, which are still open. Connections continue, connections
without an endpoint get one, and pools listen again. A client that was accepted just before the worker ended is in no
slot yet: its descriptor is found by comparing the open descriptors with the memory. All other unknown descriptors are
closed.
"""

import contextlib
import os
import socket
from pathlib import Path

from podwire.observe.log import Log
from podwire.proxy.dataplanes.userspace.memory import (
    RELAYING,
    SESSION,
    AffinityEntry,
    Listener,
    PoolRemoved,
    Slot,
)
from podwire.proxy.dataplanes.userspace.pool import RemovedPool, ServedPool, listening_socket
from podwire.proxy.dataplanes.userspace.relay import Relay
from podwire.proxy.dataplanes.userspace.tcp import ConnectionPool

_ESTABLISHED, _CLOSE_WAIT = 1, 8  # net/tcp_states.h


class Recovery:
    """Restores the state of an earlier worker in a new relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._memory = relay.memory
        self._log = Log("relay")

    def run(self, keep: set[int]) -> None:
        """Restores pools and connections, and closes unknown descriptors, except the descriptors in ``keep``."""
        relay, memory = self._relay, self._memory
        self._restore_pools()
        slots = tuple(memory.used())
        known = {fd for _, slot in slots for fd in slot.fds if fd >= 0} | keep
        known |= {pool.sock.fileno() for pool in relay.pools.values()}
        known |= {relay.loop.fileno(), memory.fd, memory.journal}
        accepted = [self._accepted_client(fd) for fd in _open_descriptors() if fd > 2 and fd not in known]
        for number, slot in slots:
            self._restore_slot(number, slot)
        for pool, client in filter(None, accepted):
            relay.acceptor.begin(pool, client, _peer_address(client))
        relay.recovered()

    def _restore_pools(self) -> None:
        listeners: dict[int, Listener] = {}
        affinity: dict[int, list[AffinityEntry]] = {}
        for entry in self._memory.entries():
            self._relay.reserve_number(entry.number)
            match entry:
                case Listener():
                    listeners[entry.number] = entry
                case PoolRemoved():
                    del listeners[entry.number]
                case AffinityEntry():
                    affinity.setdefault(entry.number, []).append(entry)
        for number, listener in listeners.items():
            try:
                pool = ServedPool(number, listener.pool, listening_socket(listener.pool, listener.fd))
            except OSError as failure:
                self._log.error("cannot restore a pool", pool=listener.pool.key, problem=failure)
                self._memory.append(PoolRemoved(number))
                continue
            pool.retired = listener.retired
            for entry in affinity.get(number, ()):
                pool.balancer.remember(entry.client, entry.target, self._relay.loop.now)
            self._relay.serve(pool)

    def _restore_slot(self, number: int, slot: Slot) -> None:
        pool = self._relay.pools.get(slot.pool)
        client, server, to_server, to_client = slot.fds
        if slot.state == SESSION:
            if pool is None or pool.sessions is None:
                self._memory.free(number)
                os.close(server)
                return
            address = (slot.address, slot.port, 0, 0) if ":" in slot.address else (slot.address, slot.port)
            pool.sessions.adopt(number, address, _open_socket(server))
            return
        acceptor = self._relay.acceptor
        connection_pool: ConnectionPool = pool or RemovedPool(slot.pool)
        try:
            if slot.state == RELAYING:
                sides = (_open_socket(client), _open_socket(server))
                acceptor.resume(connection_pool, number, sides, (to_server, to_client))
            else:
                sock = _open_socket(client)
                acceptor.connect(connection_pool, sock, number, _peer_address(sock))
        except OSError as failure:
            self._log.warning("cannot restore a connection", problem=failure)
            self._memory.free(number)

    def _accepted_client(self, fd: int) -> tuple[ServedPool, socket.socket] | None:
        """The client of a descriptor that is in no slot, with its pool; None for others, which are closed."""
        try:
            client = socket.socket(fileno=fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.close(fd)
            return None
        pool = self._accepted_by(client)
        if pool is None:
            client.close()
            return None
        return pool, client

    def _accepted_by(self, client: socket.socket) -> ServedPool | None:
        if client.type != socket.SOCK_STREAM or client.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            local_address = client.getsockname()[:2]
            client.getpeername()
            state = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            resetting = client.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[0]
        except OSError:
            return None
        if state not in (_ESTABLISHED, _CLOSE_WAIT) or resetting:
            return None
        tcp_pools = (pool for pool in self._relay.pools.values() if pool.pool.protocol == "tcp")
        return next((pool for pool in tcp_pools if pool.sock.getsockname()[:2] == local_address), None)


def _open_socket(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock


def _peer_address(client: socket.socket) -> str:
    try:
        return str(client.getpeername()[0])
    except OSError:
        return ""


def _open_descriptors() -> list[int]:
    descriptors = []
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            os.fstat(number)
            descriptors.append(number)
    return descriptors
