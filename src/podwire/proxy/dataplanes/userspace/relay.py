"""The relay: pools with their listening sockets, and the requests of the data plane.

One process for all Services of a network namespace. It does not know Services, traffic policies or rules: a pool is a
port and endpoints. The relay keeps its state in memory that outlives the worker (:mod:`.memory`). So it works without
an agent, and when a worker is killed, a new worker continues its connections: see :meth:`Relay.recover`.

A pool that is retired serves what comes for two seconds more, for connections that a rule sent here while it was being
taken away, and UDP as long as it has sessions. A relay that drains ends with its last connection.
"""

import contextlib
import errno
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from podwire.observe.log import Log
from podwire.proxy.dataplanes.userspace.choose import Balancer
from podwire.proxy.dataplanes.userspace.datagrams import UdpSessions
from podwire.proxy.dataplanes.userspace.loop import READ, Loop
from podwire.proxy.dataplanes.userspace.memory import (
    ACCEPTED,
    RELAYING,
    SESSION,
    Entry,
    Listener,
    Memory,
    PoolRemoved,
    Slot,
    Sticky,
)
from podwire.proxy.dataplanes.userspace.orders import Arrange, Arranged, RelayPool, Retire, Retired, Shown, Target
from podwire.proxy.dataplanes.userspace.stream import Backing, RelayedConnection, filled, prompt

_GRACE_S = 2.0
_ORDERS_S = 10.0
_BACKLOG = 4096
_ACCEPTS = 64
_PAUSE_S = 0.1
_SPARE_PIPES = 64
_IP_FREEBIND = 15  # linux/in.h
_IPV6_FREEBIND = 78  # linux/in6.h
_ESTABLISHED, _CLOSE_WAIT = 1, 8  # net/tcp_states.h


class Serving:
    """A pool in service."""

    def __init__(self, number: int, pool: RelayPool, sock: socket.socket) -> None:
        self.number = number
        self.pool = pool
        self.sock = sock
        self.balancer = Balancer(pool.endpoints, pool.affinity_s, random.randrange(1 << 16))
        self.sessions: UdpSessions | None = None
        self.retired = False

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.sock.getsockname()[1])

    def entry(self) -> Listener:
        """As the journal has it."""
        return Listener(self.number, self.pool, self.sock.fileno(), self.retired)


