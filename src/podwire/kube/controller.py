"""Client, informers, event recorders and reconcile loops that the controllers of one process share.

A controller is a class that takes the environment, subscribes to the informers it reads, and is started under a
supervisor. It reads only informers and writes only through the client. Its decisions are a pure ``plan``.
"""

import copy
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Protocol, TypeVar

from podwire.errors import ApiError, ApiUnreachable, Conflict, NotFound, ProtocolError
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.index import Index
from podwire.kube.informer import Informer
from podwire.kube.resources import PODS, Resource
from podwire.kube.shared import SharedInformers
from podwire.model.meta import controller_of
from podwire.model.pod import Pod
from podwire.observe.log import Log
from podwire.runtime.supervise import Supervisor
from podwire.runtime.workqueue import ReconcileLoop

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
API_FAILURES = (ApiError, ApiUnreachable, ProtocolError)
"""Failures of the API after which a controller tries again."""


class Controller(Protocol):
    """A controller; constructed with the environment, then started once."""

    def start(self, supervisor: Supervisor) -> None:
        """Starts the controller's tasks."""
        ...


class Environment:
    """Constructed once per process; controllers take their informers, recorders and loops from it before ``start``."""

    def __init__(self, client: Client, component: str = "controller") -> None:
        self.client = client
        self.clock = client.clock
        self.log = Log(component)
        self._recorders: dict[str, EventRecorder] = {}
        self.informers = SharedInformers(client, self.recorder(f"podwire-{component}").follow_rejected)
        self._owned_pods: Index[Pod] | None = None

    def acting(self, client: Client) -> "Environment":
        """The same informers, with another client for writes and Events."""
        other = copy.copy(self)
        other.client = client
        return other

    def of(self, resource: Resource[T]) -> Informer[T]:
        """The shared informer of a resource."""
        return self.informers.of(resource)

    def recorder(self, component: str) -> EventRecorder:
        """The event recorder of a component; ``kubectl describe`` shows this name."""
        if component not in self._recorders:
            self._recorders[component] = EventRecorder(self.client, component)
        return self._recorders[component]

    def pods_by_owner(self) -> Index[Pod]:
        """Pods by the uid of their controller."""
        if self._owned_pods is None:
            self._owned_pods = Index(self.of(PODS), _owner_uids)
        return self._owned_pods

    def loop(
        self, name: str, reconcile: Callable[[K], Awaitable[None]], *, interval_s: float = 0.0
    ) -> ReconcileLoop[K]:
        """A reconcile loop that retries failures of the API."""
        return ReconcileLoop(
            name, self.clock, reconcile, report=self._report_key, expected=API_FAILURES, interval_s=interval_s
        )

    async def run(self, parts: Mapping[str, Controller]) -> None:
        """Runs everything until cancelled; controllers start when all informers are synced."""
        async with Supervisor(self.clock, self._report) as supervisor:
            self.informers.start(supervisor)
            for component, recorder in self._recorders.items():
                supervisor.start(f"events {component}", recorder.run)
            await self.informers.wait_synced()
            for part in parts.values():
                part.start(supervisor)
            self.log.info("running", parts=",".join(parts))

    def _report_key(self, name: str, key: object, failure: Exception) -> None:
        if isinstance(failure, Conflict | NotFound) or is_namespace_terminating(failure):
            self.log.debug("will retry", controller=name, key=key, problem=failure)
        else:
            self.log.warning("will retry", controller=name, key=key, problem=failure)

    def _report(self, name: str, failure: BaseException) -> None:
        self.log.error("task failed", failure=failure, task=name)


def is_namespace_terminating(failure: Exception) -> bool:
    """Whether the API refused to create something because its namespace is being deleted."""
    return isinstance(failure, ApiError) and failure.code == 403 and "being terminated" in failure.message


def _owner_uids(pod: Pod) -> tuple[str, ...]:
    owner = controller_of(pod.metadata)
    return (owner.uid,) if owner is not None else ()
