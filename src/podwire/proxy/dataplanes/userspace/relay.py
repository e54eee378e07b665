"""The relay: pools with their listening sockets, and the requests of the data plane.

One process for all Services of a network namespace. It does not know Services, traffic policies or rules: a pool is a
port and endpoints. The relay keeps its state in memory that outlives the worker (:mod:`.memory`). So it works without
an agent, and when a worker is killed, a new worker continues its connections (:mod:`.recovery`).

A retired pool accepts connections for two more seconds, because a rule may have sent connections here while it was
being removed. A retired UDP pool stays as long as it has sessions. A draining relay ends with its last connection.
"""

from collections.abc import Iterator, Mapping

from podwire.proxy.dataplanes.userspace.acceptor import Acceptor
from podwire.proxy.dataplanes.userspace.loop import Loop
from podwire.proxy.dataplanes.userspace.memory import AffinityEntry, Entry, Memory, PoolRemoved
from podwire.proxy.dataplanes.userspace.messages import Arrange, Arranged, RelayPool, Retire, Retired, Shown, Target
from podwire.proxy.dataplanes.userspace.pool import ServedPool, listen
from podwire.proxy.dataplanes.userspace.udp import UdpSessions

_GRACE_S = 2.0
_FIRST_REQUEST_S = 10.0
"""How long a recovered relay without pools waits for requests."""


class Relay:
    """All pools of one worker."""

    def __init__(self, memory: Memory, loop: Loop, *, stays: bool = False) -> None:
        """``stays``: the relay does not end when it has no pool and no connection."""
        self.memory = memory
        self.loop = loop
        self.acceptor = Acceptor(memory, loop, self.remember_affinity, self._stop_when_idle)
        self._stays = stays
        self._last_number = 0
        self._pools: dict[int, ServedPool] = {}
        """All pools by number, with the retired ones."""
        self._active: dict[str, ServedPool] = {}
        """The pools that are not retired, by key."""
        self._draining = False

    @property
    def ports(self) -> dict[str, int]:
        """The port of each pool that is not retired."""
        return {key: pool.port for key, pool in self._active.items()}

    @property
    def pools(self) -> Mapping[int, ServedPool]:
        """All pools by number, with the retired ones."""
        return self._pools

    @property
    def connections(self) -> int:
        """The number of TCP connections."""
        return len(self.acceptor)

    @property
    def sessions(self) -> int:
        """The number of UDP sessions."""
        return sum(len(pool.sessions) for pool in self._pools.values() if pool.sessions is not None)

    def arrange(self, request: Arrange) -> Arranged:
        """Creates or changes the requested pools; other pools stay unchanged."""
        self._draining = False
        changed, problems = [], {}
        for relay_pool in request.pools:
            current = self._active.get(relay_pool.key)
            if current is not None and current.pool == relay_pool:
                continue
            changed.append(relay_pool.key)
            if current is not None and _same_socket(current.pool, relay_pool):
                self._change(current, relay_pool)
                continue
            try:
                sock = listen(relay_pool)
            except OSError as failure:
                problems[relay_pool.key] = f"listen on {relay_pool.address}: {failure.strerror}"
                continue
            if current is not None:
                self._retire(current)
            self._last_number += 1
            pool = ServedPool(self._last_number, relay_pool, sock)
            self.memory.append(pool.entry())
            self.serve(pool)
        self._compact_journal()
        ports = {pool.key: self._active[pool.key].port for pool in request.pools if pool.key in self._active}
        return Arranged(ports, tuple(changed), problems)

    def retire(self, request: Retire) -> Retired:
        """Retires the requested pools; no rule leads to them any more."""
        named = set(request.keys)
        retired = [key for key in self._active if (key in named) != request.all_others]
        for key in retired:
            self._retire(self._active.pop(key))
        self._compact_journal()
        return Retired(tuple(retired))

    def show(self) -> Shown:
        """The pools that are not retired."""
        return Shown(tuple(pool.pool for pool in self._active.values()), self.ports)

    def drain(self) -> None:
        """Retires all pools; the relay ends with its last connection."""
        self._draining = True
        self.retire(Retire((), all_others=True))
        self.loop.later(0, self._stop_when_idle)

    def remember_affinity(self, pool: int, client: str, target: Target) -> None:
        """Stores the endpoint that a client of a pool keeps by session affinity."""
        self.memory.append(AffinityEntry(pool, client, target))
        self._compact_journal()

    def reserve_number(self, number: int) -> None:
        """New pools get numbers above this one."""
        self._last_number = max(self._last_number, number)

    def serve(self, pool: ServedPool) -> None:
        """Serves a pool that is in the journal."""
        self._pools[pool.number] = pool
        if pool.pool.protocol == "udp":
            pool.sessions = UdpSessions(self, pool.number, pool.pool, pool.balancer, pool.sock)
        else:
            self.acceptor.start(pool)
        if pool.retired:
            self._remove_later(pool)
        else:
            self._active[pool.pool.key] = pool

    def recovered(self) -> None:
        """All pools of an earlier worker are restored: without any, the relay drains unless a request comes."""
        self._draining = not self._active
        self.loop.later(_FIRST_REQUEST_S, self._stop_when_idle)

    def _change(self, pool: ServedPool, desired: RelayPool) -> None:
        pool.pool = desired
        pool.balancer.change(desired.endpoints, desired.affinity_s)
        self.memory.append(pool.entry())
        if pool.sessions is not None:
            pool.sessions.change(desired)

    def _retire(self, pool: ServedPool) -> None:
        pool.retired = True
        self.memory.append(pool.entry())
        self._remove_later(pool)

    def _remove_later(self, pool: ServedPool) -> None:
        self.loop.later(_GRACE_S, lambda: self._remove(pool))

    def _remove(self, pool: ServedPool) -> None:
        """Removes a retired pool after its grace period; a UDP pool gets another one while it has sessions."""
        if pool.sessions is not None:
            pool.sessions.open = False
            if len(pool.sessions):
                self._remove_later(pool)
                return
            pool.sessions.close()
        else:
            self.acceptor.accept(pool)
        del self._pools[pool.number]
        self.memory.append(PoolRemoved(pool.number))
        self.loop.close(pool.sock.detach())
        self._stop_when_idle()

    def _stop_when_idle(self) -> None:
        if not self._stays and self._draining and not self._pools and not self.connections:
            self.loop.running = False

    def _compact_journal(self) -> None:
        if self.memory.overgrown():
            self.memory.rewrite(self._entries())

    def _entries(self) -> Iterator[Entry]:
        for pool in self._pools.values():
            yield pool.entry()
            for client, target in pool.balancer.remembered().items():
                yield AffinityEntry(pool.number, client, target)


def _same_socket(current: RelayPool, desired: RelayPool) -> bool:
    """Whether a changed pool can keep its listening socket."""
    return (current.address, current.protocol) == (desired.address, desired.protocol)
