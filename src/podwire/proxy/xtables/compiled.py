"""What each Service of one family compiles to, and who has which way in, as Services change (pure).

A way in belongs to one Service. When it is released, whoever waited for it is compiled anew; so a change may be about
more Services than it names.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from podwire.proxy.claims import FrontendClaims
from podwire.proxy.frontends import Frontend, frontends
from podwire.proxy.servicemap import ServicePort

Ports = tuple[ServicePort, ...]
Made = TypeVar("Made")


class CompiledServices(Generic[Made]):
    """All Services; ``make`` compiles the ports of one, as far as their ways in are its own."""

    def __init__(self, make: Callable[[Ports, frozenset[Frontend]], Made], nothing: Made) -> None:
        self._make = make
        self._nothing = nothing
        self._services: dict[str, tuple[Ports, Made]] = {}
        self.claims: FrontendClaims[Frontend] = FrontendClaims()

    def change(self, changed: Mapping[str, Ports]) -> Iterator[tuple[Made, Made]]:
        """Takes over new ports of Services; what each that it is about was before, and what it is now."""
        before: dict[str, Made] = {}
        todo = dict(changed)
        while todo:
            for service, ports in todo.items():
                _, made = self._services.pop(service, ((), self._nothing))
                before.setdefault(service, made)
                owned = self.claims.claim(service, frozenset(way for port in ports for way in frontends(port)))
                if ports:
                    self._services[service] = ports, self._make(ports, owned)
            todo = {service: self._services.get(service, ((), None))[0] for service in self.claims.released()}
        for service, old in before.items():
            _, new = self._services.get(service, ((), self._nothing))
            yield old, new
