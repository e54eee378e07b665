"""The compiled form of each Service of one family, and which Service owns which frontend (pure).

A frontend belongs to one Service. When a frontend is released, the Service that waits for it is compiled again, so a
change may affect more Services than it names.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from podwire.proxy.claims import FrontendClaims
from podwire.proxy.frontends import Frontend, frontends
from podwire.proxy.servicemap import ResolvedPort

Ports = tuple[ResolvedPort, ...]
Made = TypeVar("Made")


class CompiledServices(Generic[Made]):
    """All Services; ``make`` compiles the ports of one Service, for the frontends that it owns."""

    def __init__(self, make: Callable[[Ports, frozenset[Frontend]], Made], nothing: Made) -> None:
        self._make = make
        self._nothing = nothing
        self._services: dict[str, tuple[Ports, Made]] = {}
        self.claims: FrontendClaims[Frontend] = FrontendClaims()

    def change(self, changed: Mapping[str, Ports]) -> Iterator[tuple[Made, Made]]:
        """Applies new ports of Services; yields the old and the new compiled form of each affected Service."""
        before: dict[str, Made] = {}
        todo = dict(changed)
        while todo:
            for service, ports in todo.items():
                _, made = self._services.pop(service, ((), self._nothing))
                before.setdefault(service, made)
                owned = self.claims.claim(service, frozenset(f for port in ports for f in frontends(port)))
                if ports:
                    self._services[service] = ports, self._make(ports, owned)
            todo = {service: self._services.get(service, ((), None))[0] for service in self.claims.released()}
        for service, old in before.items():
            _, new = self._services.get(service, ((), self._nothing))
            yield old, new
