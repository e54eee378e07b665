"""The loop that has balancers serve the Services of type LoadBalancer: finalizer, status, Events.

Guarantees: 1. the finalizer is on a Service before its address is given out, and goes when the address was taken back;
2. the status says where the Service is reached and nothing else, and says nothing when it is not; 3. a Service of a
class that no balancer serves is not touched: without a balancer, all of them wait (``<pending>``); 4. what cannot be
done now is a Warning and is tried again, 5 ms doubling to 30 s after a failure of the API, and after 5 s doubling to
5 minutes after one of the balancer; 5. a Service that a balancer served which is there no more is let go when it goes
or changes its type, so that nothing waits for ever.

Events have the names that clouds' controllers give them.
Source: ``k8s.io/cloud-provider/controllers/service``.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from podwire.cluster.names import SERVICE_BALANCER
from podwire.controllers.service.balancer import LoadBalancer
from podwire.controllers.service.plan import Need, Patch, claim, let_go, need, status
from podwire.errors import ConfigError, LoadBalancerError, NotFound
from podwire.kube.client import MERGE_PATCH
from podwire.kube.controller import Environment
from podwire.kube.events import Severity, reference
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import SERVICES
from podwire.model.service import Service
from podwire.runtime.backoff import Backoff
from podwire.runtime.supervise import Supervisor

_FIRST_S, _CEILING_S = 5.0, 300.0
COMPONENT = "service-controller"


class ServiceController:
    """Services of type LoadBalancer, each served by the balancer of its class."""

    def __init__(self, environment: Environment, balancers: Iterable[LoadBalancer] = ()) -> None:
        """Raises: ConfigError when two balancers serve one class."""
        self._client = environment.client
        self._services = environment.of(SERVICES)
        self._own = OwnWrites(self._services)
        self._events = environment.recorder(COMPONENT)
        self._balancers: dict[str, LoadBalancer] = {}
        for one in balancers:
            other = self._balancers.setdefault(one.load_balancer_class, one)
            if other is not one:
                problem = f"{other.name} and {one.name} both serve the class {one.load_balancer_class!r}"
                raise ConfigError("controller", "loadBalancers", problem)
        self._classes = {name: one.name for name, one in self._balancers.items()}
        self._names = {one.name: one for one in self._balancers.values()}
        self._backoffs: dict[str, Backoff] = {}
        self._loop = environment.loop("service", self._reconcile)
        self._services.subscribe(self._changed)
        for one in self._balancers.values():
            one.watch(self._loop.touch)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor, workers=4)

    def _changed(self, key: str, _old: Service | None, new: Service | None) -> None:
        if new is None:
            self._backoffs.pop(key, None)
        elif need(new, self._classes) is not Need.NOTHING:
            self._loop.touch(key)

    async def _reconcile(self, key: str) -> None:
        service = self._services.get(key)
        if service is None:
            return
        if not self._own.seen(key):
            self._loop.queue.add_after(key, 1.0)
            return
        wanted = need(service, self._classes)
        try:
            if wanted is Need.ADDRESS:
                await self._serve(key, service)
            elif wanted is Need.RELEASE:
                await self._release(key, service)
        except LoadBalancerError as failure:
            self._say(service, "Warning", "SyncLoadBalancerFailed", f"Error syncing load balancer: {failure}")
            backoff = self._backoffs.setdefault(key, Backoff(_FIRST_S, _CEILING_S))
            self._loop.queue.add_after(key, backoff.next_delay_s())
            return
        self._backoffs.pop(key, None)

    async def _serve(self, key: str, service: Service) -> None:
        balancer = self._balancers[service.spec.load_balancer_class or ""]
        claimed = claim(service, balancer.name)
        if claimed is not None:
            self._say(service, "Normal", "EnsuringLoadBalancer", "Ensuring load balancer")
            await self._write(key, service, claimed)
            return  # the Service comes back as it is then
        ingress = await balancer.ensure(service)
        said = status(service, ingress)
        if said is not None:
            await self._write(key, service, said, "status")
            self._say(service, "Normal", "EnsuredLoadBalancer", "Ensured load balancer")

    async def _release(self, key: str, service: Service) -> None:
        balancer = self._names.get(service.metadata.annotations[SERVICE_BALANCER])
        if balancer is not None:
            self._say(service, "Normal", "DeletingLoadBalancer", "Deleting load balancer")
            await balancer.release(service)
        said = status(service, ())
        if said is not None:
            service = await self._write(key, service, said, "status")
        left = let_go(service)
        if left is not None:
            await self._write(key, service, left)
            self._say(service, "Normal", "DeletedLoadBalancer", "Deleted load balancer")

    async def _write(self, key: str, service: Service, patch: Patch, subresource: str = "") -> Service:
        """The Service at the version that the API answers with; as it was when it is not there any more."""
        meta = service.metadata
        try:
            answer = await self._client.patch(
                SERVICES, meta.name, patch, meta.namespace, patch_type=MERGE_PATCH, subresource=subresource
            )
        except NotFound:
            return service
        self._own.wrote(key, answer)
        version = answer["metadata"]["resourceVersion"]
        return replace(service, metadata=replace(meta, resource_version=version))

    def _say(self, service: Service, severity: Severity, reason: str, text: str) -> None:
        self._events.event(reference("v1", "Service", service.metadata), severity, reason, text)
