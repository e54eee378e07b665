"""Who has which frontend, where two Services name the same one (pure).

The first that claims a frontend has it until it lets go; the others wait, and the first of them in the order of names
gets it then. The API keeps cluster addresses and node ports apart, external addresses it does not.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

F = TypeVar("F", bound=Hashable)


class FrontendClaims(Generic[F]):
    """The frontends of all Services of one family."""

    def __init__(self) -> None:
        self._owners: dict[F, str] = {}
        self._waiting: dict[F, set[str]] = {}
        self._wanted: dict[str, frozenset[F]] = {}

    def claim(self, service: str, wanted: frozenset[F]) -> frozenset[F]:
        """The frontends that a Service gets of those it wants; those it had and does not want any more are free."""
        for frontend in self._wanted.pop(service, frozenset()) - wanted:
            if self._owners.get(frontend) == service:
                del self._owners[frontend]
            self._waiting.get(frontend, set()).discard(service)
        if wanted:
            self._wanted[service] = wanted
        owned: set[F] = set()
        for frontend in wanted:
            if self._owners.setdefault(frontend, service) == service:
                owned.add(frontend)
            else:
                self._waiting.setdefault(frontend, set()).add(service)
        return wanted if len(owned) == len(wanted) else frozenset(owned)

    def owner(self, frontend: F) -> str:
        """The Service that has a frontend; empty: none."""
        return self._owners.get(frontend, "")

    def released(self) -> list[str]:
        """Services that waited for a frontend which is free now; they wait no longer and should claim again."""
        if not self._waiting:
            return []
        free = [frontend for frontend in self._waiting if frontend not in self._owners]
        return sorted({service for frontend in free for service in self._waiting.pop(frontend)})

    def waiting(self) -> tuple[str, ...]:
        """Services that wait for a frontend which another one has."""
        return tuple(sorted({service for waiting in self._waiting.values() for service in waiting}))
