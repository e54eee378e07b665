"""One informer per resource for all controllers of a process."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import Resource
from podwire.runtime.supervise import Supervisor

T = TypeVar("T")


class SharedInformers:
    """Informers by resource, constructed on first use."""

    def __init__(self, client: Client, on_created: Callable[[Informer[Any]], None] = lambda _: None) -> None:
        """``on_created`` is called with each informer before it runs."""
        self._client = client
        self._on_created = on_created
        self._informers: dict[Resource[Any], Informer[Any]] = {}
        self._started: set[Resource[Any]] = set()

    def of(self, resource: Resource[T]) -> Informer[T]:
        """The informer of all objects of a resource."""
        if resource not in self._informers:
            self._informers[resource] = Informer(self._client, resource)
            self._on_created(self._informers[resource])
        return cast(Informer[T], self._informers[resource])

    def start(self, supervisor: Supervisor) -> None:
        """Runs every informer that does not run yet."""
        for resource, informer in self._informers.items():
            if resource not in self._started:
                self._started.add(resource)
                supervisor.start(f"informer {resource.plural}", informer.run)

    async def wait_synced(self) -> None:
        """Returns when every informer has listed once."""
        for informer in list(self._informers.values()):
            await informer.synced.wait()
