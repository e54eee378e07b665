"""Chooses the endpoint for a client: round robin, or with affinity the previous endpoint of the client (pure).

As Kubernetes' own userspace mode: a client that comes back within the time-out gets its endpoint again, which begins
the time-out anew; one whose endpoint is gone, or could not be reached, gets the next. A choice costs a look-up, with
any number of clients; those whose time is over are forgotten as others come.
"""

from collections.abc import Collection, Iterator

from podwire.proxy.dataplanes.userspace.orders import Target


class Balancer:
    """The endpoints of one pool and the clients that it remembers."""

    def __init__(self, endpoints: tuple[Target, ...] = (), affinity_s: int = 0, first: int = 0) -> None:
        """``first``: where the turns begin; any number, so that not every node begins with the same endpoint."""
        self._next = first
        self._clients: dict[str, tuple[Target, float]] = {}
        self.change(endpoints, affinity_s)

    def change(self, endpoints: tuple[Target, ...], affinity_s: int) -> None:
        """Takes over other endpoints, another time-out; 0 forgets every client."""
        self.endpoints = endpoints
        self._known = frozenset(endpoints)
        self.affinity_s = affinity_s
        if not affinity_s:
            self._clients.clear()

    def choose(self, client: str, now: float, tried: Collection[Target] = ()) -> Target | None:
        """The endpoint for a client, none of those ``tried``; None when there is no other. ``now`` is in seconds."""
        had = self.recall(client, now)
        if had is not None and had not in tried:
            self.remember(client, had, now)
            return had
        for _ in self.endpoints:
            candidate = self.endpoints[self._next % len(self.endpoints)]
            self._next = (self._next + 1) % len(self.endpoints)
            if candidate not in tried:
                self.remember(client, candidate, now)
                return candidate
        return None

    def recall(self, client: str, now: float) -> Target | None:
        """The endpoint that a client has by affinity."""
        if not self.affinity_s:
            return None
        target, used = self._clients.get(client, (None, now))
        return target if target in self._known and now - used < self.affinity_s else None

    def remember(self, client: str, target: Target, now: float) -> None:
        """Keeps a client's endpoint; without affinity nothing is kept."""
        if not self.affinity_s:
            return
        self._clients.pop(client, None)
        self._clients[client] = (target, now)
        for oldest, (_, used) in self._first():
            if now - used < self.affinity_s:
                return
            del self._clients[oldest]

    def _first(self) -> Iterator[tuple[str, tuple[Target, float]]]:
        while self._clients:
            yield next(iter(self._clients.items()))

    def forget(self, client: str) -> None:
        """The client's endpoint could not be reached."""
        self._clients.pop(client, None)

    def remembered(self) -> dict[str, Target]:
        """The clients that are remembered, the one longest unseen first."""
        return {client: target for client, (target, _) in self._clients.items()}
