"""The loop that copies hand-written Endpoints to slices, for Services without a selector.

Guarantees: 1. a change is copied at once, further ones at most every 0.1 s; 2. no plan is made before the informer
shows the writes of the last plan; 3. slices are deleted when their Endpoints or the Service is deleted, or when the
Service gets a selector; 4. slices of other controllers are not changed.
"""

from podwire.controllers.endpointslice.endpoints import Desired
from podwire.controllers.endpointslice.handwritten import MANAGER, copied, handwritten, of_endpoints
from podwire.controllers.endpointslice.plan import MANAGED_BY, SliceChanges, plan
from podwire.controllers.endpointslice.writing import write
from podwire.kube.controller import Environment
from podwire.kube.index import Index
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import ENDPOINTS, ENDPOINTSLICES, SERVICES
from podwire.model.service import SERVICE_NAME_LABEL, Endpoints, EndpointSlice
from podwire.runtime.supervise import Supervisor

_INTERVAL_S = 0.1


class EndpointSliceMirroringController:
    """EndpointSlices of Services with hand-written Endpoints."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._services = environment.of(SERVICES)
        self._endpoints = environment.of(ENDPOINTS)
        slices = environment.of(ENDPOINTSLICES)
        self._own = OwnWrites(slices)
        self._slices: Index[EndpointSlice] = Index(slices, _copies_for)
        self._loop = environment.loop("endpointslicemirroring", self._reconcile, interval_s=_INTERVAL_S)
        self._endpoints.subscribe(lambda key, _old, _new: self._loop.touch(key))
        self._services.subscribe(lambda key, _old, _new: self._touch(key))
        slices.subscribe(self._slice_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor, workers=1)

    def _touch(self, key: str) -> None:
        """Queues a Service; one without Endpoints and slices of this controller needs no work."""
        if self._endpoints.get(key) is not None or self._slices.of(key):
            self._loop.touch(key)

    def _slice_changed(self, _key: str, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        for item in (old, new):
            if item is not None:
                for key in _copies_for(item):
                    self._loop.touch(key)

    async def _reconcile(self, key: str) -> None:
        item, service = self._endpoints.get(key), self._services.get(key)
        slices = self._slices.of(key)
        is_copied = item is not None and copied(item, service)
        if not is_copied and not slices:
            return
        if not self._own.caught_up(key):
            self._loop.queue.add_after(key, 1.0)
            return
        await write(self._client, self._own, key, _changes(item if is_copied else None, tuple(slices.values())))


def _changes(item: Endpoints | None, slices: tuple[EndpointSlice, ...]) -> SliceChanges:
    if item is None:
        return SliceChanges(delete=[item.metadata.name for item in slices])
    desired: Desired = handwritten(item)
    return plan(of_endpoints(item), desired, slices, (), "")


def _copies_for(item: EndpointSlice) -> tuple[str, ...]:
    labels = item.metadata.labels
    if labels.get(MANAGED_BY) != MANAGER or SERVICE_NAME_LABEL not in labels:
        return ()
    return (f"{item.metadata.namespace}/{labels[SERVICE_NAME_LABEL]}",)
