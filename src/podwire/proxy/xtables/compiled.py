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
Compiled = TypeVar("Compiled")


class CompiledServices(Generic[Compiled]):
    """All Services; ``make`` compiles the ports of one Service, for the frontends that it owns."""

    def __init__(self, make: Callable[[Ports, frozenset[Frontend]], Compiled], nothing: Compiled) -> None:
        self._make = make
        self._nothing = nothing
        self._services: dict[str, Compiled] = {}
        self._waiting: dict[str, Ports] = {}
        """Ports of the Services that wait for a frontend, which are compiled again when they get it."""
        self.claims: FrontendClaims[Frontend] = FrontendClaims()

    def change(self, changed: Mapping[str, Ports]) -> Iterator[tuple[Compiled, Compiled]]:
        """Applies new ports of Services; yields the old and the new compiled form of each affected Service."""
        before: dict[str, Compiled] = {}
        todo = dict(changed)
        while todo:
            for service, ports in todo.items():
                before.setdefault(service, self._services.pop(service, self._nothing))
                self._waiting.pop(service, None)
                needed = frozenset(f for port in ports for f in frontends(port))
                owned = self.claims.claim(service, needed)
                if ports:
                    self._services[service] = self._make(ports, owned)
                if owned != needed:
                    self._waiting[service] = ports
            todo = {service: self._waiting[service] for service in self.claims.released() if service in self._waiting}
        for service, old in before.items():
            yield old, self._services.get(service, self._nothing)
