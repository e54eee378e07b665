"""Chooses the endpoint for a client: round robin, or with affinity the previous endpoint of the client (pure).

Affinity works as in Kubernetes' own userspace mode: a client that connects again within the time-out gets the same
endpoint, and the time-out starts again. A client whose endpoint was removed or did not accept gets the next endpoint. A
choice costs one look-up for any number of clients; expired clients are removed when other clients connect.
"""

from collections.abc import Collection, Iterator

from podwire.proxy.dataplanes.userspace.messages import Target


class Balancer:
    """The endpoints of one pool, and the clients with affinity."""

    def __init__(self, endpoints: tuple[Target, ...] = (), affinity_s: int = 0, first: int = 0) -> None:
        """``first``: where round robin starts, any number, so that nodes do not all start with the same endpoint."""
        self._next = first
        self._clients: dict[str, tuple[Target, float]] = {}
        self.change(endpoints, affinity_s)

    def change(self, endpoints: tuple[Target, ...], affinity_s: int) -> None:
        """Applies changed endpoints and a changed time-out in seconds; 0 forgets every client."""
        self.endpoints = endpoints
        self._known = frozenset(endpoints)
        self.affinity_s = affinity_s
        if not affinity_s:
            self._clients.clear()

    def choose(self, client: str, now: float, tried: Collection[Target] = ()) -> Target | None:
        """The endpoint for a client, except those in ``tried``; None when no other is left. ``now`` is in seconds."""
        previous = self.recall(client, now)
        if previous is not None and previous not in tried:
            self.remember(client, previous, now)
            return previous
        for _ in self.endpoints:
            candidate = self.endpoints[self._next % len(self.endpoints)]
            self._next = (self._next + 1) % len(self.endpoints)
            if candidate not in tried:
                self.remember(client, candidate, now)
                return candidate
        return None

    def recall(self, client: str, now: float) -> Target | None:
        """The endpoint that a client keeps by affinity; None without one."""
        if not self.affinity_s:
            return None
        target, used = self._clients.get(client, (None, now))
        return target if target in self._known and now - used < self.affinity_s else None

    def remember(self, client: str, target: Target, now: float) -> None:
        """Stores the endpoint of a client, if the pool has affinity."""
        if not self.affinity_s:
            return
        self._clients.pop(client, None)
        self._clients[client] = (target, now)
        for oldest, (_, used) in self._oldest_first():
            if now - used < self.affinity_s:
                return
            del self._clients[oldest]

    def _oldest_first(self) -> Iterator[tuple[str, tuple[Target, float]]]:
        while self._clients:
            yield next(iter(self._clients.items()))

    def forget(self, client: str) -> None:
        """Removes the affinity of a client, because its endpoint did not accept."""
        self._clients.pop(client, None)

    def remembered(self) -> dict[str, Target]:
        """The endpoint of each client with affinity, the longest unused client first."""
        return {client: target for client, (target, _) in self._clients.items()}
