"""A cloud in memory with the rules of the providers; it passes the same tests as they do."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from podwire.controllers.cloudroutes.provider import (
    AddRoute,
    Change,
    Claim,
    CloudInterface,
    CloudRoute,
    CloudState,
    CloudTable,
    DeleteRoute,
    Network,
)
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudError, CloudUnavailable


class MemoryOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class MemoryCloud:
    """Instances ``m-1``, ``m-2``, ... with one interface each, and tables with room for ``quota`` routes."""

    name = "memory"
    options: type[msgspec.Struct] = MemoryOptions

    def __init__(self, settings: CloudSettings | None = None, options: Any = None) -> None:
        self.interfaces: dict[str, CloudInterface] = {}
        self.tables: dict[str, dict[Network, CloudRoute]] = {"table-1": {}}
        self.quota = 50
        self.away = ""
        self.log: list[str] = []

    def add(self, number: int, address: str) -> str:
        """Adds an instance, and returns the ``spec.providerID`` of its Node."""
        interface = CloudInterface(id=f"if-{number}", instance=f"m-{number}", addresses=(address,))
        self.interfaces[interface.id] = interface
        return f"memory:///m-{number}"

    def delete(self, number: int) -> None:
        """Deletes an instance; routes to it are dead."""
        gone = self.interfaces.pop(f"if-{number}").id
        for routes in self.tables.values():
            for network, route in routes.items():
                if route.target == gone:
                    routes[network] = replace(route, dead=True)

    def routes(self) -> dict[str, str]:
        """The targets of the first table by destination."""
        return {str(network): route.target for network, route in self.tables["table-1"].items()}

    def instance(self, provider_id: str) -> str:
        """The instance of a Node."""
        if not provider_id.startswith("memory:///"):
            raise ValueError(f"spec.providerID is {provider_id!r}: expected memory:///m-1")
        return provider_id.removeprefix("memory:///")

    def read(self, instances: Collection[str]) -> CloudState:
        """The tables, the interfaces of the instances, and those with the mark."""
        self._check_answer("read")
        chosen = {k: each for k, each in self.interfaces.items() if each.marked or each.instance in instances}
        return CloudState(tuple(CloudTable(k, tuple(routes.values())) for k, routes in self.tables.items()), chosen)

    def apply(self, change: Change) -> None:
        """Makes one change."""
        self._check_answer(str(change))
        self.log.append(str(change))
        if isinstance(change, DeleteRoute):
            self.tables[change.table].pop(change.network, None)
        elif isinstance(change, AddRoute):
            self._add(change)
        elif interface := self.interfaces.get(change.interface):
            claimed = isinstance(change, Claim)
            forwards = claimed or (interface.forwards and not change.restores)
            restores = claimed and change.restores
            self.interfaces[interface.id] = replace(interface, marked=claimed, forwards=forwards, restores=restores)

    def _add(self, change: AddRoute) -> None:
        routes = self.tables[change.table]
        if change.interface not in self.interfaces:
            raise CloudError("add", "NotFound", f"no interface {change.interface}")
        if change.network not in routes and len(routes) >= self.quota:
            raise CloudError("add", "RouteLimitExceeded", f"table {change.table} is full")
        if change.replace or change.network not in routes:
            routes[change.network] = CloudRoute(change.network, change.interface)

    def _check_answer(self, operation: str) -> None:
        if self.away:
            raise CloudUnavailable(operation, "", self.away)


def changes_by(cloud: MemoryCloud, kinds: Iterable[str]) -> list[str]:
    """The changes that begin with one of the words."""
    return [line for line in cloud.log if line.startswith(tuple(kinds))]
