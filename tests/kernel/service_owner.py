"""A data plane together with the resolved Services that it needs at each call, as the proxy runner keeps them."""

from typing import Any

from podwire.proxy.servicemap import NodeFacts, ServiceMap, take_over


class ServiceOwner:
    """Keeps the Services of one data plane; everything else is the data plane's own."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.services: dict[str, Any] = {}

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> Any:
        self.services = {key: ports for key, ports in services.items() if ports}
        return self.plane.load(self.services, facts)

    def update(self, changed: ServiceMap) -> Any:
        take_over(self.services, changed)
        return self.plane.update(self.services, changed)

    def heal(self) -> Any:
        return self.plane.heal(self.services)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plane, name)