class _RemovedPool:
    """Stands for a pool that was removed, while its last connections continue."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pool = RelayPool(key="", protocol="tcp", address="", endpoints=())
        self.balancer = Balancer()


class Relay:
    """All pools and connections of one worker."""

    def __init__(self, memory: Memory, loop: Loop, *, stays: bool = False) -> None:
        """``stays``: the relay does not end when it has no pool and no connection."""
        self.memory = memory
        self._stays = stays
        self.loop = loop
        self.pipes: list[int] = []
        self._log = Log("relay")
        self._numbers = 0
        self._pools: dict[int, Serving] = {}
        self._keys: dict[str, Serving] = {}
        self._streams: set[RelayedConnection] = set()
        self._draining = False

    @property
    def ports(self) -> dict[str, int]:
        """The port of each pool that is not retired."""
        return {key: serving.port for key, serving in self._keys.items()}

    @property
    def connections(self) -> int:
        """TCP connections."""
        return len(self._streams)

    @property
    def sessions(self) -> int:
        """UDP sessions."""
        return sum(len(each.sessions) for each in self._pools.values() if each.sessions is not None)

    # What the data plane orders.

    def arrange(self, order: Arrange) -> Arranged:
        """Makes these pools as they are given; the others stay."""
        self._draining = False
        changed, problems = [], {}
        for pool in order.pools:
            known = self._keys.get(pool.key)
            if known is not None and known.pool == pool:
                continue
            changed.append(pool.key)
            if known is not None and (known.pool.address, known.pool.protocol) == (pool.address, pool.protocol):
                self._change(known, pool)
                continue
            try:
                sock = _listen(pool)
            except OSError as failure:
                problems[pool.key] = f"listen on {pool.address}: {failure.strerror}"
                continue
            if known is not None:
                self._retire(known)
            self._numbers += 1
            self._serve(Serving(self._numbers, pool, sock))
        self._tidy()
        ports = {pool.key: self._keys[pool.key].port for pool in order.pools if pool.key in self._keys}
        return Arranged(ports, tuple(changed), problems)

    def retire(self, order: Retire) -> Retired:
        """Retires the pools of the order; no rule leads to them any more."""
        named = set(order.keys)
        going = [key for key in self._keys if (key in named) != order.others]
        for key in going:
            self._retire(self._keys.pop(key))
        self._tidy()
        return Retired(tuple(going))

    def show(self) -> Shown:
        """What is served."""
        return Shown(tuple(serving.pool for serving in self._keys.values()), self.ports)

    def drain(self) -> None:
        """Retires all pools; the relay ends with its last connection."""
        self._draining = True
        self.retire(Retire((), others=True))
        self.loop.later(0, self._stop_when_idle)

    def _serve(self, serving: Serving) -> None:
        self.memory.append(serving.entry())
        self._keys[serving.pool.key] = serving
        self._listen_on(serving)

    def _listen_on(self, serving: Serving) -> None:
        self._pools[serving.number] = serving
        if serving.pool.protocol == "udp":
            serving.sessions = UdpSessions(self, serving.number, serving.pool, serving.balancer, serving.sock)
        else:
            self._accept_on(serving)

    def _accept_on(self, serving: Serving) -> None:
        if serving.number in self._pools:
            self.loop.watch(serving.sock.fileno(), READ, lambda _: self._accept(serving))

    def _change(self, serving: Serving, pool: RelayPool) -> None:
        serving.pool = pool
        serving.balancer.change(pool.endpoints, pool.affinity_s)
        self.memory.append(serving.entry())
        if serving.sessions is not None:
            serving.sessions.change(pool)

    def _retire(self, serving: Serving) -> None:
        serving.retired = True
        self.memory.append(serving.entry())
        self._leave(serving)

    def _leave(self, serving: Serving) -> None:
        self.loop.later(_GRACE_S, lambda: self._end_pool(serving))

    def _end_pool(self, serving: Serving) -> None:
        """Removes a retired pool after its grace period."""
        if serving.sessions is not None:
            serving.sessions.open = False
            if len(serving.sessions):
                self._leave(serving)
                return
            serving.sessions.close()
        else:
            self._accept(serving)
        del self._pools[serving.number]
        self.memory.append(PoolRemoved(serving.number))
        self.loop.close(serving.sock.detach())
        self._stop_when_idle()

    def _stop_when_idle(self) -> None:
        if not self._stays and self._draining and not self._pools and not self._streams:
            self.loop.running = False

    def _tidy(self) -> None:
        if self.memory.overgrown():
            self.memory.rewrite(self._everything())

    def _everything(self) -> Iterator[Entry]:
        for serving in self._pools.values():
            yield serving.entry()
            for client, target in serving.balancer.remembered().items():
                yield Sticky(serving.number, client, target)

    # What connections do.

    def ended(self, stream: RelayedConnection) -> None:
        """A connection is no more."""
        self._streams.discard(stream)
        while len(self.pipes) > _SPARE_PIPES:
            self.loop.close(self.pipes.pop())
        self._stop_when_idle()

    def chosen(self, number: int, client: str, target: Target) -> None:
        """A client has an endpoint by affinity, which a new worker has to know."""
        self.memory.append(Sticky(number, client, target))
        self._tidy()

    def _accept(self, serving: Serving) -> None:
        for _ in range(_ACCEPTS):
            if self.memory.full:
                self._pause(serving, "all slots are in use")
                return
            try:
                client, address = serving.sock.accept()
            except BlockingIOError:
                return
            except OSError as failure:
                if failure.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(serving, failure.strerror or "")
                    return
                continue
            self._begin(serving, client, address[0])

    def _pause(self, serving: Serving, problem: str) -> None:
        """Stops accepting for 0.1 s; new connections wait in the backlog of the listening socket."""
        self._log.warning("cannot accept a connection", pool=serving.pool.key, problem=problem)
        self.loop.ignore(serving.sock.fileno())
        self.loop.later(_PAUSE_S, lambda: self._accept_on(serving))

    def _begin(self, serving: Serving, client: socket.socket, name: str) -> None:
        client.setblocking(False)
        slot = self.memory.take(Slot(ACCEPTED, serving.number, (client.fileno(), -1, -1, -1), 0, ""))
        if slot < 0:
            client.close()
        else:
            self._connect(serving, client, slot, name)

    def _connect(self, serving: Backing, client: socket.socket, slot: int, name: str) -> None:
        stream = RelayedConnection(self, serving, client, slot)
        stream.name = name
        self._streams.add(stream)
        try:
            stream.connect()
        except OSError as failure:
            self._log.warning("cannot connect to an endpoint", pool=serving.pool.key, problem=failure.strerror)
            stream.reset()

    # After a worker that was killed.

    def recover(self, keep: set[int]) -> None:
        """Takes over what an earlier worker left in memory and in the table of descriptors.

        Connections go on, those without an endpoint yet get one, pools listen. Descriptors that nobody knows are
        closed, but for connections that had just been accepted, and ``keep``.
        """
        self._recover_pools()
        used = tuple(self.memory.used())
        known = {fd for _, slot in used for fd in slot.fds if fd >= 0} | keep
        known |= {serving.sock.fileno() for serving in self._pools.values()}
        known |= {self.loop.fileno(), self.memory.fd, self.memory.journal}
        strays = [self._recover_stray(fd) for fd in _descriptors() if fd > 2 and fd not in known]
        for number, slot in used:
            self._recover_slot(number, slot)
        for serving, client in filter(None, strays):
            self._begin(serving, client, _name(client))
        self._draining = not self._keys
        self.loop.later(_ORDERS_S, self._stop_when_idle)

    def _recover_pools(self) -> None:
        last: dict[int, Listener] = {}
        sticky: dict[int, list[Sticky]] = {}
        for entry in self.memory.entries():
            self._numbers = max(self._numbers, entry.number)
            match entry:
                case Listener():
                    last[entry.number] = entry
                case PoolRemoved():
                    del last[entry.number]
                case Sticky():
                    sticky.setdefault(entry.number, []).append(entry)
        for entry in last.values():
            try:
                serving = Serving(entry.number, entry.pool, _socket(entry.pool, entry.fd))
            except OSError as failure:
                self._log.error("cannot restore a pool", pool=entry.pool.key, problem=failure)
                self.memory.append(PoolRemoved(entry.number))
                continue
            serving.retired = entry.retired
            for each in sticky.get(entry.number, ()):
                serving.balancer.remember(each.client, each.target, self.loop.now)
            self._listen_on(serving)
            if serving.retired:
                self._leave(serving)
            else:
                self._keys[serving.pool.key] = serving

    def _recover_slot(self, number: int, slot: Slot) -> None:
        serving = self._pools.get(slot.pool)
        client, server, there, back = slot.fds
        if slot.state == SESSION:
            if serving is None or serving.sessions is None:
                self.memory.free(number)
                os.close(server)
                return
            address = (slot.address, slot.port, 0, 0) if ":" in slot.address else (slot.address, slot.port)
            serving.sessions.adopt(number, address, _adopt(server))
            return
        backing: Backing = serving or _RemovedPool(slot.pool)
        try:
            if slot.state == RELAYING:
                stream = RelayedConnection(self, backing, _adopt(client), number)
                self._streams.add(stream)
                stream.join(_adopt(server), (there, back), (filled(there), filled(back)))
            else:
                taken = _adopt(client)
                self._connect(backing, taken, number, _name(taken))
        except OSError as failure:
            self._log.warning("cannot restore a connection", problem=failure)
            self.memory.free(number)

    def _recover_stray(self, fd: int) -> tuple[Serving, socket.socket] | None:
        """A descriptor that no slot names: a client that had just been accepted, or closed as of no use."""
        try:
            client = socket.socket(fileno=fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.close(fd)
            return None
        serving = self._accepted_by(client)
        if serving is None:
            client.close()
            return None
        return serving, client

    def _accepted_by(self, client: socket.socket) -> Serving | None:
        if client.type != socket.SOCK_STREAM or client.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            own = client.getsockname()[:2]
            client.getpeername()
            state = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            leaving = client.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[0]
        except OSError:
            return None
        if state not in (_ESTABLISHED, _CLOSE_WAIT) or leaving:
            return None
        tcp_pools = (serving for serving in self._pools.values() if serving.pool.protocol == "tcp")
        return next((serving for serving in tcp_pools if serving.sock.getsockname()[:2] == own), None)


def _listen(pool: RelayPool) -> socket.socket:
    """A listening socket on a port that is free, also on an address that is not here yet."""
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
            prompt(sock)
            sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _socket(pool: RelayPool, fd: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in pool.address else socket.AF_INET
    return socket.socket(family, socket.SOCK_DGRAM if pool.protocol == "udp" else socket.SOCK_STREAM, 0, fd)


def _adopt(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock


def _name(client: socket.socket) -> str:
    try:
        return str(client.getpeername()[0])
    except OSError:
        return ""


def _descriptors() -> list[int]:
    found = []
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            os.fstat(number)
            found.append(number)
    return found
