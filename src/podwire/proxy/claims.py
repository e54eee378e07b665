"""Which Service owns a frontend that several Services name (pure).

The first Service that claims a frontend owns the frontend until it releases it. Other Services wait; when the frontend
is released, the first waiting Service by name gets it. The API server keeps cluster addresses and node ports unique,
but not external addresses.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

F = TypeVar("F", bound=Hashable)


class FrontendClaims(Generic[F]):
    """The claims of all Services of one family."""

    def __init__(self) -> None:
        self._owners: dict[F, str] = {}
        self._waiting: dict[F, set[str]] = {}
        self._claimed: dict[str, frozenset[F]] = {}

    def claim(self, service: str, frontends: frozenset[F]) -> frozenset[F]:
        """Claims ``frontends`` for a Service and releases its other frontends; returns those it owns now."""
        for frontend in self._claimed.pop(service, frozenset()) - frontends:
            if self._owners.get(frontend) == service:
                del self._owners[frontend]
            self._waiting.get(frontend, set()).discard(service)
        if frontends:
            self._claimed[service] = frontends
        owned: set[F] = set()
        for frontend in frontends:
            if self._owners.setdefault(frontend, service) == service:
                owned.add(frontend)
            else:
                self._waiting.setdefault(frontend, set()).add(service)
        return frontends if len(owned) == len(frontends) else frozenset(owned)

    def owner(self, frontend: F) -> str:
        """The Service that owns a frontend; empty without one."""
        return self._owners.get(frontend, "")

    def released(self) -> list[str]:
        """Services that waited for a frontend that is free now; each must claim again."""
        if not self._waiting:
            return []
        free = [frontend for frontend in self._waiting if frontend not in self._owners]
        return sorted({service for frontend in free for service in self._waiting.pop(frontend)})

    def waiting(self) -> tuple[str, ...]:
        """Services that wait for a frontend that another Service owns."""
        return tuple(sorted({service for waiting in self._waiting.values() for service in waiting}))
